"""The commands of the promises, and handlers that record their starts."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

from command_bus.errors import Reject
from command_bus.handlers.registry import HandlerRegistry
from command_bus.messages.context import CommandContext
from command_bus.messages.durable import DurableContext
from command_bus.messages.message import Command, EntityId
from command_bus.messages.retry_policy import RetryPolicy

_RETRY = RetryPolicy(attempts=3, delay=0.05, jitter=0.0)


class Work(Command[int], entity="item", name="conformance.work", retry=_RETRY):
    """Returns its number; fails at its first `fails` attempts; waits where the log's gate is closed."""

    item: EntityId
    number: int
    fails: int = 0


class Once(Command[int], entity="item", name="conformance.once", delivery="at_most_once"):
    """Like `Work`, delivered at most once."""

    item: EntityId
    number: int


class Held(Command[int], entity="item", name="conformance.held"):
    """Returns its fence, from a thread, which cannot be cancelled; its first attempt waits to be released."""

    item: EntityId


class Parking(Command[int], entity="item", name="conformance.parking", retry=RetryPolicy(attempts=1), on_poison="park"):
    """Fails until the log is mended, and holds its entity."""

    item: EntityId
    number: int


class Forward(Command[None], entity="item", name="conformance.forward", retry=_RETRY):
    """Sends work to other entities with its settlement; fails at its first `fails` attempts."""

    item: EntityId
    fails: int = 0


class Journey(Command[list[int]], entity="item", name="conformance.journey", retry=_RETRY, durable=True):
    """Runs a step, calls two pieces of work, sleeps and waits for a signal; fails at its first `fails` runs after that."""

    item: EntityId
    fails: int = 0


class Refuse(Command[None], entity="item", name="conformance.refuse"):
    """Is rejected."""

    item: EntityId


class Unknown(Command[None], entity="item", name="conformance.unknown"):
    """Has no handler."""

    item: EntityId


class Log:
    """Records of the handlers.

    Attributes:
        started: Entity, number, attempt and fence of every attempt.
        overlaps: Attempts that started while another of their entity ran.
        most: Largest number of entities that ran at a time.
        gate: While it is cleared, `Work` and `Once` wait.
        mended: Whether `Parking` succeeds.
        release: Lets the first attempt of `Held` go on.
        journeys: Runs of the handler of `Journey`.
        steps: Runs of the functions of its steps.
    """

    def __init__(self, registry: HandlerRegistry) -> None:
        self.started: list[tuple[str, int, int, int]] = []
        self.running: Counter[str] = Counter()
        self.overlaps = 0
        self.most = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.mended = False
        self.release = threading.Event()
        self.journeys = self.steps = 0
        registry.handles(Work)(self.work)
        registry.handles(Once)(self.once)
        registry.handles(Held)(self.held)
        registry.handles(Parking)(self.parking)
        registry.handles(Refuse)(self.refuse)
        registry.handles(Forward)(self.forward)
        registry.handles(Journey)(self.journey)

    def of(self, item: str) -> list[int]:
        """Return the numbers of an entity in the order of their starts."""
        return [number for entity, number, _, _ in self.started if entity == item]

    async def work(self, command: Work, context: CommandContext) -> int:
        """Handle `Work`."""
        await self._run(str(command.item), command.number, context)
        if context.attempt <= command.fails:
            raise OSError("as planned")
        return command.number

    async def once(self, command: Once, context: CommandContext) -> int:
        """Handle `Once`."""
        await self._run(str(command.item), command.number, context)
        return command.number

    def held(self, command: Held, context: CommandContext) -> int:
        """Handle `Held`."""
        self.started.append((str(command.item), 0, context.attempt, context.fence))
        if context.attempt == 1:
            self.release.wait(30)
        return context.fence

    async def parking(self, command: Parking, context: CommandContext) -> int:
        """Handle `Parking`."""
        self.started.append((str(command.item), command.number, context.attempt, context.fence))
        if not self.mended:
            raise OSError("as planned")
        return command.number

    async def forward(self, command: Forward, context: CommandContext) -> None:
        """Send six pieces of work to two entities."""
        for number in range(6):
            context.send(Work(item=f"{command.item}-{number % 2}", number=number))
        if context.attempt <= command.fails:
            raise OSError("as planned")

    async def journey(self, command: Journey, context: DurableContext) -> list[int]:
        """Handle `Journey`."""
        self.journeys += 1
        stepped = await context.step("count", self._count)
        called = await context.all(*(context.call(Work(item=f"{command.item}-{n}", number=n)) for n in range(2)))
        await context.sleep(0.2)
        told = await context.signal("go", timeout=30, returns=int)
        if context.attempt <= command.fails:
            raise OSError("as planned")
        return [stepped, *called, told]

    async def _count(self) -> int:
        self.steps += 1
        return self.steps

    async def refuse(self, command: Refuse) -> None:
        """Handle `Refuse`."""
        raise Reject("as planned", code="planned", details={"left": 3})

    async def _run(self, item: str, number: int, context: CommandContext) -> None:
        self.overlaps += self.running[item] > 0
        self.running[item] += 1
        self.most = max(self.most, sum(count > 0 for count in self.running.values()))
        self.started.append((item, number, context.attempt, context.fence))
        try:
            await self.gate.wait()
            await asyncio.sleep(0.0005 * (number % 3))
        finally:
            self.running[item] -= 1
