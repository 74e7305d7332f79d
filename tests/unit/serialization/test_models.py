"""Messages and replies: what comes back, and what is refused in which words."""

from __future__ import annotations

import collections
import dataclasses
import enum
import ipaddress
import pathlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypeVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    AnyUrl,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Discriminator,
    Field,
    Json,
    PlainSerializer,
    PostgresDsn,
    RootModel,
    SecretStr,
    Tag,
    computed_field,
    create_model,
    field_validator,
    model_validator,
)
from typing_extensions import TypedDict

from command_bus.errors import BadResult, InvalidCommand, PayloadTooLarge, RegistrationError
from command_bus.messages.message import Command, EntityId
from command_bus.serialization.models import MessageCodec, ReplyCodec, codec_for, reply_codec_for
from command_bus.serialization.msgpack import Limits, pack, unpack

T = TypeVar("T")


class Deposit(Command[int], entity="account"):
    account_id: EntityId
    amount: int


class Color(enum.Enum):
    RED = "red"
    TWO = 2


class Ranges(enum.Enum):
    LOW = (0, 1)
    HIGH = (date(2026, 1, 1), None)
    ODD = object()


class Level(enum.IntEnum):
    LOW = 1


class Pair(NamedTuple):
    a: int
    b: str = "x"


class Record(TypedDict):
    a: int
    b: NotRequired[date]


@dataclasses.dataclass
class Data:
    y: int
    t: tuple[int, ...] = ()


class Item(BaseModel):
    x: int
    day: date | None = None
    tags: frozenset[str] = frozenset()


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class AliasedCat(BaseModel):
    kind: Literal["cat"] = Field(alias="Kind")
    lives: int


class AliasedDog(BaseModel):
    kind: Literal["dog"] = Field(alias="Kind")
    name: str


class Box(BaseModel, Generic[T]):
    content: T


def shape_of(value: Any) -> str:
    return str(value["kind"] if isinstance(value, dict) else value.kind)


HERE = timezone(timedelta(hours=2))
REF = UUID("12345678-1234-5678-1234-567812345678")

TYPED: list[tuple[Any, Any]] = [
    (int, 5),
    (float, 1.5),
    (float, 1),
    (bool, True),
    (str, "Grüße"),
    (bytes, b"\x00"),
    (datetime, datetime(2026, 1, 1, tzinfo=HERE)),
    (datetime, datetime(2026, 1, 1)),
    (date, date(2026, 1, 1)),
    (time, time(1, 2, 3)),
    (timedelta, timedelta(days=1)),
    (Decimal, Decimal("1.50")),
    (Fraction, Fraction(1, 3)),
    (UUID, REF),
    (Color, Color.TWO),
    (Level, Level.LOW),
    (Ranges, Ranges.LOW),
    (list[Ranges], [Ranges.HIGH, Ranges.LOW]),
    (Literal[Ranges.HIGH, Color.TWO], Ranges.HIGH),
    (Color | None, None),
    (Literal["a", Color.RED], Color.RED),
    (Literal["a", Color.RED], "a"),
    (int | UUID, REF),
    (int | UUID, 3),
    (str | date, "2026-01-01"),
    (str | date, date(2026, 1, 1)),
    (list[int] | set[int], {1}),
    (list[int] | set[int], [1]),
    (tuple[int, ...] | str, (1, 2)),
    (tuple[int, str], (1, "a")),
    (Pair, Pair(1)),
    (Record, {"a": 1, "b": date(2026, 1, 1)}),
    (Data, Data(1, (2,))),
    (Item, Item(x=1, day=date(2026, 1, 1), tags=frozenset({"t"}))),
    (list[Item], [Item(x=1)]),
    (dict[UUID, Item], {REF: Item(x=1)}),
    (dict[int, str], {1: "a"}),
    (dict[Color, int], {Color.RED: 1}),
    (dict[tuple[int, str], int], {(1, "a"): 2}),
    (dict[date, list[Decimal]], {date(2026, 1, 1): [Decimal(1)]}),
    (set[tuple[int, str]], {(1, "a")}),
    (set[Color], {Color.RED, Color.TWO}),
    (frozenset[frozenset[int]], frozenset({frozenset({1})})),
    (collections.deque[int], collections.deque([1])),
    (collections.OrderedDict[str, int], collections.OrderedDict(a=1)),
    (collections.Counter[str], collections.Counter("aab")),
    (collections.defaultdict[str, int], collections.defaultdict(int, a=1)),
    (Mapping[str, int], {"a": 1}),
    (Sequence[int], [1, 2]),
    (Cat | Dog, Dog(kind="dog", name="x")),
    (Annotated[Cat | Dog, Field(discriminator="kind")], Cat(kind="cat", lives=9)),
    (Annotated[AliasedCat | AliasedDog, Field(discriminator="kind")], AliasedCat(Kind="cat", lives=9)),
    (Annotated[Annotated[Cat, Tag("cat")] | Annotated[Dog, Tag("dog")], Discriminator(shape_of)], Dog(kind="dog", name="x")),
    (Box[tuple[int, ...]], Box[tuple[int, ...]](content=(1,))),
    (RootModel[list[int]], RootModel[list[int]]([1])),
    (ipaddress.IPv4Address, ipaddress.IPv4Address("1.2.3.4")),
    (ipaddress.IPv6Network, ipaddress.IPv6Network("::/64")),
    (pathlib.PurePosixPath, pathlib.PurePosixPath("/x")),
    (AnyUrl, AnyUrl("https://example.org/")),
    (PostgresDsn, PostgresDsn("postgres://u@h/db")),
    (SecretStr, SecretStr("s3cret")),
    (re.Pattern[str], re.compile("a+")),
    (ByteSize, ByteSize(5)),
    (Json[list[int]], "[1]"),
    (Annotated[int, PlainSerializer(str), BeforeValidator(int)], 5),
    (Any, {"a": [1, {"b": date(2026, 1, 1)}]}),
    (dict[str, Any], {"a": None, "b": {1, 2}}),
]


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


