"""Messages and replies: what comes back, and what is refused in which words."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    computed_field,
    create_model,
    field_validator,
    model_validator,
)

from command_bus.errors import InvalidCommand, RegistrationError
from command_bus.messages.message import Command
from command_bus.serialization.limits import PayloadLimits
from command_bus.serialization.models import MessageCodec, ReplyCodec, codec_for, reply_codec_for
from command_bus.serialization.msgpack import pack, unpack
from tests.unit.serialization.model_types import REF, TYPED, Color, Data, Deposit, Everything, Item, Tree


@pytest.mark.parametrize(("annotation", "value"), TYPED)
def test_fields_come_back_equal(annotation: Any, value: Any) -> None:
    message_type: Any = create_model("Message", __base__=Command[None], field=(annotation, ...))
    message = message_type(field=value)
    codec = codec_for(message_type)
    payload = codec.encode(message)
    found = codec.decode(payload)
    assert found == message
    assert type(found.field) is type(message.field)
    assert codec.encode(found) == payload


@given(st.text(min_size=1, max_size=50) | st.integers(-(10**9), 10**9), st.integers(-(2**63), 2**64 - 1))
def test_a_command_comes_back_equal(account_id: str | int, amount: int) -> None:
    message = Deposit(account_id=account_id, amount=amount)
    payload = codec_for(Deposit).encode(message)
    assert codec_for(Deposit).decode(payload) == message
    assert unpack(payload) == {"account_id": account_id, "amount": amount}


def test_the_order_of_fields_and_sets_is_fixed() -> None:
    class Tagged(Command[None]):
        b: set[str]
        a: int

    words = [f"w{n}" for n in range(50)]
    one = Tagged(b=set(words), a=1)
    other = Tagged(a=1, b={*words[::-1]})
    changed = one.model_copy(update={"a": 2}).model_copy(update={"a": 1})
    assert len({codec_for(Tagged).encode(message) for message in (one, other, changed)}) == 1


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"when": "2026-01-01T12:00:00+02:00"}, {"when": datetime(2026, 1, 1, 10, tzinfo=UTC)}),
        ({"day": "2026-01-01"}, {"day": date(2026, 1, 1)}),
        ({"price": "1.50", "ref": str(REF)}, {"price": Decimal("1.50"), "ref": REF}),
        ({"color": "red"}, {"color": Color.RED}),
        ({"pair": [1, "b"], "words": ["a", "a"]}, {"pair": (1, "b"), "words": {"a"}}),
        (
            {"item": {"x": 1, "tags": ["t"]}, "data": {"y": 1, "t": [2]}},
            {"item": Item(x=1, tags=frozenset("t")), "data": Data(1, (2,))},
        ),
        ({"either": str(REF)}, {"either": REF}),
        ({"ratio": 2}, {"ratio": 2.0}),
    ],
)
def test_what_other_languages_may_send(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    found = codec_for(Everything).decode(pack(fields))
    assert {name: getattr(found, name) for name in expected} == expected


def test_the_validators_of_the_class_run_on_both_sides() -> None:
    class Even(Command[None]):
        a: int
        b: int = 0

        @field_validator("a")
        @classmethod
        def even(cls, value: int) -> int:
            if value % 2:
                raise ValueError("odd")
            return value

        @model_validator(mode="after")
        def ordered(self) -> Even:
            if self.b > self.a:
                raise ValueError("not ordered")
            return self

    codec = codec_for(Even)
    assert codec.decode(codec.encode(Even(a=2))) == Even(a=2)
    with pytest.raises(InvalidCommand, match="a: Value error, odd"):
        codec.decode(pack({"a": 1}))
    with pytest.raises(InvalidCommand, match="Value error, not ordered"):
        codec.decode(pack({"a": 2, "b": 4}))


def test_fields_travel_under_their_own_names() -> None:
    class Address(BaseModel):
        zip_code: str = Field(alias="zipCode")

    class Move(Command[None]):
        model_config = ConfigDict(serialize_by_alias=True)
        to: Address = Field(validation_alias="To", serialization_alias="TO")
        note: str = Field("", alias="n")

    message = Move.model_validate({"To": Address(zipCode="1"), "n": "x"})
    payload = codec_for(Move).encode(message)
    assert unpack(payload) == {"to": {"zip_code": "1"}, "note": "x"}
    assert codec_for(Move).decode(payload) == message


def test_computed_fields_do_not_travel() -> None:
    class Priced(Command[None]):
        items: list[Item]

        @computed_field  # type: ignore[prop-decorator]
        @property
        def count(self) -> int:
            return len(self.items)

    message = Priced(items=[Item(x=1)])
    assert codec_for(Priced).decode(codec_for(Priced).encode(message)) == message
    assert "count" not in unpack(codec_for(Priced).encode(message))


def test_a_constructor_of_the_users_own_is_not_called_again() -> None:
    class Custom(Command[None]):
        a: int
        b: tuple[int, ...]

        def __init__(self, total: int) -> None:
            fields: dict[str, Any] = {"a": total, "b": (total,)}
            super().__init__(**fields)

    message = Custom(5)
    assert codec_for(Custom).decode(codec_for(Custom).encode(message)) == message


def test_names_may_be_defined_later() -> None:
    class Early(Command[None]):
        late: Late

    codec = codec_for(Early)
    with pytest.raises(RegistrationError, match="Late"):
        codec.prepare()
    with pytest.raises(InvalidCommand, match="Late"):
        codec.decode(pack({"late": {"x": 1}}))

    class Late(BaseModel):
        x: int

    Early.model_rebuild()
    message = Early(late=Late(x=1))
    assert codec.decode(codec.encode(message)) == message


def test_recursive_messages_keep_to_the_limits() -> None:
    tree = Tree(value=0)
    for value in range(1, 31):
        tree = Tree(value=value, children=[tree])
    codec = codec_for(Tree)
    assert codec.decode(codec.encode(tree)) == tree
    deep = Tree(value=0, children=[Tree(value=1, children=[tree])])
    with pytest.raises(InvalidCommand, match=r"Tree\.children\[0\]\.children\[0\].*nested deeper than 64"):
        codec.encode(deep)
    assert codec.decode(codec.encode(deep, PayloadLimits(max_nesting=70)), PayloadLimits(max_nesting=70)) == deep


def test_codecs_are_shared() -> None:
    assert codec_for(Deposit) is codec_for(Deposit)
    assert isinstance(codec_for(Deposit), MessageCodec)
    assert reply_codec_for(list[int]) is reply_codec_for(list[int])
    assert reply_codec_for(None) is reply_codec_for(None)
    unhashable = Annotated[int, Field(json_schema_extra={"a": []}), ["unhashable"]]
    assert isinstance(reply_codec_for(unhashable), ReplyCodec)
    assert reply_codec_for(unhashable) is reply_codec_for(unhashable)
    assert reply_codec_for(unhashable).decode(reply_codec_for(unhashable).encode(5)) == 5
