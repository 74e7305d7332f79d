"""Unique keys on the test bus: debounce and windows in virtual time."""

from __future__ import annotations

from command_bus import Command, EntityId, HandlerRegistry, Unique
from command_bus.testing.bus import TestBus

registry = HandlerRegistry()
saved: list[int] = []


class Save(Command[None], entity="doc"):
    doc: EntityId
    n: int


@registry.handles(Save)
async def save(command: Save) -> None:
    saved.append(command.n)


async def test_two_minutes_of_keystrokes_are_saved_each_half_minute() -> None:
    saved.clear()
    typing = Unique("draft", wins="latest", debounce=2, max_wait=30)
    async with TestBus(registry) as bus:
        for second in range(120):
            await bus.dispatch(Save(doc="d-1", n=second), unique=typing)
            await bus.advance(1)
        await bus.advance(40)
    assert 4 <= len(saved) <= 5
    assert saved[-1] == 119, "the last one is not lost"
    assert saved == sorted(saved)


async def test_a_window_is_over_when_its_time_is() -> None:
    saved.clear()
    throttled = Unique("digest", window=100)
    async with TestBus(registry) as bus:
        for n in range(12):
            await bus.dispatch(Save(doc="d-1", n=n), unique=throttled)
            await bus.advance(25)
    assert saved == [0, 4, 8]
