"""The envelope: what is refused on the way out, what is read, and what is salvaged of what cannot be."""

from __future__ import annotations

import inspect
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_bus.errors import InvalidCommand
from command_bus.serialization.envelope import (
    AT_MOST_ONCE,
    ENTITY_ID_LIMIT,
    ENVELOPE_VERSION,
    GIVEN_ID,
    HEAD_LIMIT,
    HEADERS_LIMIT,
    OPTIONS,
    EnvelopeTemplate,
    Sign,
    WireEnvelope,
    pack_envelope,
    packed_text,
    unpack_envelope,
)
from command_bus.serialization.envelope_options import KNOWN_OPTIONS, EnvelopeOption
from command_bus.serialization.limits import PayloadLimits, Undecodable, UnsupportedVersion
from command_bus.serialization.native import ExtType, Packer, unpackb

PLAIN = WireEnvelope("c-1", "Deposit", "account", "a-17", b"\x80")
ELEMENTS: list[Any] = [1, "c-1", "Deposit", "account", "a-17", b"\x80", 0, 5000, "inbox", "corr", "cause", {"h": "v"}, b"s"]


def raw(value: Any) -> bytes:
    return bytes(Packer().pack(value))


texts = st.text(max_size=40)
optional = st.none() | texts
envelopes = st.builds(
    WireEnvelope,
    command_id=st.text(min_size=1, max_size=40),
    name=texts,
    entity_type=st.just("account"),
    entity_id=texts,
    payload=st.binary(max_size=300),
    flags=st.integers(0, 255),
    ttl_ms=st.none() | st.integers(0, 2**40),
    inbox=optional,
    correlation_id=optional,
    causation_id=optional,
    headers=st.none() | st.dictionaries(texts, texts, min_size=1, max_size=5),
)


@given(envelopes)
def test_envelopes_come_back_equal(envelope: WireEnvelope) -> None:
    assert unpack_envelope(pack_envelope(envelope)) == envelope


def test_there_is_an_element_per_field() -> None:
    assert (
        len(inspect.signature(WireEnvelope).parameters) - 2 == len(ELEMENTS) - 1
    )  # without version; options only with their flag, and `compressed` is one of them
    assert list(WireEnvelope.__slots__) == list(inspect.signature(WireEnvelope).parameters)
    assert unpack_envelope(raw(ELEMENTS)) == WireEnvelope(*ELEMENTS[1:])


@pytest.mark.parametrize(
    ("envelope", "elements"),
    [
        (PLAIN, 6),
        (replace(PLAIN, entity_type=None, entity_id=None), 6),
        (replace(PLAIN, flags=GIVEN_ID), 7),
        (replace(PLAIN, flags=GIVEN_ID | AT_MOST_ONCE, ttl_ms=0), 8),
        (replace(PLAIN, inbox="i"), 9),
        (replace(PLAIN, correlation_id="c"), 10),
        (replace(PLAIN, causation_id="c"), 11),
        (replace(PLAIN, headers={"a": "b"}), 12),
        (replace(PLAIN, headers={}), 6),
    ],
)
def test_trailing_defaults_are_left_out(envelope: WireEnvelope, elements: int) -> None:
    assert len(unpackb(pack_envelope(envelope))) == elements


@pytest.mark.parametrize("length", range(6, 13))
def test_every_length_is_read(length: int) -> None:
    found = unpack_envelope(raw(ELEMENTS[:length]))
    rest: list[Any] = [0, None, None, None, None, None][length - 6 :] if length < 12 else []
    assert found == WireEnvelope(*[*ELEMENTS[1:length], *rest])


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (1, 5), (1, ""), (1, None), (1, b"c-1"), (2, None), (2, 7), (3, None), (3, 7), (4, None), (4, 17), (5, "text"), (5, {}), (5, None),
        (6, None), (6, True), (6, -1), (6, 1.0), (7, True), (7, -1), (7, "5"), (8, 5), (8, b"inbox"), (9, 1), (10, []), (11, []),
        (11, {"a": 1}), (11, {b"a": "b"}), (11, "h"), (11, {"a": None}), (12, "s"), (12, 5),
    ],
)  # fmt: skip
def test_an_element_of_the_wrong_type_is_refused(place: int, value: Any) -> None:
    elements = [*ELEMENTS[:place], value, *ELEMENTS[place + 1 :]]
    with pytest.raises(Undecodable, match="an element of the wrong type") as caught:
        unpack_envelope(raw(elements))
    assert not isinstance(caught.value, UnsupportedVersion)
    assert caught.value.command_id == ("c-1" if place != 1 else None)
    assert caught.value.name == ("Deposit" if place != 2 else None)
    assert caught.value.inbox == ("inbox" if place != 8 else None)


