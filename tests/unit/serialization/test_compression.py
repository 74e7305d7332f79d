"""Compressed payloads and replies: what is compressed is read back, and nothing expands beyond the limit."""

from __future__ import annotations

import tracemalloc
import zlib
from contextlib import suppress
from operator import mul
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_bus import BadResult, BusSettings, Command, EntityId, InvalidCommand, InvalidSettings, RegistrationError
from command_bus.sending.envelope_builder import EnvelopeBuilder
from command_bus.serialization.envelope import EnvelopeTemplate, WireEnvelope, pack_envelope, packed_text, unpack_envelope
from command_bus.serialization.limits import PayloadLimits, Undecodable, compressed, expanded
from command_bus.serialization.msgpack import pack
from command_bus.serialization.protection import Protection
from command_bus.serialization.reply import Completed, pack_reply, unpack_reply
from command_bus.transport.marks import digest_of
from command_bus.transport.submissions import NO_DIGEST

LONG = pack({"note": "a note of some length, " * 100})
REPEATED = st.builds(mul, st.text(max_size=20), st.integers(0, 100))
MAPS = st.dictionaries(st.text(max_size=5), REPEATED | st.integers(0, 9) | st.binary(max_size=400), max_size=6)


class Note(Command[None], entity="note"):
    note_id: EntityId
    text: str = ""


def envelope(payload: bytes, *, smaller: bool = True, **changes: Any) -> WireEnvelope:
    return WireEnvelope("c-1", "Note", "note", "n", payload, compressed=smaller, **changes)


class Caesar:
    """Encrypts; of no use to anybody."""

    def encrypt(self, data: bytes, aad: bytes) -> bytes:
        return bytes(byte ^ 0x5A for byte in data)

    decrypt = encrypt


@given(st.binary(max_size=5000), st.integers(0, 4000))
def test_what_is_compressed_is_smaller_and_read_back(data: bytes, above: int) -> None:
    smaller = compressed(data, above)
    if smaller is not None:
        assert len(smaller) < len(data)
        assert len(data) > above
        assert expanded(smaller, len(data)) == data


@given(st.binary(max_size=3000), st.integers(0, 3000))
def test_any_bytes_expand_or_are_refused(data: bytes, most: int) -> None:
    for each in (data, zlib.compress(data), zlib.compress(data)[:-3], zlib.compress(data) + b"x", b"\x78\x9c" + data):
        with suppress(Undecodable):
            assert len(expanded(each, most)) <= most


@pytest.mark.parametrize("damaged", [b"", b"x", zlib.compress(b"a" * 50)[:-1], zlib.compress(b"a") + b"b", b"\x78\xbb\0\0\0\1"])
def test_damage_is_refused(damaged: bytes) -> None:
    with pytest.raises(Undecodable, match=r"damaged|cut short"):
        expanded(damaged, 100)


def test_a_limit_is_kept_to_the_byte() -> None:
    smaller = zlib.compress(b"a" * 1000)
    assert len(expanded(smaller, 1000)) == 1000
    with pytest.raises(Undecodable, match="expand to more than 999"):
        expanded(smaller, 999)


def test_114_few_bytes_that_expand_to_a_gigabyte_take_no_memory() -> None:
    bomb = zlib.compress(b"\0" * 100_000_000, 9)
    assert len(bomb) < 100_000
    packed = pack_envelope(envelope(bomb, smaller=False, options={"z": "zlib"}, inbox="p-1"))
    tracemalloc.start()
    with pytest.raises(Undecodable, match="expand to more than 1048576, the limit") as caught:
        unpack_envelope(packed, PayloadLimits())
    assert tracemalloc.get_traced_memory()[1] < 4_000_000
    tracemalloc.stop()
    assert (caught.value.command_id, caught.value.name, caught.value.inbox) == ("c-1", "Note", "p-1"), "its caller is told"
    with pytest.raises(Undecodable, match="expand to more than"):
        unpack_reply(pack_reply("c-1", Completed(bomb, compressed=True)))


def test_a_compressed_envelope_is_read_as_if_it_were_not() -> None:
    packed = pack_envelope(envelope(LONG))
    assert len(packed) < 200
    read = unpack_envelope(packed)
    assert (read.payload, read.options, read.compressed) == (LONG, None, True)
    assert pack_envelope(read) == packed, "and packed again as it was"


def test_what_does_not_become_smaller_travels_as_it_is() -> None:
    assert pack_envelope(envelope(b"\x80")) == pack_envelope(envelope(b"\x80", smaller=False))


def test_options_stay_beside_compression() -> None:
    read = unpack_envelope(pack_envelope(envelope(LONG, options={"v": 2, "p": "high"})))
    assert (read.payload, read.options) == (LONG, {"v": 2, "p": "high"})


def test_another_compression_is_no_option() -> None:
    with pytest.raises(Undecodable, match="option 'z' is of the wrong type"):
        unpack_envelope(pack_envelope(envelope(LONG, smaller=False, options={"z": "lz4"})))


