"""A quick measurement of this machine: `python -m benchmarks.quick [--url URL] [--count N] [--json]`.

One process, one worker in a second process, a private server unless a URL is given (its data is flushed!). Read ratios, not absolutes: the
machine decides most of it. `script_us` is the server's time in our scripts per command (INFO commandstats), `server_cpu_us` all its CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import redis.asyncio

from command_bus import Command, CommandBus, EntityId, HandlerRegistry
from command_bus.embedded import EmbeddedServer

registry = HandlerRegistry()
NAMESPACE = "bench"


class Note(Command[int], entity="bench"):
    entity: EntityId
    number: int
    text: str = "x" * 60


@registry.handles(Note)
async def note(command: Note) -> int:
    return command.number


class Latency(Command[None], entity="bench"):
    entity: EntityId
    sent: float


@registry.handles(Latency)
async def latency(command: Latency) -> None:
    sys.stdout.write(f"{(time.monotonic() - command.sent) * 1000:.4f}\n")
    sys.stdout.flush()


class Meter:
    """What a stretch of work cost the server."""

    def __init__(self, url: str) -> None:
        self._client = redis.asyncio.Redis.from_url(url)

    async def of(self, name: str, count: int, work: Callable[[], Awaitable[Any]]) -> dict[str, Any]:
        await self._client.config_resetstat()
        cpu = await self._cpu()
        began = time.perf_counter()
        own = time.process_time()
        await work()
        seconds, own = time.perf_counter() - began, time.process_time() - own
        spent = await self._cpu() - cpu
        stats = await self._client.info("commandstats")
        used = sum(row["usec"] for key, row in stats.items() if key in ("cmdstat_eval", "cmdstat_evalsha"))
        return {
            "case": name,
            "per_s": round(count / seconds),
            "script_us": round(used / count, 1),
            "server_cpu_us": round(spent / count * 1e6, 1),
            "client_cpu_us": round(own / count * 1e6, 1),
        }

    async def _cpu(self) -> float:
        info = await self._client.info("cpu")
        return float(info["used_cpu_sys"]) + float(info["used_cpu_user"])


async def measure(url: str, count: int) -> list[dict[str, Any]]:
    client = redis.asyncio.Redis.from_url(url)
    await client.flushall()
    meter = Meter(url)
    rows: list[dict[str, Any]] = []
    async with CommandBus(url, namespace=NAMESPACE, registry=registry, max_depth=1_000_000) as bus:

        async def one_by_one() -> None:
            for number in range(count // 20):
                await bus.dispatch(Note(entity=f"e{number % 1000}", number=number))

        async def concurrent() -> None:
            for start in range(0, count, 500):
                await asyncio.gather(*(bus.dispatch(Note(entity=f"e{n % 1000}", number=n)) for n in range(start, start + 500)))

        rows.append(await meter.of("dispatch, one by one", count // 20, one_by_one))
        rows.append(await meter.of("dispatch, 500 concurrent", count, concurrent))
        await client.flushall()
        await bus.close()
    for entities in (10, 1000, count):
        async with CommandBus(url, namespace=NAMESPACE, registry=registry, max_depth=1_000_000) as bus:
            fill = partial(batches_of, bus, count, entities)
            rows.append(await meter.of(f"dispatch_batch of 1,000, {entities:,} entities", count, fill))
            async with bus.worker(concurrency=100):
                rows.append(await meter.of(f"drain, {entities:,} entities", count, partial(bus.wait_idle, 300)))
        await client.flushall()
    rows += await calls(url, meter, count)
    await client.aclose()
    return rows


async def batches_of(bus: CommandBus, count: int, entities: int) -> None:
    for start in range(0, count, 1000):
        await bus.dispatch_batch(Note(entity=f"e{n % entities}", number=n) for n in range(start, start + 1000))


async def calls(url: str, meter: Meter, count: int) -> list[dict[str, Any]]:
    rows = []
    worker = subprocess.Popen(  # noqa: ASYNC220 - before anything is timed
        [sys.executable, "-m", "benchmarks.quick", "--worker", url], stdout=subprocess.PIPE, text=True
    )
    async with CommandBus(url, namespace=NAMESPACE, registry=registry) as bus:
        await bus.call(Note(entity="warm", number=0), timeout=30)
        for flight, total in ((1, count // 20), (50, count // 2), (1000, count // 2)):
            times: list[float] = []

            async def lane(share: int, number: int, times: list[float] = times) -> None:
                for _ in range(share):
                    began = time.perf_counter()
                    await bus.call(Note(entity=f"c{number}", number=number), timeout=60)
                    times.append(time.perf_counter() - began)

            async def run(flight: int = flight, total: int = total) -> None:
                await asyncio.gather(*(lane(total // flight, number) for number in range(flight)))

            row = await meter.of(f"call, {flight} in flight", total // flight * flight, run)
            cuts = statistics.quantiles(times, n=100)
            rows.append(row | {"p50_ms": round(cuts[49] * 1000, 2), "p99_ms": round(cuts[98] * 1000, 2)})
        for number in range(300):
            await asyncio.sleep(0.01)
            await bus.dispatch(Latency(entity=f"w{number}", sent=time.monotonic()))
        await bus.wait_idle(10)
        cpu = _cpu_of(worker.pid)
        await asyncio.sleep(30)
        idle = (_cpu_of(worker.pid) - cpu) / 30 * 100
        await bus.close()
    worker.terminate()
    out, _ = worker.communicate()
    cuts = statistics.quantiles([float(line) for line in out.split()], n=100)
    rows.append({"case": "wake-up, idle bus", "p50_ms": round(cuts[49], 2), "p99_ms": round(cuts[98], 2)})
    rows.append({"case": "idle worker, % of a core", "percent": round(idle, 3)})
    return rows


def _cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def work(url: str) -> None:
    async with CommandBus(url, namespace=NAMESPACE, registry=registry) as bus:
        await bus.worker(concurrency=100).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a server to use; it is flushed")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        asyncio.run(work(arguments.worker))
        return
    if arguments.url:
        rows = asyncio.run(measure(arguments.url, arguments.count))
    else:
        with EmbeddedServer.start() as server:
            rows = asyncio.run(measure(server.url, arguments.count))
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print(f"{row['case']:44}" + "  ".join(f"{key} {value}" for key, value in row.items() if key != "case"))


if __name__ == "__main__":
    main()
