"""States of a schedule's last firing when the next one is due, and what happens meanwhile: rows and columns of `test_overlaps.py`."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from command_bus import (
    Command,
    CommandBus,
    CommandContext,
    DurableContext,
    EntityId,
    HandlerRegistry,
    RetryPolicy,
)
from command_bus.testing.simulated.live import LiveServer, Process
from command_bus.transport.redis.maintenance.due_work import DueWork
from tests.conformance.put_service import until

__all__ = ["LASTS", "MEANWHILE", "REQUESTS", "Scene"]

LEASE = 1.0
REQUESTS = range(1, 16)
"""Behind which of its requests the process dies that fires."""


class Work(Command[None], entity="shop", retry=RetryPolicy(attempts=9, delay=0.0, jitter=0.0)):
    shop: EntityId


class Threaded(Work, entity="shop"): ...


class Failing(Work, entity="shop", retry=RetryPolicy(attempts=9, delay=60.0, jitter=0.0)): ...


class Once(Work, entity="shop", delivery="at_most_once"): ...


class Poisoned(Work, entity="shop", retry=RetryPolicy(attempts=1), on_poison="park"): ...


class Durable(Work, entity="shop", durable=True): ...


class Suspended(Work, entity="shop", durable=True): ...


class Scene:
    """A server, a schedule with `overlap="cancel"` whose first firing hangs, and workers that do not fire until they are let."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.server = LiveServer(time.monotonic)
        self.starts: Counter[str] = Counter()
        self.registry = HandlerRegistry()
        self.fires = asyncio.Event()
        self.first = self.second = ""
        self.holders: list[Process] = []
        self._live: list[tuple[CommandBus, Any]] = []
        self._declare()
        promote: Any = DueWork.promote

        async def promoted(due: DueWork) -> None:
            if self.fires.is_set():
                await promote(due)

        patch.setattr(DueWork, "promote", promoted)

    def bus(self, process: Process | None = None) -> CommandBus:
        return CommandBus(
            "redis://unused", clients=process or Process(self.server), registry=self.registry, lease=LEASE, grace=1.0
        )

    async def start(self) -> None:
        """Start a worker."""
        process = Process(self.server)
        bus = self.bus(process)
        worker = bus.worker()
        await worker.__aenter__()
        self.holders.append(process)
        self._live.append((bus, worker))

    async def stop(self) -> None:
        while self._live:
            bus, worker = self._live.pop()
            await worker.__aexit__(None, None, None)
            await bus.close()

    async def fire(self, bus: CommandBus) -> None:
        """Look at the schedule as a worker does."""
        await bus.schedules.firing.fire_due(["nightly"])

    def _declare(self) -> None:
        for kind, meets in MEETS.items():
            handler: Any = self._thread if kind is Threaded else self._handler(meets)
            self.registry.handles(kind)(handler)

    def _handler(self, meets: Callable[[Any], Awaitable[None]]) -> Callable[[Work, Any], Awaitable[None]]:
        async def handle(command: Work, context: CommandContext) -> None:
            if self._is_first(context):
                await meets(context)

        return handle

    def _thread(self, command: Work, context: CommandContext) -> None:
        if self._is_first(context):
            while not context.cancelled:
                time.sleep(0.01)
            raise InterruptedError

    def _is_first(self, context: Any) -> bool:
        self.starts[context.command_id] += 1
        return context.command_id in ("other", self.first)


async def _hang(context: CommandContext) -> None:
    await asyncio.sleep(60)


async def _fail(context: CommandContext) -> None:
    raise OSError


async def _run(context: DurableContext) -> None:
    await context.step("book", asyncio.sleep, 0.3)
    await context.sleep(60)


async def _suspend(context: DurableContext) -> None:
    await context.signal("never")


MEETS: dict[type[Work], Callable[[Any], Awaitable[None]]] = {
    Work: _hang, Once: _hang, Threaded: _hang, Failing: _fail, Poisoned: _fail, Durable: _run, Suspended: _suspend,
}  # fmt: skip
"""The work of the first firing, which never ends by itself."""


class Last(NamedTuple):
    """A row.

    Attributes:
        command: Of the schedule.
        begin: Returns when the first firing is what the row says.
        starts: How often the first firing is started at most.
        stays: Whether it is left to an operator.
    """

    command: Work
    begin: Callable[[Scene, CommandBus], Awaitable[None]]
    starts: int = 1
    stays: bool = False


async def _running(scene: Scene, bus: CommandBus) -> None:
    await until(lambda: scene.starts[scene.first])


async def _in_state(scene: Scene, bus: CommandBus, *states: str) -> None:
    await _running(scene, bus)
    await until(lambda: _is_in(bus, states))


async def _is_in(bus: CommandBus, states: tuple[str, ...]) -> bool:
    return (await bus.entity("shop", "s").show()).entity.state in states


async def _retrying(scene: Scene, bus: CommandBus) -> None:
    await _in_state(scene, bus, "retrying")


async def _suspended(scene: Scene, bus: CommandBus) -> None:
    await _in_state(scene, bus, "suspended")


async def _parked(scene: Scene, bus: CommandBus) -> None:
    await _in_state(scene, bus, "parked")


async def _behind(scene: Scene, bus: CommandBus) -> None:
    await until(lambda: scene.starts["other"])


async def _orphaned(scene: Scene, bus: CommandBus) -> None:
    await _running(scene, bus)
    scene.holders[0].kill()
    await scene.start()


LASTS = {
    "waits": Last(Work(shop="s"), _behind, starts=0),
    "runs": Last(Work(shop="s"), _running),
    "runs_in_a_thread": Last(Threaded(shop="s"), _running),
    "runs_at_most_once": Last(Once(shop="s"), _running),
    "waits_for_a_retry": Last(Failing(shop="s"), _retrying),
    "runs_durably": Last(Durable(shop="s"), _running, starts=2),
    "is_suspended": Last(Suspended(shop="s"), _suspended, starts=2),
    "lost_its_worker": Last(Work(shop="s"), _orphaned, starts=2),
    "is_parked": Last(Poisoned(shop="s"), _parked, stays=True),
}
"""The first firing. A durable one is started again, to end by itself; so is one whose worker has died."""


Meanwhile = Callable[[Scene, CommandBus], Awaitable[None]]


async def nothing(scene: Scene, bus: CommandBus) -> None:
    """Nothing happens."""


async def drained(scene: Scene, bus: CommandBus) -> None:
    await bus.entity("shop", "s").drain()
    await _while_it_is_ended(scene, bus)


async def paused(scene: Scene, bus: CommandBus) -> None:
    await bus.entity("shop", "s").pause("an operator's")
    await _while_it_is_ended(scene, bus)


async def _while_it_is_ended(scene: Scene, bus: CommandBus) -> None:
    scene.fires.set()
    await asyncio.sleep(1.5)
    assert await bus.entity("shop", "s").resume()


async def drained_once_it_is_asked(scene: Scene, bus: CommandBus) -> None:
    await scene.fire(bus)
    await asyncio.sleep(0.05)
    await drained(scene, bus)


async def resumed_all_the_time(scene: Scene, bus: CommandBus) -> None:
    scene.fires.set()
    for _ in range(75):
        await bus.entity("shop", "s").resume()
        await asyncio.sleep(0.02)


MEANWHILE: dict[str, Meanwhile] = {
    each.__name__: each for each in (nothing, drained, paused, drained_once_it_is_asked, resumed_all_the_time)
}
