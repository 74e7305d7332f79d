"""Return annotations and the replies that they fit; only what is certainly wrong is refused."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, NewType, NoReturn, Protocol, TypedDict, TypeVar, Union

import pytest
from pydantic import BaseModel
from typing_extensions import TypeAliasType

from command_bus.handlers.signatures import accepts_message, fits
from command_bus.messages.message import Command, EntityId, Message, Query

T = TypeVar("T")
UserId = NewType("UserId", int)
Number = TypeAliasType("Number", int | float)


class Receipt(BaseModel): ...


class PaidReceipt(Receipt): ...


class Page(BaseModel, Generic[T]):
    items: list[T]


class Box(Generic[T]): ...


class Colour(enum.Enum):
    RED = 1


class Row(TypedDict):
    a: int


class Sized(Protocol):
    def size(self) -> int: ...


FITTING: list[tuple[Any, Any]] = [
    (int, int),
    (bool, int),
    (int, float),
    (None, None),
    (None, type(None)),
    (Any, int),
    (int, Any),
    (int, object),
    (NoReturn, int),
    (int, int | None),
    (None, int | None),
    (int | None, Union[int, None]),  # noqa: UP007 - the older spelling is another type at run time
    (bool | None, int | str | None),
    (PaidReceipt, Receipt),
    (list[int], list[int]),
    (list, list[int]),
    (list[int], list),
    (list[bool], Sequence[int]),
    (dict[str, int], Mapping[str, int | None]),
    (tuple[int, ...], tuple[int, ...]),
    (tuple[int, int], tuple[int, ...]),
    (tuple[int, str], tuple[int, str]),
    (set[int], Iterable[int]),
    (Page[int], Page[int]),
    (Page, Page[int]),
    (Page[bool], Page[int]),
    (Box[int], Box[int]),
    (Literal["a"], str),
    (Literal["a"], Literal["a", "b"]),
    (bool, Literal[True, False]),
    (Colour, Literal[Colour.RED]),
    (Colour, Colour),
    (UserId, int),
    (int, UserId),
    (Number, float),
    (int, Number),
    (Annotated[int, "doc"], int),
    (int, Annotated[int, "doc"]),
    (T, int),
    (Row, dict[str, Any]),
    (dict[str, int], Row),
    (Receipt, Sized),
    ("SomewhereElse", int),
    (int, "SomewhereElse"),
]
WRONG: list[tuple[Any, Any]] = [
    (str, int),
    (None, int),
    (int, None),
    (int | None, int),
    (int | str, int),
    (float, int),
    (object, int),
    (Receipt, PaidReceipt),
    (dict, Receipt),
    (list[str], list[int]),
    (list[int | None], list[int]),
    (dict[str, str], dict[str, int]),
    (Sequence[int], list[int]),
    (tuple[int, int], tuple[int, str]),
    (Page[str], Page[int]),
    (Box[str], Box[int]),
    (Literal["c"], Literal["a", "b"]),
    (Literal["a"], int),
    (str, Literal["a"]),
    (UserId, str),
    (Number, int),
    (Annotated[str, "doc"], int),
    (str, int | None),
]


@pytest.mark.parametrize(("returned", "reply"), FITTING, ids=str)
def test_a_return_type_fits_its_reply_type(returned: Any, reply: Any) -> None:
    assert fits(returned, reply)


@pytest.mark.parametrize(("returned", "reply"), WRONG, ids=str)
def test_a_wrong_return_type_does_not_fit(returned: Any, reply: Any) -> None:
    assert not fits(returned, reply)


class Deposit(Command[int], entity="account"):
    account_id: EntityId


class BigDeposit(Deposit): ...


class Touch(Query[int]): ...


M = TypeVar("M", bound=Touch)


@pytest.mark.parametrize(
    "annotation",
    [
        Deposit,
        BigDeposit | Touch,
        Deposit | Touch,
        Command[int],
        Command[Any],
        Message[int],
        Command,
        BaseModel,
        object,
        Any,
        T,
        Sized,
        "Later",
    ],
    ids=str,
)
def test_a_base_or_union_takes_the_message(annotation: Any) -> None:
    assert accepts_message(annotation, BigDeposit if annotation == BigDeposit | Touch else Deposit)


@pytest.mark.parametrize("annotation", [BigDeposit, Touch, Query[int], Query, int, None, BigDeposit | Touch, M], ids=str)
def test_another_class_does_not(annotation: Any) -> None:
    assert not accepts_message(annotation, Deposit)
