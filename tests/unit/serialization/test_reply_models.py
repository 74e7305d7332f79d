"""Typed replies: what comes back equal, and what is refused."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from pydantic import (
    Json,
)

from command_bus.errors import BadResult, RegistrationError
from command_bus.serialization.models import reply_codec_for
from command_bus.serialization.msgpack import pack
from tests.unit.serialization.model_types import CARD, REF, TYPED, Cat, Color, Deposit, Item, Tree

REPLIES = [
    *TYPED,
    (type(None), None),
    (None, None),
    (Deposit, Deposit(account_id="a", amount=1)),
    (float, float("inf")),
    (Tree, Tree(value=1)),
]


@pytest.mark.parametrize(("reply_type", "value"), [item for item in REPLIES if item[0] != Json[list[int]]])  # that is parsed text
def test_replies_come_back_equal(reply_type: Any, value: Any) -> None:
    codec = reply_codec_for(reply_type)
    found = codec.decode(codec.encode(value))
    assert found == value
    assert type(found) is (float if reply_type is float else type(value))


def test_a_dict_may_stand_for_a_model() -> None:
    assert reply_codec_for(Item).encode({"x": 1}) == reply_codec_for(Item).encode(Item(x=1))


class Special(Item):
    extra: int = 0


def test_an_instance_of_a_subclass_is_no_reply() -> None:
    codec = reply_codec_for(Item)
    with pytest.raises(BadResult, match="a Special comes back as a Item"):
        codec.encode(Special(x=1, extra=5))


@pytest.mark.parametrize(
    ("reply_type", "value", "expected", "found"),
    [
        (int, "5", "int", "str"),
        (int, True, "int", "bool"),
        (int, 5.0, "int", "float"),
        (int, None, "int", "None"),
        (str, 5, "str", "int"),
        (None, 5, "None", "int"),
        (Item, {"x": "1"}, "Item", "dict"),
        (Item, Cat(kind="cat", lives=1), "Item", "Cat"),
        (list[Item], [Item(x=1), 5], r"list\[tests\..*\.Item\]", "list"),
        (Color, "red", "Color", "str"),
        (tuple[int, int], [1, 2], r"tuple\[int, int\]", "list"),
        (date, "2026-01-01", "date", "str"),
        (int | None, "x", "int | None", "str"),
    ],
)
def test_a_reply_of_another_type_is_refused(reply_type: Any, value: Any, expected: str, found: str) -> None:
    with pytest.raises(BadResult, match=rf"the reply is {expected.replace(' | ', ' [|] ')}, the handler returned {found}: "):
        reply_codec_for(reply_type).encode(value)


@pytest.mark.parametrize(
    ("reply_type", "value", "reason"),
    [
        (Any, object(), "a value of type object cannot be sent"),
        (Any, {"a": [lambda: 1]}, r"a\[0\]: a value of type function"),
        (int, 2**64, "an int beyond 64 bits"),
        (str, "\ud800", "surrogates"),
        (bytes, bytes(2 * 1024 * 1024), "the limit is 1048576"),
        (complex, 1j, "complex"),
        (type(REF), "x", "the handler returned str"),
        (object, iter(()), "Iterator cannot be sent"),
    ],
)
def test_a_reply_that_cannot_be_sent_is_refused(reply_type: Any, value: Any, reason: str) -> None:
    with pytest.raises(BadResult, match=reason):
        reply_codec_for(reply_type).encode(value)


def test_a_refused_reply_does_not_tell_its_value() -> None:
    for reply_type in (int, Item, list[int], Color):
        with pytest.raises(BadResult) as caught:
            reply_codec_for(reply_type).encode(CARD)
        assert "4111" not in str(caught.value)


class Opaque:
    pass


def test_a_type_that_cannot_be_sent() -> None:
    codec = reply_codec_for(Opaque)
    with pytest.raises(RegistrationError, match="the reply type Opaque cannot be sent"):
        codec.prepare()
    with pytest.raises(BadResult, match="the reply type Opaque cannot be sent"):
        codec.encode(Opaque())
    with pytest.raises(BadResult, match="the reply type Opaque cannot be sent"):
        codec.decode(b"\xc0")


@pytest.mark.parametrize(
    ("reply_type", "data", "reason"),
    [
        (int, pack("5"), "the reply is not int as this process knows it"),
        (int, pack(CARD), "the reply is not int"),
        (Item, pack({"x": CARD}), "x: Input should be a valid integer"),
        (None, pack(5), "the reply is not None"),
        (int, b"", "the reply cannot be read: cut short"),
        (int, b"\xc1" + CARD.encode(), "the reply cannot be read"),
    ],
)
def test_bytes_that_are_another_reply(reply_type: Any, data: bytes, reason: str) -> None:
    with pytest.raises(BadResult, match=reason) as caught:
        reply_codec_for(reply_type).decode(data)
    assert "4111" not in str(caught.value)
