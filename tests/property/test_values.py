"""Models of any shape: what is made of them comes back as the same values of the same classes, or is refused with a typed error."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal
from uuid import UUID

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, TypeAdapter, create_model

from command_bus import Command
from command_bus.errors import BadResult, InvalidCommand, RegistrationError
from command_bus.serialization.models import codec_for, reply_codec_for
from tests.tables.shapes import shape


class Color(enum.Enum):
    RED = "red"
    ONE = 1


class Size(enum.StrEnum):
    BIG = "big"


class First(BaseModel):
    id: int


class Second(BaseModel):
    id: int
    note: str = ""


class Derived(First):
    more: str = "m"


Kind = tuple[Any, Any]
"""An annotation, and a strategy of values of it."""

ZONES = st.none() | st.just(UTC) | st.builds(lambda minutes: timezone(timedelta(minutes=minutes)), st.integers(-720, 720))
SCALARS: list[Kind] = [
    (int, st.integers(-(2**63), 2**64)),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (bool, st.booleans()),
    (str, st.text(max_size=5)),
    (bytes, st.binary(max_size=5)),
    (type(None), st.none()),
    (date, st.dates()),
    (datetime, st.datetimes(timezones=ZONES)),
    (time, st.times()),
    (timedelta, st.timedeltas()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (UUID, st.uuids()),
    (Color, st.sampled_from(Color)),
    (Size, st.sampled_from(Size)),
    (Literal["a", "red"], st.sampled_from(["a", "red"])),
    (Literal[Color.RED, "red"], st.sampled_from([Color.RED, "red"])),
    (PurePosixPath, st.builds(PurePosixPath, st.sampled_from(["/", "a", "a/b"]))),
    (Annotated[int, Field(ge=0)], st.integers(0, 9)),
    (Annotated[int, BeforeValidator(lambda value: value * 2 if type(value) is int else value)], st.integers(0, 3)),
    (Annotated[str, AfterValidator(str.strip)], st.sampled_from(["a", " a"])),
    (First, st.builds(First, id=st.integers(0, 3))),
    (First, st.builds(Derived, id=st.integers(0, 3))),
    (Second, st.builds(Second, id=st.integers(0, 3), note=st.text(max_size=2))),
]
HASHABLE = [kind for kind in SCALARS if not (isinstance(kind[0], type) and issubclass(kind[0], BaseModel))]


def _of_items(kind: Kind) -> list[Kind]:
    annotation: Any
    annotation, values = kind
    return [
        (list[annotation], st.lists(values, max_size=2)),
        (tuple[annotation, ...], st.lists(values, max_size=2).map(tuple)),
        (dict[str, annotation], st.dictionaries(st.text(max_size=2), values, max_size=2)),
        (annotation | None, values | st.none()),
    ]


def _set_of(kind: Kind) -> Kind:
    annotation: Any
    annotation, values = kind
    return set[annotation], st.sets(values, max_size=2)


def _unions(one: Kind, other: Kind) -> Kind:
    return one[0] | other[0], one[1] | other[1]


def _model(fields: list[Kind]) -> Kind:
    named = {f"f{number}": kind for number, kind in enumerate(fields)}
    definitions: Any = {name: (annotation, ...) for name, (annotation, _) in named.items()}
    model = create_model("Inner", **definitions)
    return model, st.builds(model, **{name: values for name, (_, values) in named.items()})


SETS: Any = st.sampled_from(HASHABLE).map(_set_of)
KEYED: Any = st.tuples(st.sampled_from(HASHABLE), st.sampled_from(SCALARS)).map(
    lambda kinds: (dict[kinds[0][0], kinds[1][0]], st.dictionaries(kinds[0][1], kinds[1][1], max_size=2))
)
ANYTHING: Any = st.just((Any, st.one_of(*(values for _, values in SCALARS)) | st.tuples(st.integers())))
KINDS: Any = st.recursive(
    st.sampled_from(SCALARS) | SETS | KEYED | ANYTHING,
    lambda inner: (
        inner.flatmap(lambda kind: st.sampled_from(_of_items(kind)))
        | st.builds(_unions, inner, inner)
        | st.lists(inner, min_size=1, max_size=3).map(_model)
    ),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_what_is_made_comes_back_or_is_refused(data: st.DataObject) -> None:
    kind, values = data.draw(KINDS)
    value = data.draw(values)
    try:
        message_type: Any = create_model("Message", __base__=Command[None], field=(kind, ...))
        message = message_type(field=value)
        payload = codec_for(message_type).encode(message)
    except (RegistrationError, InvalidCommand, ValueError) as error:
        event(f"command: {type(error).__name__}")
    else:
        event("command: same")
        assert shape(codec_for(message_type).decode(payload).field) == shape(message.field)
    codec = reply_codec_for(kind)
    try:
        reply = codec.encode(value)
    except BadResult as error:
        event(f"reply: {type(error).__name__}")
    else:
        event("reply: same")
        assert shape(codec.decode(reply)) == shape(TypeAdapter(kind).validate_python(value, strict=True))
