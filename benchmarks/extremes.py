"""Costs of rare extremes: `python -m benchmarks.extremes [--count N] [--seconds S] [CASE …]`.

* `purge`: N parked entities are purged.
* `due`: N delayed commands of as many entities are due at one moment; how late each starts, with one worker.
* `idle`: a worker with 256 shards and nothing to do; its processor time.
* `unknown`: N entities wait for a newer worker; what a call to a known command takes, and how often the others are offered.

Each has a server of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import sys
import time
from asyncio.subprocess import DEVNULL
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from command_bus import Command, CommandBus, EntityId, HandlerRegistry, RetryPolicy
from command_bus.embedded import EmbeddedServer

NAMESPACE = "extremes"
_TOGETHER = 1000
registry = HandlerRegistry()
started: dict[str, float] = {}


@dataclass(frozen=True)
class Extent:
    """The server and the size of a measurement.

    Attributes:
        url: Of an empty server.
        count: Entities.
        seconds: For which is measured.
    """

    url: str
    count: int
    seconds: float

    def pages(self) -> list[range]:
        """Return the numbers of the entities, in pages."""
        return [range(start, min(start + _TOGETHER, self.count)) for start in range(0, self.count, _TOGETHER)]


class Fail(Command[None], entity="fail", retry=RetryPolicy(attempts=1), on_poison="park"):
    """Parks its entity."""

    fail: EntityId


class Late(Command[None], entity="late"):
    """Notes when it starts."""

    late: EntityId


class Known(Command[int], entity="known"):
    """Is called."""

    known: EntityId


class Newer(Command[None], entity="newer"):
    """Has no handler."""

    newer: EntityId


@registry.handles(Fail)
async def fail(command: Fail) -> None:
    raise OSError(f"{command.fail} fails")


@registry.handles(Late)
async def late(command: Late) -> None:
    started[str(command.late)] = time.time()


@registry.handles(Known)
async def known(command: Known) -> int:
    return len(str(command.known))


def bus(url: str | None = None, **settings: int) -> CommandBus:
    """Make a bus, for a worker and for each case."""
    return CommandBus(url, namespace=NAMESPACE, registry=registry, **settings)  # type: ignore[arg-type]


async def purge(extent: Extent) -> None:
    """Park entities, then purge them."""
    async with bus(extent.url) as opened:
        async with opened.worker():
            for page in extent.pages():
                await opened.dispatch_batch(Fail(fail=f"f-{number}") for number in page)
            while (await opened.stats()).parked < extent.count:  # noqa: ASYNC110 - the server publishes no such event
                await asyncio.sleep(0.1)
        began = time.perf_counter()
        purged = await opened.entities.purge()
        print(f"purge    {purged:,} parked entities in {time.perf_counter() - began:.1f} s")


async def due(extent: Extent) -> None:
    """Let delayed commands become due at one moment."""
    async with bus(extent.url) as opened:
        at = time.time() + 2 + extent.count / 2000
        for page in extent.pages():
            await asyncio.gather(*(opened.dispatch(Late(late=f"l-{number}"), delay=at - time.time()) for number in page))
        early = at - time.time()
        async with opened.worker():
            await opened.wait_idle(600)
        lateness = [moment - at for moment in started.values()]
        print(
            f"due      {len(lateness):,} commands at one moment: late by {median(lateness):.1f} s in the median, "
            f"{max(lateness):.1f} s at most{'' if early > 0 else ' (they were due before all were sent)'}"
        )


async def idle(extent: Extent) -> None:
    """Do nothing with many shards."""
    async with bus(extent.url, shards=256) as opened, opened.worker():
        await asyncio.sleep(3)
        began, used = time.perf_counter(), _processor()
        await asyncio.sleep(extent.seconds)
        part = (_processor() - used) / (time.perf_counter() - began)
        print(f"idle     a worker with 256 shards: {part:.1%} of a core")


async def unknown(extent: Extent) -> None:
    """Call a known command beside many that are unknown to the only worker."""
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "command_bus", "worker", "benchmarks.extremes:bus",
        env={**os.environ, "COMMAND_BUS_URL": extent.url}, stdout=DEVNULL, stderr=DEVNULL,
    )  # fmt: skip
    try:
        async with bus(extent.url) as opened:
            await opened.call(Known(known="k"), timeout=30)
            print(f"unknown  nothing waits: {await _called(opened, extent.seconds)}")
            for page in extent.pages():
                await opened.dispatch_batch(Newer(newer=f"n-{number}") for number in page)
            await asyncio.sleep(extent.seconds)
            print(f"unknown  {extent.count:,} entities wait for a newer worker: {await _called(opened, extent.seconds)}")
    finally:
        worker.terminate()
        await worker.wait()


async def _called(opened: CommandBus, seconds: float) -> str:
    """Call for so many seconds; return the latencies and the rate of offers as text."""
    times: list[float] = []
    began, before = time.perf_counter(), (await opened.stats()).handed_back
    while time.perf_counter() < began + seconds:
        asked = time.perf_counter()
        await opened.call(Known(known="k"), timeout=60)
        times.append((time.perf_counter() - asked) * 1000)
        await asyncio.sleep(0.01)
    offers = ((await opened.stats()).handed_back - before) / (time.perf_counter() - began)
    return f"a call takes {median(times):,.1f} ms in the median, {max(times):,.0f} ms at most; {offers:,.0f} offers a second"


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


CASES: dict[str, Callable[[Extent], Coroutine[Any, Any, None]]] = {"purge": purge, "due": due, "idle": idle, "unknown": unknown}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cases that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.extremes", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"some of {', '.join(CASES)}; by default all")
    parser.add_argument("--count", type=int, default=20_000, help="entities")
    parser.add_argument("--seconds", type=float, default=10.0, help="for which is measured")
    options = parser.parse_args(arguments)
    wrong = set(options.cases) - set(CASES)
    if wrong:
        parser.error(f"no case {', '.join(sorted(wrong))}: one of {', '.join(CASES)}")
    logging.disable(logging.WARNING)
    for name in options.cases or CASES:
        with EmbeddedServer.start() as server:
            asyncio.run(CASES[name](Extent(server.url, options.count, options.seconds)))


if __name__ == "__main__":
    main()
