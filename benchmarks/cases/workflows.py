"""A group beside as many plain commands whose results are kept: what a child of a workflow costs the server, and whether that is flat."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from benchmarks.case import Case
from benchmarks.figures import Sample
from benchmarks.ground import Ground
from command_bus import Command, CommandBus, DurableContext, EntityId, Envelope, HandlerRegistry
from command_bus.workflows import group

__all__ = ["ALL"]


class Part(Command[int], entity="part"):
    part: EntityId


_registry = HandlerRegistry()


@_registry.handles(Part)
async def work(command: Part) -> int:
    return len(str(command.part))


class Pages(Command[int], durable=True):
    """Sends many parts as groups of some."""

    groups: int
    size: int


@_registry.handles(Pages)
async def pages(command: Pages, context: DurableContext) -> int:
    parts = [[Part(part=f"{page}-{each}") for each in range(command.size)] for page in range(command.groups)]
    counts = await context.all(*(context.call(group(each, results=False)) for each in parts))
    return sum(each.completed for each in counts)


def paged(ground: Ground, size: int, groups: int) -> Sample:
    """Measure a durable handler that calls so many groups of a size, from the dispatch to its result."""
    size = ground.count(size)

    async def run() -> float:
        async with CommandBus(ground.url, namespace="bench-workflows", registry=_registry) as bus, bus.worker(concurrency=100):
            began = time.perf_counter()
            assert await bus.call(Pages(groups=groups, size=size), timeout=1200) == size * groups
            return time.perf_counter() - began

    with ground.spending() as spent:
        seconds = asyncio.run(run())
    return {"per_s": size * groups / seconds, **spent.per(size * groups)}


def drained(ground: Ground, size: int, groups: int, *, plain: bool) -> Sample:
    """Measure so many groups of a size, or plain commands, from the dispatch to the last result."""
    size = ground.count(size)
    with ground.spending() as spent:
        seconds = asyncio.run(_drain(ground.url, size, groups, plain=plain))
    return {"per_s": size * groups / seconds, **spent.per(size * groups)}


async def _drain(url: str, size: int, groups: int, *, plain: bool) -> float:
    async with CommandBus(url, namespace="bench-workflows", registry=_registry) as bus, bus.worker(concurrency=100):
        began = time.perf_counter()
        for number in range(groups):
            parts = [Part(part=f"{number}-{each}") for each in range(size)]
            if plain:
                await bus.dispatch_batch([Envelope(each, keep_result=True) for each in parts])
                await bus.wait_idle()
            else:
                await bus.call(group(parts), timeout=600)
        return time.perf_counter() - began


ALL = [
    Case("workflows, plain commands whose results are kept", "workflows", partial(drained, size=1_000, groups=2, plain=True)),
    Case("workflows, groups of 1,000", "workflows", partial(drained, size=1_000, groups=2, plain=False)),
    Case("workflows, a group of 4,000", "workflows", partial(drained, size=4_000, groups=1, plain=False)),
    Case("workflows, a page of 1,000", "workflows", partial(paged, size=1_000, groups=1)),
    Case("workflows, 20 pages of 1,000", "workflows", partial(paged, size=1_000, groups=20), most=3),
]
