"""streaq: a hundred tasks at a time, uvloop, tasks enqueued in bulk; results awaited when calling, dropped at once when draining.

A dispatch is `enqueue`: its server function, which keeps the task in a key of its own and its id in a stream.
"""

from __future__ import annotations

import argparse
from typing import Any

import uvloop
from streaq import Worker

from benchmarks.peers.programs.jobs import call_concurrently, jobs, send_concurrently
from benchmarks.protocol import Handled, Stretch, main, ready

BULK = 500


def worker_of(given: argparse.Namespace, *, results: bool) -> tuple[Any, Any]:
    worker: Any = Worker(redis_url=given.url, concurrency=100, anyio_kwargs={"use_uvloop": True})
    handled = Handled(given.count)

    @worker.task(ttl=60 if results else 0, silent=True)
    async def noop(entity: str, number: int, text: str) -> int:  # noqa: ARG001 - the payload
        handled()
        return number

    return worker, noop


def fill(given: argparse.Namespace) -> None:
    async def sending() -> None:
        worker, noop = worker_of(given, results=False)
        async with worker:
            ready()
            with Stretch(given.count):
                waiting: list[Any] = []
                for job in jobs(given.count):
                    waiting.append(noop.enqueue(**job))
                    if len(waiting) == BULK:
                        await worker.enqueue_many(waiting)
                        waiting.clear()
                if waiting:
                    await worker.enqueue_many(waiting)

    uvloop.run(sending())


def send(given: argparse.Namespace) -> None:
    async def sending() -> None:
        worker, noop = worker_of(given, results=False)
        async with worker:

            async def one(job: dict[str, Any]) -> None:
                await noop.enqueue(**job)

            await send_concurrently(given.count, given.flight, one)

    uvloop.run(sending())


def work(given: argparse.Namespace) -> None:
    worker, _ = worker_of(given, results=not given.count)
    ready()
    worker.run_sync()


def call(given: argparse.Namespace) -> None:
    async def calling() -> None:
        worker, noop = worker_of(given, results=True)
        async with worker:

            async def one(job: dict[str, Any]) -> None:
                sent = await noop.enqueue(**job)
                await sent.result(60)

            await call_concurrently(given.count, given.flight, one)

    uvloop.run(calling())


if __name__ == "__main__":
    main({"fill": fill, "send": send, "work": work, "call": call})
