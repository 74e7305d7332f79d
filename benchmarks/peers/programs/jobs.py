"""Data that all peers' jobs carry, and ways of sending and calling."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.protocol import TEXT, Stretch, ready

WARM = 20
WARM_SENDS = 200
POLL = 0.001


def job(number: int) -> dict[str, Any]:
    return {"entity": f"e{number % 1000}", "number": number, "text": TEXT}


def jobs(count: int) -> Iterator[dict[str, Any]]:
    return map(job, range(count))


def fill_one_by_one(count: int, send: Callable[[dict[str, Any]], Any]) -> None:
    """Fill for libraries without a bulk way."""
    ready()
    with Stretch(count):
        for each in jobs(count):
            send(each)


async def fill_concurrently(count: int, send: Callable[[dict[str, Any]], Awaitable[Any]], flight: int = 100) -> None:
    """Fill for libraries on asyncio without a bulk way."""
    ready()
    with Stretch(count):
        numbers = iter(range(count))

        async def lane() -> None:
            for number in numbers:
                await send(job(number))

        await asyncio.gather(*(lane() for _ in range(flight)))


def send_one_by_one(count: int, send: Callable[[dict[str, Any]], Any]) -> None:
    """Send one job after the other; each is with the server before the next begins."""
    for each in jobs(WARM_SENDS):
        send(each)
    ready()
    with Stretch(count) as stretch:
        for each in jobs(count):
            began = time.perf_counter()
            send(each)
            stretch.timed(began)


async def send_concurrently(count: int, flight: int, send: Callable[[dict[str, Any]], Awaitable[Any]]) -> None:
    """Send so many jobs at a time, each by its own call; the next ones begin when all of them are with the server."""
    for start in range(0, max(WARM_SENDS, flight), flight):
        await asyncio.gather(*(send(job(start + number)) for number in range(flight)))
    ready()
    with Stretch(count) as stretch:
        if flight == 1:
            for each in jobs(count):
                began = time.perf_counter()
                await send(each)
                stretch.timed(began)
        else:
            for start in range(0, count, flight):
                await asyncio.gather(*(send(job(number)) for number in range(start, min(start + flight, count))))


def call_from_threads(count: int, flight: int, call: Callable[[dict[str, Any]], Any]) -> None:
    """Call with one thread for each call in flight."""
    with ThreadPoolExecutor(flight) as threads:
        list(threads.map(lambda number: call(job(number)), range(max(WARM, flight))))
        ready()
        with Stretch(count) as stretch:
            numbers = itertools.count()

            def lane(_: int) -> None:
                while (number := next(numbers)) < count:
                    began = time.perf_counter()
                    call(job(number))
                    stretch.timed(began)

            list(threads.map(lane, range(flight)))


async def call_concurrently(count: int, flight: int, call: Callable[[dict[str, Any]], Awaitable[Any]]) -> None:
    for number in range(WARM):
        await call(job(number))
    ready()
    with Stretch(count) as stretch:
        numbers = iter(range(count))

        async def lane() -> None:
            for number in numbers:
                began = time.perf_counter()
                await call(job(number))
                stretch.timed(began)

        await asyncio.gather(*(lane() for _ in range(flight)))
