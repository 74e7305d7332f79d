"""The protocol between a measured program and the measuring process: lines of JSON, the same for the bus and for every peer.

    PROGRAM ROLE --url URL --count N …      ROLE is fill, work, call, or what else a program knows
    → {"ready": true}                       it is imported and connected
    ← a newline                             now
    → {"count": …, "seconds": …, "cpu": …}  what it did, by its own clocks

This module needs only the standard library and no other module of this package, since peers import it in their environments.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

__all__ = ["TEXT", "Handled", "Stretch", "parser", "quantile", "ready", "say"]

TEXT = "x" * 60
"""The text that every job carries, beside its entity and its number."""

_EVERY = 50


def say(**fields: Any) -> None:
    """Print one line to the measuring process, also where a library has replaced `sys.stdout` by its log."""
    assert sys.__stdout__ is not None
    sys.__stdout__.write(json.dumps(fields) + "\n")
    sys.__stdout__.flush()


def ready() -> None:
    """Say that everything is imported and connected, wait for the signal, and from then on end with the measuring process."""
    say(ready=True)
    sys.stdin.readline()
    threading.Thread(target=_end_with_the_measurer, daemon=True).start()


def _end_with_the_measurer() -> None:
    """End with the measuring process: a worker that outlived a killed benchmark would look for its server for ever."""
    while os.read(0, 1024):
        pass
    os._exit(1)


def parser(*roles: str) -> argparse.ArgumentParser:
    """Return a parser of the arguments that all programs have."""
    made = argparse.ArgumentParser()
    made.add_argument("role", choices=roles or ("fill", "work", "call"))
    made.add_argument("--url", required=True)
    made.add_argument("--count", type=int, required=True, help="jobs; 0 for a worker that works until it is ended")
    made.add_argument("--flight", type=int, default=1, help="calls in flight")
    return made


class Handled:
    """Counts a worker's jobs, from any of its threads; call it once in each.

    The clock and the processor time are taken at the first job, at every fiftieth and at the last: taking them at each would cost
    more than some jobs. When `count` are done it reports by itself.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._numbers = itertools.count(1)  # its `next` is one step, also between threads
        self._first = self._last = 0.0
        self._cpu = self._spent = 0.0
        self._done = 0

    def __call__(self) -> None:
        number = next(self._numbers)
        if number == 1:
            self._first, self._cpu = time.monotonic(), time.process_time()
        if number % _EVERY == 0 or number == self._count:
            self._last, self._spent, self._done = time.monotonic(), time.process_time(), number
        if number == self._count:
            self.report()

    def report(self) -> None:
        """Say how it went so far."""
        say(
            count=self._done,
            first=self._first,
            last=self._last,
            seconds=self._last - self._first,
            cpu=max(self._spent - self._cpu, 0.0),
            rss=resident(),
        )


class Stretch:
    """The cost of a stretch of a client's work: `with Stretch(count) as stretch: …`; it reports when the block ends."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.times: list[float] = []

    def __enter__(self) -> Self:
        self._began, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        seconds, cpu = time.perf_counter() - self._began, time.process_time() - self._cpu
        if kind is None:
            say(count=self._count, seconds=seconds, cpu=cpu, **latencies(self.times))

    def timed(self, began: float) -> None:
        """Note how long one job took that began at this `time.perf_counter()`."""
        self.times.append(time.perf_counter() - began)


def latencies(times: Sequence[float]) -> dict[str, float]:
    """Return median and 99th percentile, in ms, of seconds."""
    return {"p50_ms": quantile(times, 0.5) * 1000, "p99_ms": quantile(times, 0.99) * 1000} if times else {}


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of them does not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1]


def resident() -> int:
    """Return the bytes of memory that this process has; 0 where there is no /proc."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123 - no import for one line
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))
    except (OSError, StopIteration):
        return 0


def main(roles: dict[str, Callable[[argparse.Namespace], None]], arguments: argparse.ArgumentParser | None = None) -> None:
    """Play the role that the command line names."""
    given = (arguments or parser(*roles)).parse_args()
    roles[given.role](given)
