"""The parts that tests of schedules share: a clock that the test sets, commands, and a worker that stands still in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from command_bus import Command, CommandBus, EntityId
from command_bus.scheduling import firing as firing_module
from command_bus.scheduling.firing import ScheduleFiring
from command_bus.transport.ports.schedules import Firing

__all__ = ["MINUTE", "Clock", "Killed", "Poll", "Stopped", "Sweep", "fire", "ids", "raw"]

MINUTE = 60_000


class Poll(Command[None], entity="shop"):
    shop: EntityId
    note: str = ""


class Sweep(Command[None]):
    what: str = "all"


class Clock:
    """The time by which schedules are judged, on every bus of a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ms = 1_800_000_000_000
        self.behind_ms = 0
        """By how much the worker's clock is behind the server's."""
        monkeypatch.setattr(firing_module, "wall_ms", lambda: self.ms - self.behind_ms)

    def rule(self, bus: CommandBus) -> CommandBus:
        entities: Any = bus.session.transport.operator.entities

        async def now_ms() -> int:
            return self.ms

        entities.now_ms = now_ms
        return bus


async def ids(bus: CommandBus, shop: str = "7", kind: str = "shop") -> list[str]:
    """Return the command ids that wait in a line, in order, from where no worker takes them."""
    found = (await bus.entity(kind, shop).show(waiting=5000)).waiting
    head = (await bus.entity(kind, shop).show(waiting=0)).head
    return [each.command_id for each in ([head] if head else [])] + [each.command_id for each in found if each != head]


async def fire(bus: CommandBus, *names: str) -> Sequence[str]:
    """Fire until nothing more is due; return what is left."""
    left: Sequence[str] = ()
    for _ in range(2000):
        done, left = await bus.schedules.firing.fire_due(names)
        due = await bus.session.transport.schedules.due_at(names)
        now = await bus.session.transport.operator.entities.now_ms()
        if not done or not any(at is not None and at <= now for name, at in zip(names, due, strict=True) if name not in left):
            return left
    raise AssertionError("always something due")


async def raw(bus: CommandBus, name: str) -> bytes | None:
    return (await bus.session.transport.schedules.read([name]))[0]


class Killed(Exception):
    """The process has died at a step."""


class Stopped:
    """A worker that stands still behind the pin, and goes on much later."""

    def __init__(self, bus: CommandBus) -> None:
        self._bus = bus
        self._store = bus.session.transport.schedules

    async def pin(self, name: str) -> list[Firing]:
        """Pin what is due; return the firings that this worker would send."""
        kept: list[Firing] = []
        transport: Any = self._bus.session.transport
        store = self._store

        class Halting:
            def __getattr__(self, attribute: str) -> Any:
                return getattr(store, attribute)

            async def fire(self, firings: Sequence[Firing]) -> Any:
                kept.extend(firings)
                raise Killed

        transport.schedules = Halting()
        with pytest.raises(Killed):
            await ScheduleFiring(self._bus.session).fire_due([name])
        transport.schedules = store
        return kept

    async def go_on(self, firings: Sequence[Firing]) -> list[str]:
        return list(await self._store.fire(firings))
