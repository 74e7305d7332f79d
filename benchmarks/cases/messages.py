"""The commands that are measured, and their handlers, which do next to nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks.protocol import TEXT
from command_bus import Command, CommandContext, DurableContext, EntityId, EntityState, HandlerRegistry, Unique

__all__ = ["DURABLE", "HANDLERS", "KINDS", "Note", "Ping", "note", "registry"]

_AWAITED = 0.001
_IN_RUN = 100
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


KINDS: dict[str, type[Note]] = {"plain": Note, "once": NoteOnce, "low": NoteLow, "shared": NoteShared, "unique": NoteUnique}


class Bench(EntityState, entity="bench"):
    """The state of an entity: two hundred bytes."""

    count: int = 0
    name: str = TEXT
    owner: str = 2 * TEXT


class Ping(Command[None], entity="bench"):
    """Carries the time when it was sent; both clocks are the machine's."""

    entity: EntityId
    sent: float


class NoteSteps(Note, entity="bench", durable=True):
    """The same, with so many steps."""

    steps: int


class NoteCall(Note, entity="bench", durable=True):
    """The same, which calls another entity."""


class NoteAsk(Note, entity="bench"):
    """The same, which calls another entity as any handler can; nothing of that is stored."""


class NoteWait(Note, entity="bench", durable=True):
    """The same, which waits for a signal."""


class Called(Command[int], entity="called"):
    """The command that a `NoteCall` or a `NoteAsk` calls."""

    called: EntityId


def _steps(steps: int, entity: str, number: int) -> Note:
    return NoteSteps(entity=entity, number=number, steps=steps)


DURABLE: dict[str, Callable[[str, int], Note]] = {
    "steps0": partial(_steps, 0),
    "steps5": partial(_steps, 5),
    "steps10": partial(_steps, 10),
    "calling": lambda entity, number: NoteCall(entity=entity, number=number),
    "asking": lambda entity, number: NoteAsk(entity=entity, number=number),
    "waiting": lambda entity, number: NoteWait(entity=entity, number=number),
}
"""Makes a durable command of a kind, or what one is compared with."""


def note(number: int, entities: int, *, kind: str = "plain") -> Note:
    """Return the command of this number and kind, for so many entities."""
    entity = f"e{number % entities}"
    if kind in DURABLE:
        return DURABLE[kind](entity, number)
    if kind == "shared":
        return NoteShared(entity=entity, number=number, tenant=number % _TENANTS)
    return KINDS[kind](entity=entity, number=number)


def registry(kind: str, handled: Callable[[], None], waited: Callable[[float], None] | None = None) -> HandlerRegistry:
    """Return the handlers of a kind for all commands; `waited` gets the seconds that a `Ping` was under way."""
    made = HandlerRegistry()
    handler = HANDLERS[kind](handled)
    for each in KINDS.values():
        if kind != "run":
            made.handles(each)(handler)
        elif each is Note:
            made.handles_many(each, of="entity", size=_IN_RUN)(handler)

    _handle_durable(made, handled)

    @made.handles(Ping)
    async def ping(command: Ping) -> None:
        if waited is not None:
            waited(time.monotonic() - command.sent)

    return made


def _handle_durable(made: HandlerRegistry, handled: Callable[[], None]) -> None:
    """Register the handlers of durable commands, and of what they are compared with."""

    async def write(number: int) -> int:
        return number

    @made.handles(NoteSteps)
    async def step(command: NoteSteps, context: DurableContext) -> int:
        for number in range(command.steps):
            await context.step("write", write, number)
        handled()
        return command.number

    @made.handles(NoteCall)
    async def call(command: NoteCall, context: DurableContext) -> int:
        found = await context.call(Called(called=command.entity))
        handled()
        return found

    @made.handles(NoteAsk)
    async def ask(command: NoteAsk, context: CommandContext) -> int:
        assert context.bus is not None
        found = await context.bus.call(Called(called=command.entity), timeout=60)
        handled()
        return int(found)

    @made.handles(Called)
    async def called(command: Called) -> int:
        return len(str(command.called))

    @made.handles(NoteWait)
    async def wait(command: NoteWait, context: DurableContext) -> int:
        await context.signal("go")
        handled()
        return command.number


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


def _stateful(handled: Callable[[], None]) -> Any:
    async def stateful(command: Note, bench: Bench) -> int:
        handled()
        bench.count += 1
        return command.number

    return stateful


def _of_entity(handled: Callable[[], None]) -> Any:
    async def of_entity(commands: Sequence[Note]) -> list[int]:
        for _ in commands:
            handled()
        return [each.number for each in commands]

    return of_entity


HANDLERS: dict[str, Callable[[Callable[[], None]], Any]] = {
    "noop": _noop, "await": _awaiting, "sync": _blocking, "state": _stateful,
    "run": _of_entity,
}  # fmt: skip
"""By kind: returns at once, awaits a millisecond, runs in a thread, changes its entity's state, takes neighbours of one entity."""
