"""An entry as one text, and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from command_bus.transport.mailboxes import envelope_in, pack_entry, unpack_entry

NAMES = st.binary(min_size=1, max_size=5).filter(lambda name: b":" not in name)


@given(st.dictionaries(NAMES, st.binary(max_size=20), min_size=1, max_size=32))
def test_all_fields_come_back_in_their_order(fields: dict[bytes, bytes]) -> None:
    text = pack_entry([part for pair in fields.items() for part in pair])
    assert unpack_entry(text) == list(fields.items())
    assert envelope_in(text) == fields.get(b"e", b"")


@given(st.binary(max_size=50))
def test_an_envelope_alone_is_its_own_text(envelope: bytes) -> None:
    text = pack_entry([b"e", envelope])
    assert (text == envelope) == (not envelope.startswith(b"\xc1"))
    assert unpack_entry(text) == [(b"e", envelope)]


@given(st.binary(max_size=50).map(lambda rest: b"\xc1" + rest))
def test_any_bytes_can_be_read(text: bytes) -> None:
    envelope_in(text)


def test_of_too_many_fields_the_envelope_stays() -> None:
    fields = [part for number in range(33) for part in (b"%d" % number, b"")]
    assert pack_entry([*fields, b"e", b"c1"]) == b"c1"
