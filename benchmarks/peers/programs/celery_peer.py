"""Celery: threads pool, many prefetched, no gossip, mingle or heartbeat; results by pub/sub when calling, none when draining.

A dispatch is `apply_async` with a producer that is kept: one LPUSH.
"""

from __future__ import annotations

import argparse
from typing import Any

from celery import Celery

from benchmarks.peers.programs.jobs import call_from_threads, fill_one_by_one, send_one_by_one
from benchmarks.protocol import Handled, main, ready

THREADS = 8


def app_of(given: argparse.Namespace, *, results: bool) -> tuple[Any, Any]:
    app = Celery("bench", broker=given.url, backend=given.url if results else None)
    app.conf.update(
        task_ignore_result=not results,
        task_serializer="json",
        worker_prefetch_multiplier=100,
        worker_disable_rate_limits=True,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        broker_pool_limit=100,
        redis_max_connections=200,
    )
    handled = Handled(given.count)

    @app.task(name="noop")
    def noop(entity: str, number: int, text: str) -> int:  # noqa: ARG001 - the payload
        handled()
        return number

    return app, noop


def fill(given: argparse.Namespace) -> None:
    app, noop = app_of(given, results=False)
    with app.producer_pool.acquire() as producer:
        fill_one_by_one(given.count, lambda job: noop.apply_async(kwargs=job, producer=producer))


def send(given: argparse.Namespace) -> None:
    app, noop = app_of(given, results=False)
    with app.producer_pool.acquire() as producer:
        send_one_by_one(given.count, lambda job: noop.apply_async(kwargs=job, producer=producer))


def work(given: argparse.Namespace) -> None:
    app, _ = app_of(given, results=not given.count)
    ready()
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR"]
    app.worker_main(["worker", "--pool=threads", f"--concurrency={THREADS}", *quiet])


def call(given: argparse.Namespace) -> None:
    _, noop = app_of(given, results=True)
    call_from_threads(given.count, given.flight, lambda job: noop.apply_async(kwargs=job).get(timeout=60))


if __name__ == "__main__":
    main({"fill": fill, "send": send, "work": work, "call": call})
