"""FastStream on a Redis stream with a consumer group, read by the hundred, acknowledged one by one; uvloop; replies by pub/sub when calling.

A dispatch is `publish(…, stream=…)`: one XADD, awaited. Types are not validated (`apply_types=False`).
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import uvloop
from faststream.redis import RedisBroker, StreamSub

from benchmarks.peers.programs.jobs import call_concurrently, jobs, send_concurrently
from benchmarks.protocol import Handled, Stretch, main, ready

STREAM = "bench"
WORKERS = 10
BULK = 500


def broker_of(given: argparse.Namespace) -> Any:
    return RedisBroker(given.url, logger=None, apply_types=False, max_connections=600)


def fill(given: argparse.Namespace) -> None:
    async def sending() -> None:
        async with broker_of(given) as broker:
            client = broker.config.broker_config.connection.client
            ready()
            with Stretch(given.count):
                pipeline = client.pipeline(transaction=False)
                for number, job in enumerate(jobs(given.count), 1):
                    await broker.publish(job, stream=STREAM, pipeline=pipeline)
                    if number % BULK == 0 or number == given.count:
                        await pipeline.execute()

    uvloop.run(sending())


def send(given: argparse.Namespace) -> None:
    async def sending() -> None:
        async with broker_of(given) as broker:
            await send_concurrently(given.count, given.flight, lambda job: broker.publish(job, stream=STREAM))

    uvloop.run(sending())


def work(given: argparse.Namespace) -> None:
    async def working() -> None:
        broker, handled = broker_of(given), Handled(given.count)
        source = StreamSub(STREAM, group="workers", consumer="one", last_id="0", max_records=100)

        @broker.subscriber(stream=source, max_workers=WORKERS)
        async def noop(job: dict[str, Any]) -> int:
            handled()
            return int(job["number"])

        ready()
        await broker.start()
        await asyncio.Event().wait()

    uvloop.run(working())


def call(given: argparse.Namespace) -> None:
    async def calling() -> None:
        async with broker_of(given) as broker:
            await call_concurrently(given.count, given.flight, lambda job: broker.request(job, stream=STREAM, timeout=60))

    uvloop.run(calling())


if __name__ == "__main__":
    main({"fill": fill, "send": send, "work": work, "call": call})
