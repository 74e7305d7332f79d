"""The dashboard: how long a page takes when a million entities wait and a hundred thousand dead letters lie, and what it asks of the server.

A page is asked for through the ASGI interface, in this process, with no network before it. Nothing of it is kept from the page before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator
from typing import Any

from benchmarks.case import Case
from benchmarks.cases.messages import Note
from benchmarks.figures import Sample
from benchmarks.ground import NAMESPACE, Ground
from benchmarks.protocol import quantile
from command_bus import CommandBus, HandlerRegistry

__all__ = ["ALL"]

_ENTITIES, _LETTERS = 1_000_000, 100_000
_BATCH = 2000
_ROUNDS = 12
_OPEN, _LISTENING = 200, 10.0
_PAGES = (
    "/", "/?state=parked", "/entities", "/entities?q=e999", "/entity?type=bench&id=e5", "/letters", "/letters?name=Nothing", "/letter?id={letter}",
    "/command?id=one", "/workers", "/schedules", "/limits", "/throughput", "/history", "/audit",
)  # fmt: skip


async def _fill(bus: CommandBus, entities: int) -> None:
    """Let so many entities wait."""
    for start in range(0, entities, _BATCH):
        done = await bus.dispatch_batch(
            Note(entity=f"e{number}", number=number) for number in range(start, min(start + _BATCH, entities))
        )
        assert done.accepted, "nothing was accepted"


async def _letters(ground: Ground, bus: CommandBus, count: int) -> str:
    """Make one dead letter, and copies of it; return the id of one."""
    await bus.dispatch_raw("bench", "lost", "Unheard", {"entity": "lost"})
    async with bus.worker():
        await bus.wait_idle(30)
    stream = f"{{{NAMESPACE}:0}}:dead"
    ((_, fields),) = await asyncio.to_thread(_first, ground, stream)
    for start in range(0, count, _BATCH):
        await asyncio.to_thread(_copy, ground, stream, fields, min(_BATCH, count - start))
    return (await bus.dead_letters.page(limit=1)).letters[0].id


def _raw(ground: Ground) -> Any:
    import redis

    return redis.Redis.from_url(ground.url)


def _first(ground: Ground, stream: str) -> Any:
    return _raw(ground).xrange(stream, count=1)


def _copy(ground: Ground, stream: str, fields: dict[bytes, bytes], count: int) -> None:
    pipeline = _raw(ground).pipeline(transaction=False)
    for _ in range(count):
        pipeline.xadd(stream, fields)
    pipeline.execute()


async def _asked(app: Any, path: str) -> float:
    """Ask for a page, and return the seconds that it took."""
    import httpx

    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", trust_env=False) as client:
        began = time.perf_counter()
        answer = await client.get(path)
        assert answer.status_code == 200, f"{path}: {answer.status_code}"
        return time.perf_counter() - began


def measured(ground: Ground) -> Sample:
    """Measure the pages, each a dozen times."""
    entities, letters = ground.count(_ENTITIES, least=500), ground.count(_LETTERS, least=200)

    async def work() -> Sample:
        from command_bus.dashboard import dashboard, loopback
        from command_bus.dashboard.pulse import SharedReads

        options: dict[str, Any] = {"max_total_depth": 4 * _ENTITIES, "unknown_grace": 0, "registry": HandlerRegistry()}
        async with CommandBus(ground.url, namespace=NAMESPACE, **options) as bus:
            letter = await _letters(ground, bus, letters)
            await bus.dispatch(Note(entity="e5", number=5), command_id="one")
            await _fill(bus, entities)
            app = dashboard(bus, users=loopback())
            object.__setattr__(app.state, "reads", SharedReads(fresh=0.0))
            return {**await _sample(ground, app, letter), "open_pages_percent": await _open_pages(ground, app)}

    return asyncio.run(work())


async def _sample(ground: Ground, app: Any, letter: str) -> dict[str, float]:
    pages = [path.format(letter=letter) for path in _PAGES]
    for path in pages:
        await _asked(app, path)
    took: dict[str, list[float]] = {}
    with ground.spending() as spent:
        for path, asking in _each(app, pages):
            took.setdefault(path, []).append(await asking)
    every = [seconds for times in took.values() for seconds in times]
    return {
        **{f"p{share}_ms": quantile(every, share / 100) * 1000 for share in (50, 95, 99)},
        "slowest_p95_ms": max(quantile(times, 0.95) for times in took.values()) * 1000,
        "server_us": spent.cpu / len(every) * 1e6,
    }


def _each(app: Any, pages: list[str]) -> Iterator[tuple[str, Awaitable[float]]]:
    for _ in range(_ROUNDS):
        for path in pages:
            yield path, _asked(app, path)


async def _open_pages(ground: Ground, app: Any) -> float:
    """Return how much of a processor the server spends on two hundred pages that are open, in per cent, with what it spends on nothing."""
    closed = asyncio.Event()
    pages = [asyncio.create_task(_listen(app, closed)) for _ in range(_OPEN)]
    await asyncio.sleep(1)
    with ground.spending() as spent:
        await asyncio.sleep(_LISTENING)
    closed.set()
    heard = await asyncio.gather(*pages)
    assert min(heard) > 1, "an open page is told of nothing"
    return spent.cpu / _LISTENING * 100


async def _listen(app: Any, closed: asyncio.Event) -> int:
    """Listen as an open page does; return how much was told."""
    told = 0
    scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "path": "/live", "raw_path": b"/live", "root_path": "", "scheme": "http",
        "query_string": b"", "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1), "server": ("localhost", 80),
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        await closed.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal told
        told += b"data: {" in message.get("body", b"")

    await app(scope, receive, send)
    return told


ALL = [Case("dashboard, pages", "dashboard", measured, most=3)]
