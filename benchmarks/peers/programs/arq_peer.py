"""arq: a hundred jobs at a time, uvloop, polling each millisecond; results kept when calling, none when draining.

A dispatch is `enqueue_job`: WATCH, and a transaction that keeps the job in a key of its own and its id in a sorted set.
"""

from __future__ import annotations

import argparse
import asyncio

import uvloop
from arq import create_pool, func
from arq.connections import RedisSettings
from arq.worker import Worker

from benchmarks.peers.programs.jobs import POLL, call_concurrently, fill_concurrently, send_concurrently
from benchmarks.protocol import Handled, main, ready


def settings(given: argparse.Namespace) -> RedisSettings:
    made = RedisSettings.from_dsn(given.url)
    made.max_connections = 600
    return made


def fill(given: argparse.Namespace) -> None:
    async def sending() -> None:
        pool = await create_pool(settings(given))
        await fill_concurrently(given.count, lambda job: pool.enqueue_job("noop", **job))

    uvloop.run(sending())


def send(given: argparse.Namespace) -> None:
    async def sending() -> None:
        pool = await create_pool(settings(given))
        await send_concurrently(given.count, given.flight, lambda job: pool.enqueue_job("noop", **job))

    uvloop.run(sending())


def work(given: argparse.Namespace) -> None:
    handled = Handled(given.count)

    async def noop(_context: object, entity: str, number: int, text: str) -> int:  # noqa: ARG001 - the payload
        handled()
        return number

    ready()
    asyncio.set_event_loop(uvloop.new_event_loop())
    worker = Worker(
        [func(noop, name="noop")],
        redis_settings=settings(given),
        max_jobs=100,
        poll_delay=POLL,
        keep_result=0 if given.count else 60,
        log_results=False,
    )
    worker.run()


def call(given: argparse.Namespace) -> None:
    async def calling() -> None:
        pool = await create_pool(settings(given))

        async def one(job: dict[str, object]) -> None:
            sent = await pool.enqueue_job("noop", **job)
            await sent.result(timeout=60, poll_delay=POLL)

        await call_concurrently(given.count, given.flight, one)

    uvloop.run(calling())


if __name__ == "__main__":
    main({"fill": fill, "send": send, "work": work, "call": call})
