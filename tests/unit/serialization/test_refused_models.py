"""Payloads and fields that a model refuses; the texts of refusals hold no values."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    create_model,
)

from command_bus.errors import BadResult, InvalidCommand, PayloadTooLarge
from command_bus.messages.message import Command
from command_bus.serialization.limits import PayloadLimits
from command_bus.serialization.models import codec_for, reply_codec_for
from command_bus.serialization.msgpack import pack
from tests.unit.serialization.model_types import CARD, Cat, Deposit, Dog, Everything, Item, Tree


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"number": "12"}, "number: "),
        ({"number": 1.0}, "number: "),
        ({"number": True}, "number: "),
        ({"number": None}, "number: "),
        ({"flag": 1}, "flag: "),
        ({"flag": "true"}, "flag: "),
        ({"text": 5}, "text: "),
        ({"text": b"x"}, "text: "),
        ({"raw": "x"}, "raw: "),
        ({"ratio": "1.5"}, "ratio: "),
        ({"ratio": float("nan")}, "ratio: "),
        ({"ratio": float("inf")}, "ratio: "),
        ({"price": Decimal("NaN")}, "price: "),
        ({"color": "blue"}, "color: "),
        ({"pair": ["1", "b"]}, "pair.0: "),
        ({"pair": [1]}, "pair.1: "),
        ({"words": [1]}, "words.0: "),
        ({"ids": [1, "2"]}, "ids.1: "),
        ({"ids": {1}}, "ids: "),
        ({"counts": {"a": "1"}}, "counts.a: "),
        ({"counts": {1: 1}}, "counts.1.[key]: "),
        ({"either": "x"}, "either.int: "),
        ({"numbr": 1}, "numbr: Extra inputs are not permitted"),
        ({"item": {}}, "item.x: Field required"),
        ({"item": 5}, "item: "),
    ],
)
def test_what_the_model_refuses_names_its_place(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidCommand, match=f"^Everything: {re.escape(place)}"):
        codec_for(Everything).decode(pack(fields))


def test_python_callers_stay_strict() -> None:
    codec_for(Everything).prepare()
    refused: list[dict[str, Any]] = [
        {"pair": [1, "a"]},
        {"day": "2026-01-01"},
        {"color": "red"},
        {"price": "1"},
        {"data": {"y": 1}},
    ]
    for fields in refused:
        with pytest.raises(ValueError, match="Input should be"):
            Everything(**fields)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "the payload cannot be read: cut short"),
        (b"\xc1", "not MessagePack"),
        (pack([1]), "a map of fields, not a value of type list"),
        (pack(None), "a map of fields, not a value of type NoneType"),
        (pack({}), "account_id: Field required; amount: Field required"),
        (pack({1: 2}), "Keys should be strings|account_id: Field required"),
        (pack({"account_id": "", "amount": 1}), "must not be empty"),
        (b"\x91" * 1000, "nested too deeply|cut short"),
    ],
)
def test_a_payload_that_is_no_command(payload: bytes, reason: str) -> None:
    with pytest.raises(InvalidCommand, match=reason):
        codec_for(Deposit).decode(payload)


@pytest.mark.parametrize(
    "fields",
    [
        {"number": CARD},
        {"day": CARD},
        {"price": CARD},
        {"ref": CARD},
        {"color": CARD},
        {"item": CARD},
        {"ids": [CARD]},
        {"counts": {"a": CARD}},
        {"item": {"x": CARD, "day": CARD}},
        {"either": CARD},
        {"animal": {"kind": CARD}},
    ],
)
def test_the_text_of_a_refusal_has_no_values(fields: dict[str, Any]) -> None:
    class Paid(Everything):
        animal: Annotated[Cat | Dog, Field(discriminator="kind")] | None = None

    with pytest.raises(InvalidCommand) as caught:
        codec_for(Paid).decode(pack(fields))
    assert "4111" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_many_problems_are_summed_up() -> None:
    with pytest.raises(InvalidCommand, match=r"ids\.9: [^;]*; and 10 more$"):
        codec_for(Everything).decode(pack({"ids": ["x"] * 20}))
    with pytest.raises(InvalidCommand, match="Everything: 50000 problems"):
        codec_for(Everything).decode(pack({"ids": ["x"] * 50_000}))


def test_a_validator_that_breaks_makes_the_command_invalid() -> None:
    class Fragile(Command[None]):
        a: Annotated[int, AfterValidator(lambda value: {}[value])]

    with pytest.raises(InvalidCommand, match="one of its validators raised KeyError"):
        codec_for(Fragile).decode(pack({"a": 1}))


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (int, 2**64, "field"),
        (str, "\ud800", "field"),
        (dict[str, list[int]], {"a": [1, 2**70]}, "field.a[1]"),
        (Any, {"a": [object()]}, "field.a[0]"),
        (complex, 1j, "field"),
        (list[Item] | None, [Item(x=2**64)], "field[0].x"),
    ],
)
def test_a_field_that_cannot_be_sent_is_named(annotation: Any, value: Any, path: str) -> None:
    message_type: Any = create_model("Message", __base__=Command[None], field=(annotation, ...))
    with pytest.raises(InvalidCommand) as caught:
        codec_for(message_type).encode(message_type(field=value))
    assert caught.value.message.startswith(f"Message.{path}: ")


@pytest.mark.parametrize("annotation", [int, Item])
def test_a_field_that_is_not_of_its_type_is_refused_by_either_side(annotation: Any) -> None:
    message_type: Any = create_model("Message", __base__=Command[None], field=(annotation, ...))
    message = message_type.model_construct(field=CARD)
    with pytest.raises(InvalidCommand, match="field: ") as caught:
        codec_for(message_type).decode(codec_for(message_type).encode(message))
    assert "4111" not in str(caught.value)


def test_a_nested_value_that_is_not_of_its_type_is_not_sent() -> None:
    class Order(Command[None]):
        item: Item

    with pytest.raises(InvalidCommand, match=r"^Order\.item: not of the declared type") as caught:
        codec_for(Order).encode(Order.model_construct(item=CARD))
    assert "4111" not in str(caught.value)


def test_a_serializer_that_breaks_names_itself() -> None:
    def broken(value: int) -> int:
        raise ValueError("cannot serialize today")

    class Order(Command[None]):
        item: Annotated[int, PlainSerializer(broken)]

    with pytest.raises(InvalidCommand, match="cannot serialize today"):
        codec_for(Order).encode(Order(item=1))


def test_a_message_that_contains_itself_is_refused() -> None:
    tree = Tree(value=1)
    tree.children.append(tree)
    with pytest.raises(InvalidCommand, match=r"Tree.*Circular reference"):
        codec_for(Tree).encode(tree)
    with pytest.raises(BadResult, match=r"Tree.*cyclic reference"):
        reply_codec_for(Tree).encode(tree)


def test_a_payload_over_the_limit() -> None:
    class Upload(Command[None]):
        data: bytes

    with pytest.raises(PayloadTooLarge, match=r"^Upload: 1007 bytes packed, the limit is 1000") as caught:
        codec_for(Upload).encode(Upload(data=bytes(998)), PayloadLimits(max_bytes=1000))
    assert (caught.value.size, caught.value.limit) == (1007, 1000)
    with pytest.raises(InvalidCommand, match="1007 bytes, the limit is 1000"):
        codec_for(Upload).decode(codec_for(Upload).encode(Upload(data=bytes(998))), PayloadLimits(max_bytes=1000))
