"""The bus in a process of its own, speaking `protocol`: sends in one of several ways, works, or calls.

It runs on uvloop where that is installed, and a worker's garbage is collected as rarely as that of `command-bus worker`.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import redis.asyncio

from benchmarks import protocol
from benchmarks.cases.growing import grow
from benchmarks.cases.lifting import lift
from benchmarks.cases.messages import DURABLE, HANDLERS, KINDS, Note, Ping, note, registry
from benchmarks.ground import NAMESPACE
from benchmarks.protocol import Handled, Stretch, latencies, say
from command_bus import CommandBus, SyncCommandBus
from command_bus.cli.process.worker_process import collect_rarely

__all__ = ["IDLE_SECONDS", "main"]

IDLE_SECONDS = 4.0
_SETTLING = 1.0
_UNLIMITED = 10_000_000
_WARM = 50


def bus_of(arguments: argparse.Namespace, namespace: str = NAMESPACE, **options: Any) -> CommandBus:
    shards = arguments.shards
    return CommandBus(
        arguments.url, namespace=namespace, shards=shards, max_depth=_UNLIMITED, max_total_depth=_UNLIMITED, **options
    )


def run(work: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


# Sending.


async def one_by_one(bus: CommandBus, _given: argparse.Namespace, notes: list[Note], stretch: Stretch) -> None:
    for each in notes:
        began = time.perf_counter()
        await bus.dispatch(each)
        stretch.timed(began)


async def concurrently(bus: CommandBus, given: argparse.Namespace, notes: list[Note], _stretch: Stretch) -> None:
    for start in range(0, given.count, given.flight):
        await asyncio.gather(*(bus.dispatch(each) for each in notes[start : start + given.flight]))


async def in_batches(bus: CommandBus, given: argparse.Namespace, notes: list[Note], _stretch: Stretch) -> None:
    for start in range(0, given.count, given.flight):
        await bus.dispatch_batch(notes[start : start + given.flight])


WAYS: dict[str, Callable[[CommandBus, argparse.Namespace, list[Note], Stretch], Coroutine[Any, Any, None]]] = {
    "one": one_by_one,
    "concurrent": concurrently,
    "batch": in_batches,
}


async def fill(given: argparse.Namespace) -> None:
    await _warm_up(given)
    async with bus_of(given) as bus:
        await bus.ping()
        notes = [note(number, given.entities, kind=given.kind) for number in range(given.count)]  # the application's, not ours
        protocol.ready()
        with Stretch(given.count) as stretch:
            await WAYS[given.way](bus, given, notes, stretch)


async def _warm_up(given: argparse.Namespace) -> None:
    """Let code and scripts run once, in a namespace of which nothing is left."""
    async with bus_of(given, namespace="warm") as bus:
        for number in range(_WARM):
            await bus.dispatch(note(number, given.entities, kind=given.kind))
        await bus.dispatch_batch([note(number, given.entities, kind=given.kind) for number in range(_WARM)])
    client: Any = redis.asyncio.Redis.from_url(given.url)
    await client.delete(*[name async for name in client.scan_iter("{warm:*", count=1000)])
    await client.aclose()


def fill_from_sync(given: argparse.Namespace) -> None:
    with SyncCommandBus(given.url, namespace=NAMESPACE, max_depth=_UNLIMITED, max_total_depth=_UNLIMITED) as bus:
        for number in range(_WARM):
            bus.dispatch(note(number, given.entities))
        protocol.ready()
        with Stretch(given.count) as stretch:
            for number in range(given.count):
                began = time.perf_counter()
                bus.dispatch(note(number, given.entities))
                stretch.timed(began)


# Working and calling.


async def work(given: argparse.Namespace) -> None:
    handled = Handled(given.count)
    pings: list[float] = []
    handlers = registry(given.handler, handled, pings.append)
    async with bus_of(given, registry=handlers) as bus:
        await bus.ping()
        worker = bus.worker(concurrency=given.concurrency)
        collect_rarely()
        await asyncio.get_running_loop().run_in_executor(None, protocol.ready)
        await worker.run()
    if pings:
        say(**latencies(pings))
    elif not given.count:
        handled.report()


async def idle(given: argparse.Namespace) -> None:
    """Hold workers of one process ready, and say what they cost while nothing comes, and then while each command wakes one."""
    handled = Handled(0)
    async with bus_of(given, registry=registry("noop", handled, list[float]().append)) as bus, AsyncExitStack() as stack:
        for _ in range(given.workers):
            await stack.enter_async_context(bus.worker(concurrency=given.concurrency))
        collect_rarely()
        await asyncio.sleep(_SETTLING)
        await asyncio.get_running_loop().run_in_executor(None, protocol.ready)
        before = time.process_time()
        await asyncio.sleep(IDLE_SECONDS)
        say(idle_python_ms=(time.process_time() - before) / IDLE_SECONDS * 1000)
        await asyncio.Event().wait()


async def call(given: argparse.Namespace) -> None:
    async with bus_of(given) as bus:
        for number in range(_WARM):
            await bus.call(note(number, given.entities, kind=given.kind), timeout=60)
        protocol.ready()
        with Stretch(given.count) as stretch:

            async def lane(first: int) -> None:
                for number in range(first, given.count, given.flight):
                    began = time.perf_counter()
                    await bus.call(note(number, given.entities, kind=given.kind), timeout=60)
                    stretch.timed(began)

            await asyncio.gather(*map(lane, range(given.flight)))


async def ping(given: argparse.Namespace) -> None:
    """Dispatch with pauses, so that the bus is idle each time."""
    async with bus_of(given) as bus:
        await bus.ping()
        protocol.ready()
        with Stretch(given.count):
            for number in range(given.count):
                await asyncio.sleep(0.01)
                await bus.dispatch(Ping(entity=f"w{number}", sent=time.monotonic()))
            await bus.wait_idle(10)


def main() -> None:
    parser = protocol.parser("fill", "work", "call", "ping", "grow", "lift", "idle")
    parser.add_argument("--entities", type=int, default=1000)
    parser.add_argument("--way", choices=(*WAYS, "sync"), default="batch")
    parser.add_argument("--kind", choices=(*KINDS, *DURABLE), default="plain")
    parser.add_argument("--handler", choices=tuple(HANDLERS), default="noop")
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--backlog", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    if given.role == "fill" and given.way == "sync":
        fill_from_sync(given)
    elif given.role == "grow":
        run(grow(given, bus_of))
    elif given.role == "lift":
        run(lift(given, bus_of))
    else:
        run({"fill": fill, "work": work, "call": call, "ping": ping, "idle": idle}[given.role](given))


if __name__ == "__main__":
    main()
