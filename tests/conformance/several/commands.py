"""Commands of several entities, their handlers, and a record of what ran, for the tests of this folder."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import pytest

from command_bus import (
    Command,
    CommandBus,
    CommandContext,
    DurableContext,
    EntityId,
    EntityOf,
    Reject,
    RetryPolicy,
)
from tests.conformance.conftest import Sandbox

ONCE = RetryPolicy(attempts=1)


class Deposit(Command[str], entity="account", retry=ONCE):
    account: EntityId
    note: str = ""


class Transfer(Command[str], entity="account", retry=RetryPolicy(attempts=3, delay=0.01), on_poison="park"):
    source: EntityId
    target: EntityId
    note: str = ""


class Skipped(Command[str], entity="account", retry=ONCE, on_poison="skip"):
    source: EntityId
    target: EntityId
    note: str = ""


class Pay(Command[None], entity="order"):
    order: EntityId
    account: Annotated[str, EntityOf("account")]


class Many(Command[None], entity="account"):
    first: EntityId
    second: EntityId
    third: EntityId
    fourth: EntityId
    fifth: EntityId
    sixth: EntityId
    seventh: EntityId
    eighth: EntityId


class Lasting(Command[None], entity="account", durable=True):
    source: EntityId
    target: EntityId


class Log:
    """A record of what ran: notes by entity, in the order of the ends, and what runs now."""

    def __init__(self) -> None:
        self.ended: dict[str, list[str]] = defaultdict(list)
        self.fences: dict[str, list[int]] = defaultdict(list)
        self.running: set[str] = set()
        self.failing: dict[str, int] = {}
        self.gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    @asynccontextmanager
    async def run(self, note: str, context: CommandContext, *entities: str) -> AsyncIterator[None]:
        assert self.running.isdisjoint(entities), f"{self.running & {*entities}} has two at once"
        self.running.update(entities)
        try:
            if note.startswith("gate"):
                await self.gates[note].wait()
            await asyncio.sleep(0)
            if self.failing.get(note, 0) > 0:
                self.failing[note] -= 1
                raise ValueError(note)
            yield
            for entity in dict.fromkeys(entities):
                self.ended[entity].append(note)
                self.fences[entity].append(context.fence)
        finally:
            self.running.difference_update(entities)


@pytest.fixture
def log(sandbox: Sandbox) -> Log:
    log = Log()

    @sandbox.registry.handles(Deposit)
    async def deposit(command: Deposit, context: CommandContext) -> str:
        async with log.run(command.note, context, str(command.account)):
            return command.note

    @sandbox.registry.handles(Transfer)
    async def transfer(command: Transfer, context: CommandContext) -> str:
        async with log.run(command.note, context, str(command.source), str(command.target)):
            return command.note

    @sandbox.registry.handles(Skipped)
    async def skipped(command: Skipped, context: CommandContext) -> str:
        async with log.run(command.note, context, str(command.source), str(command.target)):
            if command.note == "rejected":
                raise Reject("no")
            return command.note

    @sandbox.registry.handles(Pay)
    async def pay(command: Pay, context: CommandContext) -> None:
        async with log.run("pay", context, f"order {command.order}", command.account):
            pass

    @sandbox.registry.handles(Many)
    async def many(command: Many, context: CommandContext) -> None:
        async with log.run("many", context, *(str(getattr(command, name)) for name in Many.model_fields)):
            pass

    @sandbox.registry.handles(Lasting)
    async def lasting(command: Lasting, context: DurableContext) -> None:
        await context.sleep(0.3)
        async with log.run("lasting", context, str(command.source), str(command.target)):
            pass

    return log


async def depth_of(bus: CommandBus) -> int:
    return (await bus.stats()).depth


async def is_empty(bus: CommandBus) -> bool:
    stats = await bus.stats()
    return stats.depth == 0 and stats.entities == 0


async def holds(value: bool) -> bool:
    return value


async def has_depth(bus: CommandBus, depth: int) -> bool:
    return await depth_of(bus) == depth


async def has_letters(bus: CommandBus, count: int) -> bool:
    return len([each async for each in bus.dead_letters.list()]) == count


async def are(bus: CommandBus, states: dict[str, str]) -> bool:
    return {each.name: each.state for each in (await bus.entities.list()).entities} == states