def test_what_another_compressor_wrote_is_read() -> None:
    raw = zlib.compressobj(9, zlib.DEFLATED, 9, 1, zlib.Z_HUFFMAN_ONLY)
    other = raw.compress(LONG) + raw.flush()
    assert unpack_envelope(pack_envelope(envelope(other, smaller=False, options={"z": "zlib"}))).payload == LONG


@given(MAPS, st.integers(1, 500), st.booleans(), st.booleans())
def test_any_payload_comes_through(fields: dict[str, Any], above: int, encrypts: bool, signs: bool) -> None:
    payload = pack(fields)
    settings = BusSettings(url="redis://none", signing_keys={"k": "a secret of some length"} if signs else {})
    protection = Protection.of(settings, Caesar() if encrypts else None)
    sent = envelope(payload, smaller=len(payload) > above)
    packed = pack_envelope(sent) if protection is None else protection.pack(sent)
    read = unpack_envelope(packed)
    assert (read.payload if protection is None else protection.payload(read)) == payload


@pytest.mark.parametrize("size", [10, 5000, 70_000])
def test_a_template_packs_as_an_envelope_is_packed(size: int) -> None:
    payload = pack({"note": "a" * size})
    template = EnvelopeTemplate(envelope(b"", smaller=False, options={"v": 2}), None, 100)
    found = template.pack(packed_text("c-1"), packed_text("n"), payload)
    assert found == pack_envelope(envelope(payload, smaller=len(payload) > 100, options={"v": 2}))
    assert template.packer() is None, "the quickest way does not compress"


def test_a_repeat_is_compared_by_what_was_sent_however_it_travels() -> None:
    small = unpack_envelope(pack_envelope(envelope(LONG, flags=1)))
    large = unpack_envelope(pack_envelope(envelope(LONG, smaller=False, flags=1)))
    assert digest_of(small) == digest_of(large) != NO_DIGEST


def test_114_an_encrypted_payload_is_compressed_first_and_bounded() -> None:
    protection = Protection.of(BusSettings(url="redis://none", max_payload=64), Caesar())
    assert protection is not None
    packed = protection.pack(envelope(LONG))
    assert len(packed) < 200
    assert protection.payload(unpack_envelope(packed)) == LONG
    with pytest.raises(InvalidCommand, match="expand to more than"):
        protection.payload(unpack_envelope(protection.pack(envelope(pack({"n": "a" * 100_000})))))


def test_replies_are_read_compressed_encrypted_or_both() -> None:
    protection = Protection.of(BusSettings(url="redis://none", max_payload=64), Caesar())
    assert protection is not None
    smaller = Completed(compressed(LONG) or b"", compressed=True)
    assert unpack_reply(pack_reply("c-1", smaller)) == ("c-1", Completed(LONG))
    secret = unpack_envelope(protection.pack(envelope(b"\x80")))
    _, both = unpack_reply(pack_reply("c-1", protection.reply(secret, smaller)))
    assert isinstance(both, Completed)
    assert (both.encrypted, both.compressed) == (("Note", "note", "n"), True)
    assert protection.result("c-1", both) == Completed(LONG)
    bomb = Completed(compressed(b"\0" * 200_000) or b"", compressed=True)
    with pytest.raises(BadResult, match="expand to more than"):
        protection.result("c-1", protection.reply(secret, bomb))
    with pytest.raises(BadResult, match="damaged"):
        protection.result("c-1", protection.reply(secret, Completed(b"odd", compressed=True)))


def test_a_class_says_it_before_the_bus() -> None:
    class Small(Note, entity="note", compress_above=100):
        pass

    class Smaller(Small, entity="note"):
        pass

    def sent(kind: type[Note], above: int | None) -> bool:
        builder = EnvelopeBuilder(BusSettings(url="redis://none", compress_above=above))
        message = kind(note_id="n", text="a" * 300)
        quick = unpack_envelope(builder.build_fast(message).envelope).compressed
        (run,) = builder.build_run([message])
        assert not isinstance(run, InvalidCommand)
        slow = unpack_envelope(builder.build(builder.outgoing(message)).envelope).compressed
        assert quick == slow == unpack_envelope(run.envelope).compressed
        return quick

    assert [sent(Note, above) for above in (None, 100, 1000)] == [False, True, False]
    assert [sent(Smaller, above) for above in (None, 1000)] == [True, True]


@pytest.mark.parametrize("above", [0, -1, 1.5, True, "8"])
def test_115_a_threshold_is_a_number_of_bytes(above: Any) -> None:
    with pytest.raises(RegistrationError, match="compress_above is a number of bytes"):

        class Odd(Command[None], compress_above=above):
            pass

    if above not in (True, "8"):
        with pytest.raises(InvalidSettings, match="compress_above"):
            BusSettings(url="redis://none", compress_above=above)
