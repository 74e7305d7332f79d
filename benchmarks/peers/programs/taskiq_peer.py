"""taskiq on a Redis stream: a hundred tasks at a time, msgpack, uvloop; results in Redis when calling, none when draining.

A dispatch is `kiq`: one XADD.
"""

from __future__ import annotations

import argparse
from typing import Any

import uvloop
from taskiq.api import run_receiver_task
from taskiq.serializers import MSGPackSerializer
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from benchmarks.peers.programs.jobs import POLL, call_concurrently, fill_concurrently, send_concurrently
from benchmarks.protocol import Handled, main, ready


def broker_of(given: argparse.Namespace, *, results: bool) -> tuple[Any, Any]:
    broker: Any = RedisStreamBroker(given.url, consumer_id="0", max_connection_pool_size=100).with_serializer(MSGPackSerializer())
    if results:
        broker = broker.with_result_backend(RedisAsyncResultBackend(given.url, keep_results=False, max_connection_pool_size=100))
    handled = Handled(given.count)

    @broker.task(task_name="noop")
    async def noop(entity: str, number: int, text: str) -> int:  # noqa: ARG001 - the payload
        handled()
        return number

    return broker, noop


def fill(given: argparse.Namespace) -> None:
    async def sending() -> None:
        broker, noop = broker_of(given, results=False)
        await broker.startup()
        await fill_concurrently(given.count, lambda job: noop.kiq(**job))

    uvloop.run(sending())


def send(given: argparse.Namespace) -> None:
    async def sending() -> None:
        broker, noop = broker_of(given, results=False)
        await broker.startup()
        await send_concurrently(given.count, given.flight, lambda job: noop.kiq(**job))

    uvloop.run(sending())


def work(given: argparse.Namespace) -> None:
    async def working() -> None:
        broker, _ = broker_of(given, results=not given.count)
        broker.is_worker_process = True
        ready()
        await run_receiver_task(broker, max_async_tasks=100, max_prefetch=100, validate_params=False, run_startup=True)

    uvloop.run(working())


def call(given: argparse.Namespace) -> None:
    async def calling() -> None:
        broker, noop = broker_of(given, results=True)
        await broker.startup()

        async def one(job: dict[str, Any]) -> None:
            sent = await noop.kiq(**job)
            await sent.wait_result(check_interval=POLL, timeout=60)

        await call_concurrently(given.count, given.flight, one)

    uvloop.run(calling())


if __name__ == "__main__":
    main({"fill": fill, "send": send, "work": work, "call": call})
