"""The commands that are measured, and their handlers, which do next to nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from benchmarks.protocol import TEXT, Handled
from command_bus import Command, EntityId, HandlerRegistry

__all__ = ["HANDLERS", "Note", "NoteOnce", "Ping", "note", "registry"]

_AWAITED = 0.001


class Note(Command[int], entity="bench"):
    """An entity, a number and sixty characters, as every peer's job has them."""

    entity: EntityId
    number: int
    text: str = TEXT


class NoteOnce(Note, entity="bench", delivery="at_most_once"):
    """The same under the other contract."""


class Ping(Command[None], entity="bench"):
    """Carries the time when it was sent; both clocks are the machine's."""

    entity: EntityId
    sent: float


def note(number: int, entities: int, *, once: bool = False) -> Note:
    """Return the command of this number, for so many entities."""
    return (NoteOnce if once else Note)(entity=f"e{number % entities}", number=number)


def registry(kind: str, handled: Handled, waited: Callable[[float], None] | None = None) -> HandlerRegistry:
    """Return the handlers of a kind for all commands; `waited` gets the seconds that a `Ping` was under way."""
    made = HandlerRegistry()
    handler = HANDLERS[kind](handled)
    made.handles(Note)(handler)
    made.handles(NoteOnce)(handler)

    @made.handles(Ping)
    async def ping(command: Ping) -> None:
        if waited is not None:
            waited(time.monotonic() - command.sent)

    return made


def _noop(handled: Handled) -> Any:
    async def noop(command: Note) -> int:
        handled()
        return command.number

    return noop


def _awaiting(handled: Handled) -> Any:
    async def awaiting(command: Note) -> int:
        await asyncio.sleep(_AWAITED)
        handled()
        return command.number

    return awaiting


def _blocking(handled: Handled) -> Any:
    def blocking(command: Note) -> int:
        handled()
        return command.number

    return blocking


HANDLERS: dict[str, Callable[[Handled], Any]] = {"noop": _noop, "await": _awaiting, "sync": _blocking}
"""By kind: returns at once, awaits a millisecond, runs in a thread."""