class Everything(Command[None]):
    number: int = 1
    ratio: float = 1.0
    flag: bool = True
    text: str = ""
    raw: bytes = b""
    when: datetime | None = None
    day: date | None = None
    price: Decimal = Decimal(1)
    ref: UUID = REF
    color: Color = Color.RED
    pair: tuple[int, str] = (1, "a")
    words: set[str] = Field(default_factory=set[str])
    item: Item | None = None
    data: Data | None = None
    ids: list[int] = Field(default_factory=list[int])
    counts: dict[str, int] = Field(default_factory=dict[str, int])
    either: int | UUID = 1


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


CARD = "4111-1111-1111-1111"


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


class Tree(Command[None]):
    value: int
    children: list[Tree] = Field(default_factory=list)


def test_recursive_messages_keep_to_the_limits() -> None:
    tree = Tree(value=0)
    for value in range(1, 31):
        tree = Tree(value=value, children=[tree])
    codec = codec_for(Tree)
    assert codec.decode(codec.encode(tree)) == tree
    deep = Tree(value=0, children=[Tree(value=1, children=[tree])])
    with pytest.raises(InvalidCommand, match=r"Tree\.children\[0\]\.children\[0\].*nested deeper than 64"):
        codec.encode(deep)
    assert codec.decode(codec.encode(deep, Limits(max_nesting=70)), Limits(max_nesting=70)) == deep


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
    with pytest.raises(BadResult, match=r"Tree.*checking it raised|Circular"):
        reply_codec_for(Tree).encode(tree)


def test_a_payload_over_the_limit() -> None:
    class Upload(Command[None]):
        data: bytes

    with pytest.raises(PayloadTooLarge, match=r"^Upload: 1007 bytes packed, the limit is 1000") as caught:
        codec_for(Upload).encode(Upload(data=bytes(998)), Limits(max_bytes=1000))
    assert (caught.value.size, caught.value.limit) == (1007, 1000)
    with pytest.raises(InvalidCommand, match="1007 bytes, the limit is 1000"):
        codec_for(Upload).decode(codec_for(Upload).encode(Upload(data=bytes(998))), Limits(max_bytes=1000))


def test_codecs_are_shared() -> None:
    assert codec_for(Deposit) is codec_for(Deposit)
    assert isinstance(codec_for(Deposit), MessageCodec)
    assert reply_codec_for(list[int]) is reply_codec_for(list[int])
    assert reply_codec_for(None) is reply_codec_for(None)
    unhashable = Annotated[int, Field(json_schema_extra={"a": []}), ["unhashable"]]
    assert isinstance(reply_codec_for(unhashable), ReplyCodec)
    assert reply_codec_for(unhashable) is reply_codec_for(unhashable)
    assert reply_codec_for(unhashable).decode(reply_codec_for(unhashable).encode(5)) == 5


# Replies.

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


def test_an_instance_of_a_subclass_is_a_reply() -> None:
    codec = reply_codec_for(Item)
    assert codec.decode(codec.encode(Special(x=1, extra=5))) == Item(x=1)


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