@pytest.mark.parametrize(
    "elements", [[], [1], ELEMENTS[:5], [*ELEMENTS, b"s", None], [0, *ELEMENTS[1:]], ["1", *ELEMENTS[1:]], [True, *ELEMENTS[1:]]]
)
def test_another_shape_is_refused(elements: list[Any]) -> None:
    with pytest.raises(Undecodable, match="envelope"):
        unpack_envelope(raw(elements))


@pytest.mark.parametrize("value", [None, 5, "text", b"bytes", {}, {"a": 1}, ExtType(85, b"x")])
def test_what_is_no_array_is_no_envelope(value: Any) -> None:
    with pytest.raises(Undecodable, match="not an envelope") as caught:
        unpack_envelope(raw(value))
    assert (caught.value.command_id, caught.value.name, caught.value.inbox) == (None, None, None)


@pytest.mark.parametrize(
    "elements",
    [
        [2, *ELEMENTS[1:]],
        [7, *ELEMENTS[1:], "new", {"more": 1}],
        [2, *ELEMENTS[1:6], ExtType(85, b"x"), None, "inbox"],
    ],
)
def test_a_later_version_is_told_apart_and_its_caller_is_known(elements: list[Any]) -> None:
    with pytest.raises(UnsupportedVersion, match=f"unsupported version {elements[0]}") as caught:
        unpack_envelope(raw(elements))
    error = caught.value
    assert (error.version, error.command_id, error.name, error.inbox) == (elements[0], "c-1", "Deposit", "inbox")


@pytest.mark.parametrize("flags", [1 << 17, 1 << 40, (1 << 63) | 1, (1 << 17) | 0xFFFF])
def test_a_critical_flag_that_is_not_known_makes_it_a_later_version(flags: int) -> None:
    with pytest.raises(UnsupportedVersion, match=f"unknown critical flags {flags & ~0xFFFF:#x}") as caught:
        unpack_envelope(pack_envelope(replace(PLAIN, flags=flags, inbox="inbox")))
    error = caught.value
    assert (error.version, error.flags) == (ENVELOPE_VERSION, flags & ~0xFFFF)
    assert (error.command_id, error.name, error.inbox) == (PLAIN.command_id, PLAIN.name, "inbox")


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOWN_OPTIONS, "n", EnvelopeOption("n", "number", 0, lambda value: type(value) is int))


@pytest.mark.usefixtures("numbers")
@pytest.mark.parametrize("sign", [None, lambda data: blake2b(data, digest_size=32).digest()], ids=["plain", "signed"])
@pytest.mark.parametrize("headers", [None, {"a": "b"}])
def test_options_travel_behind_the_headers(sign: Sign | None, headers: dict[str, str] | None) -> None:
    sent = replace(PLAIN, flags=GIVEN_ID, headers=headers, options={"n": 5})
    packed = pack_envelope(sent, sign)
    found = unpack_envelope(packed)
    assert (found.options, found.headers, found.flags) == ({"n": 5}, headers, GIVEN_ID | OPTIONS)
    assert found.signature == (None if sign is None else sign(packed[:-34]))
    assert pack_envelope(replace(found, signature=None), sign) == packed
    assert EnvelopeTemplate(sent, sign).pack(packed_text("c-1"), packed_text(PLAIN.entity_id or ""), PLAIN.payload) == packed


@pytest.mark.usefixtures("numbers")
@pytest.mark.parametrize("sign", [None, lambda _: b"signature"], ids=["plain", "signed"])
def test_what_had_options_is_packed_without_them(sign: Sign | None) -> None:
    """As a firing of a schedule whose class has a unique key, or an edited command that is small now."""
    read = unpack_envelope(pack_envelope(replace(PLAIN, options={"n": 5})))
    found = unpack_envelope(pack_envelope(replace(read, options=None), sign))
    assert (found.options, found.flags & OPTIONS) == (None, 0)


