"""huey: four threads with blocking reads; results notified through Redis when calling, none when draining.

A dispatch is a call of the task: one LPUSH.
"""

from __future__ import annotations

import argparse
import logging
from typing import Any

from huey import RedisHuey

from benchmarks.peers.programs.jobs import call_from_threads, fill_one_by_one, send_one_by_one
from benchmarks.protocol import Handled, main, ready

THREADS = 4


def huey_of(given: argparse.Namespace, *, results: bool) -> tuple[Any, Any]:
    huey: Any = RedisHuey("bench", url=given.url, results=results, blocking=True, notify_result=results)
    handled = Handled(given.count)

    @huey.task()
    def noop(entity: str, number: int, text: str) -> int:  # noqa: ARG001 - the payload
        handled()
        return number

    return huey, noop


def fill(given: argparse.Namespace) -> None:
    _, noop = huey_of(given, results=False)
    fill_one_by_one(given.count, lambda job: noop(**job))


def send(given: argparse.Namespace) -> None:
    _, noop = huey_of(given, results=False)
    send_one_by_one(given.count, lambda job: noop(**job))


def work(given: argparse.Namespace) -> None:
    logging.disable(logging.INFO)
    huey, _ = huey_of(given, results=not given.count)
    ready()
    huey.create_consumer(workers=THREADS, worker_type="thread", periodic=False, check_worker_health=False).run()


def call(given: argparse.Namespace) -> None:
    _, noop = huey_of(given, results=True)
    call_from_threads(given.count, given.flight, lambda job: noop(**job).get(blocking=True, timeout=60))


if __name__ == "__main__":
    main({"fill": fill, "send": send, "work": work, "call": call})
