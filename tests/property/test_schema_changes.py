"""Any two types of a field: where nothing is said of the change, whatever the old class sends is read by the new one."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, Union
from uuid import UUID

import pytest

pytest.importorskip("typer")

from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, create_model

from command_bus import Command, InvalidCommand, RegistrationError
from command_bus.cli.schemas.examples import examples_of
from command_bus.cli.schemas.unread import unread
from command_bus.serialization.announced_schema import sound_schema
from command_bus.serialization.json_schemas import fields_schema
from command_bus.serialization.models import codec_for
from command_bus.serialization.msgpack import pack


class Form(NamedTuple):
    """An annotation, and values of it."""

    annotation: Any
    values: st.SearchStrategy[Any]


class Few(enum.StrEnum):
    A = "a"
    B = "b"


class More(enum.StrEnum):
    A = "a"
    B = "b"
    C = "c"


class Numbers(enum.IntEnum):
    ONE = 1
    TWO = 2


def bounded(low: int, size: int) -> Form:
    return Form(Annotated[int, Field(ge=low, le=low + size)], st.integers(low, low + size))


def text(least: int, size: int) -> Form:
    return Form(Annotated[str, Field(min_length=least, max_length=least + size)], st.text(min_size=least, max_size=least + size))


def listed(inner: Form) -> Form:
    return Form(list[inner.annotation], st.lists(inner.values, max_size=3))  # type: ignore[name-defined]


def mapped(inner: Form, keys: Form) -> Form:
    return Form(dict[keys.annotation, inner.annotation], st.dictionaries(keys.values, inner.values, max_size=3))  # type: ignore[name-defined]


def together(one: Form, other: Form) -> Form:
    return Form(
        Union[one.annotation, other.annotation],  # noqa: UP007 - NULL is no type
        one.values | other.values,
    )


def paired(one: Form, other: Form) -> Form:
    return Form(tuple[one.annotation, other.annotation], st.tuples(one.values, other.values))  # type: ignore[name-defined]


def nullable(form: Form) -> Any:
    """Return the annotation with NULL."""
    return together(form, Form(None, st.none())).annotation


def model(fields: dict[str, tuple[Form, bool]], *, closed: bool) -> Form:
    """Return a model; a field is required, or may be NULL by default."""
    given: dict[str, Any] = {
        name: (form.annotation, ...) if required else (nullable(form), None) for name, (form, required) in fields.items()
    }
    kind: type[BaseModel] = create_model("Inner", __config__=ConfigDict(extra="forbid" if closed else "ignore"), **given)
    values = {name: form.values if required else st.none() | form.values for name, (form, required) in fields.items()}
    return Form(kind, st.builds(kind, **values))


THREES = Annotated[int, Field(multiple_of=3)]
PRICE = Annotated[Decimal, Field(ge=0, le=5)]
KEYS = st.sampled_from([Form(str, st.text(max_size=3)), Form(int, st.integers(0, 9)), Form(UUID, st.uuids())])
SCALARS = st.sampled_from([
        Form(int, st.integers(-(2**40), 2**40)), Form(float, st.floats(allow_nan=False, allow_infinity=False)), Form(bool, st.booleans()),
        Form(str, st.text(max_size=5)), Form(bytes, st.binary(max_size=3)), Form(date, st.dates()), Form(UUID, st.uuids()),
        Form(datetime, st.datetimes(timezones=st.just(UTC))), Form(Decimal, st.decimals(allow_nan=False, allow_infinity=False, places=2)),
        Form(Few, st.sampled_from(Few)), Form(More, st.sampled_from(More)), Form(Numbers, st.sampled_from(Numbers)),
        Form(Literal["a"], st.just("a")), Form(Literal["a", "b"], st.sampled_from(["a", "b"])), Form(Literal[1, 2, 3], st.integers(1, 3)),
        Form(set[int], st.sets(st.integers(0, 9))), Form(PRICE, st.decimals(0, 5, places=1)),
        Form(Annotated[float, Field(gt=0, lt=5)], st.floats(0, 5, exclude_min=True, exclude_max=True)),
        Form(THREES, st.integers(-9, 9).map(lambda number: number * 3)), Form(None, st.none()),
    ])  # fmt: skip
PLAIN = st.one_of(
    SCALARS,
    st.builds(bounded, st.integers(-3, 3), st.integers(0, 5)),
    st.builds(text, st.integers(0, 2), st.integers(0, 3)),
)  # fmt: skip


def larger(inner: st.SearchStrategy[Form]) -> st.SearchStrategy[Form]:
    names = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.tuples(inner, st.booleans()), max_size=3)
    unions = st.builds(together, inner, inner)
    return st.one_of(
        st.builds(listed, inner),
        st.builds(mapped, inner, KEYS),
        unions,
        unions,
        st.builds(paired, inner, inner),
        st.builds(model, names, closed=st.booleans()),
    )


LEFT_OUT = (datetime, date, Decimal, PRICE, THREES)
"""Read from numbers, or as numbers, but not as the same value; and multiples, which a bound may hold to by chance."""
FORMS = st.recursive(PLAIN, larger, max_leaves=4)


def command(form: Form) -> Any:
    """Return a command with one field; unions in which a model would be read as another one are no commands."""
    try:
        return type("Pay", (Command[None],), {"__annotations__": {"x": form.annotation}, "__module__": __name__})
    except RegistrationError:
        assume(False)


def schema_of(kind: Any) -> dict[str, Any]:
    found = sound_schema(fields_schema(kind))
    assume(found is not None)
    return found or {}


def is_read(kind: Any, payload: bytes) -> bool:
    try:
        codec_for(kind).decode(payload)
    except InvalidCommand:
        return False
    return True


SLOW = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


@SLOW
@given(FORMS, FORMS, st.data())
def test_what_fits_is_read(old: Form, new: Form, data: st.DataObject) -> None:
    sent, read = command(old), command(new)
    gaps = unread(schema_of(sent), schema_of(read))
    event("fits" if not gaps else "breaks" if gaps[0].is_certain else "cannot tell")
    if gaps:
        return
    for _ in range(5):
        try:
            payload = codec_for(sent).encode(sent(x=data.draw(old.values)))
        except (InvalidCommand, ValueError):  # unions of which two take the value are refused where they are sent
            continue
        assert is_read(read, payload), payload


@SLOW
@given(FORMS)
def test_the_same_form_fits(form: Form) -> None:
    assert unread(schema_of(command(form)), schema_of(command(form))) == []


@SLOW
@given(SCALARS | st.builds(text, st.integers(0, 2), st.integers(1, 3)), PLAIN)
def test_what_breaks_is_seen_in_a_value(old: Form, new: Form) -> None:
    """The check is no false alarm, either: a value of the file is refused. Some types are left out."""
    sent, read = command(old), command(new)
    gaps = unread(schema_of(sent), schema_of(read))
    found = examples_of(sent, fields_schema(sent))
    assert found is not None
    if not gaps or not gaps[0].is_certain or new.annotation in LEFT_OUT or old.annotation in LEFT_OUT:
        return
    assert not all(is_read(read, pack({"x": each})) for each in (found[0]["x"], *found[1].get("x", []))), gaps
