"""Dramatiq: 32 threads (it polls with pauses: more threads poll more), its default middleware; results in Redis when calling, none when draining.

A dispatch is `send`: its script, which keeps the message in a hash and adds its id to a list.
"""

from __future__ import annotations

import argparse
import signal
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks.peers.programs.jobs import call_from_threads, fill_one_by_one, send_one_by_one
from benchmarks.protocol import Handled, main, ready

THREADS = 32


def actor_of(given: argparse.Namespace, *, results: bool) -> tuple[Any, Any]:
    broker = RedisBroker(url=given.url)
    if results:
        broker.add_middleware(Results(backend=RedisBackend(url=given.url)))
    dramatiq.set_broker(broker)
    handled = Handled(given.count)

    @dramatiq.actor(broker=broker, store_results=results) if results else dramatiq.actor(broker=broker)
    def noop(entity: str, number: int, text: str) -> int:  # noqa: ARG001 - the payload
        handled()
        return number

    return broker, noop


def fill(given: argparse.Namespace) -> None:
    _, noop = actor_of(given, results=False)
    fill_one_by_one(given.count, lambda job: noop.send(**job))


def send(given: argparse.Namespace) -> None:
    _, noop = actor_of(given, results=False)
    send_one_by_one(given.count, lambda job: noop.send(**job))


def work(given: argparse.Namespace) -> None:
    broker, _ = actor_of(given, results=not given.count)
    ready()
    dramatiq.Worker(broker, worker_threads=THREADS).start()
    signal.pause()


def call(given: argparse.Namespace) -> None:
    _, noop = actor_of(given, results=True)
    call_from_threads(given.count, given.flight, lambda job: noop.send(**job).get_result(block=True, timeout=60_000))


if __name__ == "__main__":
    main({"fill": fill, "send": send, "work": work, "call": call})
