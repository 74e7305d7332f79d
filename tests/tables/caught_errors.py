"""Errors that the function of a step may raise, and ways in which a handler goes on once it has caught one: of `test_caught_errors.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pydantic import BaseModel

from command_bus import BadStep, Command, CommandRejected, DurableContext, EntityId, GiveUp, Reject, Snooze

__all__ = ["ERRORS", "REFUSED", "WAYS", "Beside", "Mute"]


class Beside(Command[str], entity="beside"):
    name: EntityId


class Declined(Exception):
    """Its `__init__` takes other arguments than the error has."""

    def __init__(self, card: str, *, reason: str) -> None:
        super().__init__(f"{card}: {reason}")
        self.card = card
        self.reason = reason
        self.session = object()


class Slotted(Exception):
    __slots__ = ("code",)


class Several(Exception):
    """It has an attribute of the name that a group has."""

    exceptions = ("a", "b")


class Mute:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Sized(BaseModel):
    size: int


def _local() -> Exception:
    class Local(ValueError): ...

    LOCALS.append(Local)  # a module keeps its classes
    return Local("here")


LOCALS: list[type] = []


def _noted() -> Exception:
    error = ValueError("x")
    error.add_note("with a note")
    return error


def _caused() -> Exception:
    error = ValueError("x")
    error.__cause__ = error
    return error


def _invalid() -> Exception:
    try:
        Sized.model_validate({"size": "large"})
    except ValueError as error:
        return error
    raise AssertionError


ERRORS: dict[str, Callable[[], Exception]] = {
    "built in": lambda: ValueError("x", 2),
    "without arguments": ConnectionResetError,
    "of the system": lambda: FileNotFoundError(2, "no such file", "/x"),
    "a key": lambda: KeyError("k"),
    "a time limit": lambda: TimeoutError("late"),
    "an assertion": AssertionError,
    "the end of an iterator": StopAsyncIteration,
    "of text": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    "with an __init__ of its own": lambda: Declined("visa", reason="no cover"),
    "with slots": lambda: Slotted("x"),
    "with exceptions": lambda: Several("x"),
    "of a function": _local,
    "with a note": _noted,
    "its own cause": _caused,
    "with an object": lambda: ValueError(object, {"a": object}),
    "of 100,000 characters": lambda: ValueError("x" * 100_000),
    "half of a pair": lambda: ValueError("\ud800"),
    "a rejection": lambda: Reject("no", code="c", details={"a": 1}),
    "of another command": lambda: CommandRejected("no", code="c", command_id="1"),
    "giving up": lambda: GiveUp("no"),
    "a snooze": lambda: Snooze(5),
    "a bad step": lambda: BadStep("no"),
    "a group": lambda: ExceptionGroup("two", [ValueError("x"), ExceptionGroup("in", [Declined("visa", reason="no")])]),
}
REFUSED: dict[str, Callable[[], Exception]] = {
    "without a constructor": _invalid,
    "with an object that has no text": lambda: ValueError(Mute()),
    "a group with one of these": lambda: ExceptionGroup("one", [_invalid()]),
}


async def _answer() -> str:
    return "beside"


async def _step(context: DurableContext) -> None:
    await context.step("beside", _answer)


async def _sleep(context: DurableContext) -> None:
    await context.sleep(1)


async def _signal(context: DurableContext) -> None:
    try:
        await context.signal("never", timeout=1)
    except TimeoutError:
        return


async def _call(context: DurableContext) -> None:
    await context.call(Beside(name="b"))


async def _first(context: DurableContext) -> None:
    await context.first(context.sleep(1), context.signal("never"))


async def _all(context: DurableContext) -> None:
    await context.all(context.step("beside", _answer), context.sleep(1))


async def _gather(context: DurableContext) -> None:
    await asyncio.gather(context.sleep(1), context.step("beside", _answer))


async def _timeout(context: DurableContext) -> None:
    try:
        async with context.timeout(1):
            await context.signal("never")
    except TimeoutError:
        return


async def _compensate(context: DurableContext) -> None:
    context.compensate(Beside(name="b"))


async def _fails(context: DurableContext) -> None:
    """It fails for another reason, and the command is tried again."""
    await _step(context)
    raise LookupError("another")


WAYS: dict[str, Callable[[DurableContext], Awaitable[None]]] = {
    "step": _step,
    "sleep": _sleep,
    "signal": _signal,
    "call": _call,
    "first": _first,
    "all": _all,
    "gather": _gather,
    "timeout": _timeout,
    "compensate": _compensate,
    "fails": _fails,
}
