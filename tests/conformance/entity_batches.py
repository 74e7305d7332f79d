"""A handler that takes neighbours of one entity, for its tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from command_bus import Command, CommandBus, EntityId, EntityState, HandlerRegistry, RetryPolicy


class Append(Command[int], entity="log", retry=RetryPolicy(attempts=3, delay=0.01)):
    log: EntityId
    n: int


class Log(EntityState, entity="log"):
    last: int = -1


class Calls:
    """The calls of a handler, each with its numbers; those of `bad` make theirs fail, `times` times."""

    def __init__(self) -> None:
        self.made: list[list[int]] = []
        self.done: list[int] = []
        self.bad: set[int] = set()
        self.times = 1_000
        self.error: Callable[[], BaseException] = lambda: ValueError("poisoned")

    async def handle(self, commands: Sequence[Append]) -> Sequence[int]:
        numbers = [each.n for each in commands]
        self.made.append(numbers)
        await asyncio.sleep(0)
        if self.times and self.bad.intersection(numbers):
            self.times -= 1
            raise self.error()
        self.done += numbers
        return [10 * number for number in numbers]


def registry_of(function: Callable[..., Any], **options: Any) -> HandlerRegistry:
    registry = HandlerRegistry()
    registry.handles_many(Append, of="entity", **{"size": 8, **options})(function)
    return registry


async def run(bus: CommandBus, count: int, **options: Any) -> list[Any]:
    """Let commands wait in one line, then run them; return what their callers got."""
    replies = [asyncio.ensure_future(bus.call(Append(log="a", n=n), timeout=30, **options)) for n in range(count)]
    while (await bus.stats()).depth < count:
        await asyncio.sleep(0.01)
    async with bus.worker(concurrency=4):
        return await asyncio.gather(*replies, return_exceptions=True)
