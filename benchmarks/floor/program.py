"""The floor in a process of its own: bare redis-py, with the bytes that one of our commands would have."""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Callable, Coroutine
from typing import Any

import redis
import redis.asyncio

from benchmarks import protocol
from benchmarks.protocol import TEXT, Stretch
from command_bus.transport.redis.keys import ShardKeys
from command_bus.transport.redis.scripts import ENQUEUE_ONE

__all__ = ["main"]

PAYLOAD = b"entity:e123 number:12345 text:" + TEXT.encode()
SCRIPT = "return redis.call('XADD', KEYS[1], '*', 'e', ARGV[1])"
STREAM, GROUP, REQUESTS, REPLIES = "floor", "workers", "floor:requests", "floor:replies"


async def evalsha(client: Any, given: argparse.Namespace) -> None:
    digest = await client.script_load(SCRIPT)
    protocol.ready()
    with Stretch(given.count) as stretch:
        for _ in range(given.count):
            began = time.perf_counter()
            await client.evalsha(digest, 1, STREAM, PAYLOAD)
            stretch.timed(began)


async def enqueue(client: Any, given: argparse.Namespace) -> None:
    """Run the script of our dispatch, one command each, with nothing around it: what the protocol costs without our client."""
    digest = await client.script_load(ENQUEUE_ONE.text)
    keys = ShardKeys("floor", 0)
    shared = [
        keys.ready,
        keys.active,
        keys.stats,
        keys.delayed_counts,
        keys.paused,
        keys.watched,
        keys.last_batch("floor"),
        keys.lone,
        keys.fair[0],
    ]
    answer: Any = None
    protocol.ready()
    with Stretch(given.count) as stretch:
        for number in range(1, given.count + 1):
            began = time.perf_counter()
            name = f"entity:e{number % 1000}"
            head = (number, "", 3_600_000, 10**9)
            answer = await client.evalsha(digest, len(shared) + 1, *shared, keys.mailboxes + name, *head, 10**6, PAYLOAD)
            stretch.timed(began)
    assert answer == b"+", answer


async def xadd(client: Any, given: argparse.Namespace) -> None:
    await client.ping()
    protocol.ready()
    with Stretch(given.count):
        await _add(client, given)


async def _add(client: Any, given: argparse.Namespace) -> None:
    for _ in range(0, given.count, given.flight):
        pipeline = client.pipeline(transaction=False)
        for _ in range(given.flight):
            pipeline.xadd(STREAM, {"e": PAYLOAD})
        await pipeline.execute()


async def read(client: Any, given: argparse.Namespace) -> None:
    """Read a page; acknowledge and delete it in one pipeline with reading the next, as the quickest loop would."""
    await client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    await _add(client, given)
    protocol.ready()
    with Stretch(given.count):
        page: list[Any] = []
        while True:
            pipeline = client.pipeline(transaction=False)
            if page:
                pipeline.xack(STREAM, GROUP, *page)
                pipeline.xdel(STREAM, *page)
            pipeline.xreadgroup(GROUP, "floor", {STREAM: ">"}, count=given.flight)
            found = (await pipeline.execute())[-1]
            if not found:
                break
            entries = next(iter(found.values()))[0] if isinstance(found, dict) else found[0][1]
            page = [entry[0] for entry in entries]


async def echo(client: Any, given: argparse.Namespace) -> None:
    """Send there and back between two processes, one list each way."""
    context = multiprocessing.get_context("spawn")
    answering = context.Process(target=_answer, args=(given.url,), daemon=True)
    answering.start()
    await _there_and_back(client)
    protocol.ready()
    with Stretch(given.count) as stretch:
        for _ in range(given.count):
            began = time.perf_counter()
            await _there_and_back(client)
            stretch.timed(began)
    answering.terminate()


async def _there_and_back(client: Any) -> None:
    await client.lpush(REQUESTS, PAYLOAD)
    await client.brpop([REPLIES], timeout=0)


def _answer(url: str) -> None:
    async def answer() -> None:
        client: Any = redis.asyncio.Redis.from_url(url, socket_timeout=None)
        while True:
            _, request = await client.brpop([REQUESTS], timeout=0)
            await client.lpush(REPLIES, request)

    _run(answer())


def evalsha_sync(given: argparse.Namespace) -> None:
    client: Any = redis.Redis.from_url(given.url)
    digest = client.script_load(SCRIPT)
    protocol.ready()
    with Stretch(given.count) as stretch:
        for _ in range(given.count):
            began = time.perf_counter()
            client.evalsha(digest, 1, STREAM, PAYLOAD)
            stretch.timed(began)


ROLES: dict[str, Callable[[Any, argparse.Namespace], Coroutine[Any, Any, None]]] = {
    "evalsha": evalsha,
    "enqueue": enqueue,
    "xadd": xadd,
    "read": read,
    "echo": echo,
}


async def play(given: argparse.Namespace) -> None:
    client: Any = redis.asyncio.Redis.from_url(given.url, socket_timeout=None)
    await ROLES[given.role](client, given)
    await client.aclose()


def _run(work: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


def main() -> None:
    given = protocol.parser(*ROLES, "evalsha-sync").parse_args()
    if given.role == "evalsha-sync":
        evalsha_sync(given)
    else:
        _run(play(given))


if __name__ == "__main__":
    main()
