"""Command ids in plain Python: those of texts and whole numbers never change, and different keys have different ids."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command_bus.spark.ids import command_id_of, unsupported_key_type

NASTY = st.one_of(st.none(), st.text(alphabet="\x00\x01\x02\x1f\\x", max_size=4))
BERLIN_SUMMER, BERLIN_WINTER = timezone(timedelta(hours=2)), timezone(timedelta(hours=1))


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (("order-1", "1"), "21821e32-f429-500d-bf56-e7ce462e2b19"),
        (("order-1", 1), "21821e32-f429-500d-bf56-e7ce462e2b19"),
        (("7",), "369bc832-0411-52ca-b675-776f83c634a8"),
        ((7,), "369bc832-0411-52ca-b675-776f83c634a8"),
        ((None, "x"), "facca7fc-f55a-58f8-a618-74d9d910568c"),
        (("C:\\new\\file", "ü€"), "1d33d371-eb65-5e0a-8a79-02fe6d52c228"),
        (("", ""), "66a3be74-3584-5c68-a4f3-4e8942d24aca"),
        ((True, date(2026, 1, 1), Decimal("-12.50")), "fd579c00-9ca6-52f4-920f-dcd9ea6115ae"),
        ((b"a",), command_id_of(("a",))),
    ],
)
def test_ids_are_stable(values: tuple[Any, ...], found: str) -> None:
    assert command_id_of(values) == found


def test_namespaces_give_different_ids() -> None:
    assert command_id_of(["a"], namespace=uuid.UUID(int=5)) == "600a9f98-ad12-5d66-9df6-e92006fe2034"


@settings(max_examples=500)
@given(st.lists(st.tuples(NASTY, NASTY), min_size=1, max_size=3))
def test_different_keys_have_different_ids(rows: list[tuple[str | None, str | None]]) -> None:
    left, right = [list(column) for column in zip(*rows, strict=True)]
    assert (command_id_of(left) == command_id_of(right)) == (left == right)


@pytest.mark.promise("A row's id depends on its key")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("x\x1fy", "z"), ("x", "y\x1fz")),
        ((None,), ("\x00",)),
        ((b"\x80",), (b"\x81",)),
        ((datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN_SUMMER),), (datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN_WINTER),)),
    ],
)  # fmt: skip
def test_56_keys_that_look_alike_have_different_ids(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assert command_id_of(one) != command_id_of(other)


def test_an_instant_has_one_id_in_all_zones() -> None:
    at = datetime(2026, 10, 25, 0, 30, 0, 500_000, tzinfo=UTC)
    assert (
        command_id_of([at]) == command_id_of([at.astimezone(BERLIN_SUMMER)]) == command_id_of(['"2026-10-25T00:30:00.500000Z"'])
    )
    assert command_id_of([at.replace(tzinfo=None)]) == command_id_of(["2026-10-25 00:30:00.5"])


@pytest.mark.parametrize("value", [1.5, ["a"], {"a": 1}, object()])
def test_unsupported_values_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="a command id is made of text, bytes"):
        command_id_of([value])


@pytest.mark.parametrize(
    ("kind", "refused"),
    [
        ("map<string,int>", True),
        ("array<map<string,int>>", True),
        ("struct<a:int,b:map<string,int>>", True),
        ("variant", True),
        ("struct<a:variant,b:int>", True),
        ("struct<variant:int,map:string>", False),
        ("array<string>", False),
        ("string", False),
    ],
)
def test_unsupported_types_are_refused(kind: str, refused: bool) -> None:
    assert unsupported_key_type(kind) is refused
