"""The commands that are measured, and their handlers, which do next to nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from benchmarks.protocol import TEXT
from command_bus import Command, EntityId, HandlerRegistry, Unique

__all__ = ["HANDLERS", "KINDS", "Note", "Ping", "note", "registry"]

_AWAITED = 0.001
_TENANTS = 100


class Note(Command[int], entity="bench"):
    """An entity, a number and sixty characters, as every peer's job has them."""

    entity: EntityId
    number: int
    text: str = TEXT


class NoteOnce(Note, entity="bench", delivery="at_most_once"):
    """The same under the other contract."""


class NoteLow(Note, entity="bench", priority="low"):
    """The same behind all others."""


class NoteShared(Note, entity="bench", fair_by="tenant"):
    """The same in the share of a tenant."""

    tenant: int


class NoteUnique(Note, entity="bench", unique=Unique()):
    """The same, of which one per entity waits."""


class Ping(Command[None], entity="bench"):
    """Carries the time when it was sent; both clocks are the machine's."""

    entity: EntityId
    sent: float


KINDS: dict[str, type[Note]] = {"plain": Note, "once": NoteOnce, "low": NoteLow, "shared": NoteShared, "unique": NoteUnique}


def note(number: int, entities: int, *, kind: str = "plain") -> Note:
    """Return the command of this number and kind, for so many entities."""
    entity = f"e{number % entities}"
    if kind == "shared":
        return NoteShared(entity=entity, number=number, tenant=number % _TENANTS)
    return KINDS[kind](entity=entity, number=number)


def registry(kind: str, handled: Callable[[], None], waited: Callable[[float], None] | None = None) -> HandlerRegistry:
    """Return the handlers of a kind for all commands; `waited` gets the seconds that a `Ping` was under way."""
    made = HandlerRegistry()
    handler = HANDLERS[kind](handled)
    for each in KINDS.values():
        made.handles(each)(handler)

    @made.handles(Ping)
    async def ping(command: Ping) -> None:
        if waited is not None:
            waited(time.monotonic() - command.sent)

    return made


def _noop(handled: Callable[[], None]) -> Any:
    async def noop(command: Note) -> int:
        handled()
        return command.number

    return noop


def _awaiting(handled: Callable[[], None]) -> Any:
    async def awaiting(command: Note) -> int:
        await asyncio.sleep(_AWAITED)
        handled()
        return command.number

    return awaiting


def _blocking(handled: Callable[[], None]) -> Any:
    def blocking(command: Note) -> int:
        handled()
        return command.number

    return blocking


HANDLERS: dict[str, Callable[[Callable[[], None]], Any]] = {"noop": _noop, "await": _awaiting, "sync": _blocking}
"""By kind: returns at once, awaits a millisecond, runs in a thread."""
