"""Commands whose handlers run in processes: of each kind of value, each thing that is left behind, and each exception.

A child process imports this module, and finds classes and handlers in it by name.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from pydantic import create_model

from command_bus import Command, EntityId, GiveUp, HandlerRegistry, Reject, RetryPolicy, Snooze
from command_bus.errors import RegistrationError
from tests.tables.command_contexts import THINGS
from tests.tables.values import ROWS, Row

__all__ = ["DEFINED", "ERRORS", "REFUSED", "Fails", "FailsHere", "Leaves", "registry"]

ONCE = RetryPolicy(attempts=1)
registry = HandlerRegistry()
DEFINED: dict[str, tuple[Row, type[Command[Any]], type[Command[Any]]]] = {}
"""Rows with a class whose handler returns the value that it gets, and one whose handler makes the value."""
REFUSED: dict[str, RegistrationError] = {}


def _of_module(name: str, found: Any) -> Any:
    """Give a class or function the name by which a child finds it."""
    found.__name__ = found.__qualname__ = name
    setattr(sys.modules[__name__], name, found)
    return found


def _declare(number: int, row: Row) -> None:
    def declared(name: str, reply: Any, **fields: Any) -> Any:
        base: Any = Command[reply]
        keywords = {"entity": "sheet", "retry": ONCE}
        made = create_model(name, __base__=base, __cls_kwargs__=keywords, __module__=__name__, sheet=(EntityId, ...), **fields)
        return _of_module(name, made)

    try:
        echo, make = declared(f"Echo{number}", row.kind, value=(row.kind, ...)), declared(f"Make{number}", row.kind)
    except RegistrationError as error:
        REFUSED[row.name] = error
        return

    def echoed(command: Any) -> Any:
        return command.value

    def made(command: Any) -> Any:
        return row.make()

    for kind, function in ((echo, echoed), (make, made)):
        registry.handles(kind, runs_in="process")(_of_module(f"run_{kind.__name__}", function))
    DEFINED[row.name] = row, echo, make


for _number, _row in enumerate(ROWS):
    _declare(_number, _row)


class Leaves(Command[str], entity="sheet", retry=ONCE):
    """Tells what is there, then spoils it."""

    sheet: EntityId
    thing: str


@registry.handles(Leaves, runs_in="process")
def leaves(command: Leaves) -> str:
    thing = THINGS[command.thing]
    seen = repr(thing.look())
    thing.spoil()
    return seen


class Custom(Exception):
    """An exception whose arguments are not those of its constructor."""

    def __init__(self, order: str, *, code: int) -> None:
        super().__init__(f"order {order}: {code}")


class Turned(Exception):
    """An exception that is something else when it is read."""

    def __reduce__(self) -> Any:
        return str, ("no exception",)


class Locked(Exception):
    """An exception that has what no other process can have."""

    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


class Silent(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Apart(BaseException):
    """No `Exception`."""


def _chained() -> Exception:
    error = ValueError("outer")
    error.__cause__ = KeyError("inner")
    error.add_note("a note")
    return error


ERRORS: dict[str, tuple[Callable[[], BaseException], str]] = {
    "an exception": (lambda: ValueError("no"), ""),
    "with a cause and a note": (_chained, ""),
    "a refusal": (lambda: Reject("no", code="no", details={"n": 1}), ""),
    "giving up": (lambda: GiveUp("no use"), ""),
    "a snooze too often": (lambda: Snooze(0.001, most=1), ""),
    "StopIteration": (lambda: StopIteration(5), ""),
    "StopAsyncIteration": (StopAsyncIteration, ""),
    "a TimeoutError": (lambda: TimeoutError("slow"), ""),
    "a group": (lambda: ExceptionGroup("two", [ValueError("a"), KeyError("b")]), ""),
    "a group with a refusal": (lambda: ExceptionGroup("two", [Reject("no", code="no")]), ""),
    "a group that gives up": (lambda: ExceptionGroup("two", [GiveUp("no use")]), ""),
    "a lone surrogate": (lambda: ValueError("\ud800"), ""),
    "a long text": (lambda: ValueError("x" * 100_000), ""),
    "of own arguments": (lambda: Custom("o-1", code=7), "Custom"),
    "with a lock": (Locked, "Locked"),
    "that is read as another": (Turned, "Turned"),
    "without a text": (Silent, ""),
    "a group with one of own arguments": (lambda: ExceptionGroup("two", [Custom("o-1", code=7)]), "ExceptionGroup"),
    "no Exception": (lambda: Apart("base"), "Apart"),
    "a group of these": (lambda: BaseExceptionGroup("two", [Apart("base")]), "BaseExceptionGroup"),
    "GeneratorExit": (GeneratorExit, "GeneratorExit"),
}
"""Exceptions, and what a `HandlerCrashed` names in their place; empty where they come out of a process as they are."""


class Fails(Command[None], entity="sheet", retry=ONCE):
    sheet: EntityId
    how: str


class FailsHere(Command[None], entity="sheet", retry=ONCE):
    """The same in a thread."""

    sheet: EntityId
    how: str


@registry.handles(Fails, runs_in="process")
def fails(command: Fails) -> None:
    error = ERRORS[command.how][0]()
    raise error


@registry.handles(FailsHere)
def fails_here(command: FailsHere) -> None:
    error = ERRORS[command.how][0]()
    raise error
