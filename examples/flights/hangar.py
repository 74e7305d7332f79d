"""Storage of the aircraft's states: in the same Redis server, under the demo's own keys, one string per aircraft.

Every handler waits for its own read and, later, for its own write. But a round trip for each would cost more than the bus itself,
so what the handlers of a process ask for while one round trip is under way leaves together with the next: one MGET, one MSET. No
handler sees a difference, least of all two that work on the same aircraft at a time: both would read before either has written.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

from redis.asyncio import Redis

from examples.flights.model import Aircraft, from_text, to_text

__all__ = ["Hangar", "state_key"]


def state_key(namespace: str, tail: str) -> str:
    """Return the key of an aircraft's state; no key of the bus begins like this."""
    return f"{namespace}.aircraft:{tail}"


class Hangar:
    """The stored states of the aircraft of one run. `async with` for `load` and `store`."""

    def __init__(self, client: Redis, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._reads: list[tuple[str, asyncio.Future[bytes | None]]] = []
        self._writes: list[tuple[str, str, asyncio.Future[None]]] = []
        self._wanted = asyncio.Event()
        self._carrier: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._carrier = asyncio.create_task(self._carry(), name="hangar")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._carrier is not None:
            self._carrier.cancel()
            await asyncio.wait([self._carrier])

    async def load(self, tail: str) -> tuple[Aircraft, int]:
        """Return the aircraft and the fence under which it was written; a new one if it is not known."""
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._reads.append((state_key(self._namespace, tail), answer))
        self._wanted.set()
        text = await answer
        return from_text(text) if text is not None else (Aircraft(), 0)

    async def store(self, tail: str, aircraft: Aircraft, fence: int) -> None:
        """Overwrite the aircraft's state, whatever it is now."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writes.append((state_key(self._namespace, tail), to_text(aircraft, fence), done))
        self._wanted.set()
        await done

    async def load_all(self, tails: list[str], page: int = 1000) -> dict[str, Aircraft]:
        """Return all stored aircraft, by tail number."""
        found: dict[str, Aircraft] = {}
        for start in range(0, len(tails), page):
            names = tails[start : start + page]
            texts = await self._client.mget([state_key(self._namespace, tail) for tail in names])
            found.update({tail: from_text(text)[0] for tail, text in zip(names, texts, strict=True) if text is not None})
        return found

    async def _carry(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            reads, self._reads = self._reads, []
            writes, self._writes = self._writes, []
            try:
                await self._round_trip(reads, writes)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is for the handlers that wait, and the bus retries them
                asked: list[asyncio.Future[Any]] = [*(read[-1] for read in reads), *(write[-1] for write in writes)]
                for waiting in asked:
                    if not waiting.done():
                        waiting.set_exception(error)

    async def _round_trip(
        self, reads: list[tuple[str, asyncio.Future[bytes | None]]], writes: list[tuple[str, str, asyncio.Future[None]]]
    ) -> None:
        async with self._client.pipeline(transaction=False) as pipe:
            if reads:
                pipe.mget([key for key, _ in reads])
            if writes:
                pipe.mset({key: text for key, text, _ in writes})
            answers = await pipe.execute()
        if reads:
            for (_, waiting), text in zip(reads, answers[0], strict=True):
                if not waiting.done():  # its handler was cancelled
                    waiting.set_result(text)
        for *_, done in writes:
            if not done.done():
                done.set_result(None)