@pytest.mark.usefixtures("numbers")
def test_an_option_that_is_not_known_makes_it_a_later_version() -> None:
    with pytest.raises(UnsupportedVersion, match="unknown options 'later', of a later release") as caught:
        unpack_envelope(pack_envelope(replace(PLAIN, inbox="inbox", options={"n": 5, "later": 1})))
    error = caught.value
    assert (error.options, error.command_id, error.name, error.inbox) == (("later",), PLAIN.command_id, PLAIN.name, "inbox")


@pytest.mark.usefixtures("numbers")
@pytest.mark.parametrize("options", [{"n": "5"}, {}, None, 7, {b"n": 5}])
def test_options_of_the_wrong_type_are_undecodable(options: Any) -> None:
    with pytest.raises(Undecodable, match="option") as caught:
        unpack_envelope(raw([*ELEMENTS[:6], OPTIONS, None, None, None, None, None, options]))
    assert type(caught.value) is Undecodable


@pytest.mark.parametrize("flags", [1 << 5, 1 << 15, 0xFFFF])
def test_other_unknown_flags_are_kept(flags: int) -> None:
    assert unpack_envelope(pack_envelope(replace(PLAIN, flags=flags))).flags == flags


def test_what_was_read_before_the_fault_is_salvaged() -> None:
    data = raw(ELEMENTS)
    found: set[tuple[str | None, str | None, str | None]] = set()
    for end in range(len(data)):
        with pytest.raises(Undecodable, match="cut short") as caught:
            unpack_envelope(data[:end])
        found.add((caught.value.command_id, caught.value.name, caught.value.inbox))
    assert found == {(None, None, None), ("c-1", None, None), ("c-1", "Deposit", None), ("c-1", "Deposit", "inbox")}


def test_a_huge_id_is_not_salvaged() -> None:
    with pytest.raises(Undecodable) as caught:
        unpack_envelope(raw([1, "x" * (HEAD_LIMIT + 1), "Deposit"]))
    assert (caught.value.command_id, caught.value.name) == (None, "Deposit")


def test_a_payload_over_the_limit_is_undecodable_with_its_caller() -> None:
    data = pack_envelope(replace(PLAIN, payload=bytes(100_000), inbox="inbox"))
    with pytest.raises(Undecodable, match="the limit of its payload is 1000") as caught:
        unpack_envelope(data, PayloadLimits(max_bytes=1000))
    assert (caught.value.command_id, caught.value.inbox) == ("c-1", "inbox")


@pytest.mark.parametrize("field", ["command_id", "inbox", "correlation_id", "causation_id"])
def test_a_head_over_its_limit_is_refused(field: str) -> None:
    fits: dict[str, Any] = {field: "x" * (HEAD_LIMIT - 60)}
    pack_envelope(replace(PLAIN, **fits))
    too_long: dict[str, Any] = {field: "x" * HEAD_LIMIT}
    with pytest.raises(InvalidCommand, match=f"the limit is {HEAD_LIMIT}"):
        pack_envelope(replace(PLAIN, **too_long))


def test_what_has_a_limit_of_its_own_does_not_count_for_the_head() -> None:
    large = replace(PLAIN, entity_id="x" * ENTITY_ID_LIMIT, headers={"h": "x" * (HEADERS_LIMIT - 10)}, payload=bytes(2**20))
    assert unpack_envelope(pack_envelope(large)) == large


def test_headers_over_their_limit_are_refused() -> None:
    with pytest.raises(InvalidCommand, match=f"headers: .* bytes packed, the limit is {HEADERS_LIMIT}"):
        pack_envelope(replace(PLAIN, headers={str(n): "x" * 100 for n in range(200)}))


def test_an_entity_id_over_its_limit_is_refused() -> None:
    with pytest.raises(InvalidCommand, match="entity_id: 5000 bytes"):
        pack_envelope(replace(PLAIN, entity_id="x" * 5000))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"headers": {"a": 1}}, "headers: text by text; the value of 'a' is of type int"),
        ({"headers": {1: "a"}}, "headers: text by text"),
        ({"headers": {"a": "\ud800"}}, "headers: text with lone surrogates"),
        ({"command_id": "\ud800"}, "command_id: text with lone surrogates"),
        ({"entity_id": "\udfff"}, "entity_id: text with lone surrogates"),
        ({"inbox": object()}, "inbox: text, not object"),
        ({"ttl_ms": 2**64}, "a number beyond 64 bits"),
    ],
)
def test_what_cannot_be_packed_names_the_element(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidCommand, match=reason):
        pack_envelope(replace(PLAIN, **change))
