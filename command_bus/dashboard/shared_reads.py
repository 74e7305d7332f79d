"""`SharedReads`: what several open pages ask for at the same moment is read once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

from command_bus.clock import mono

T = TypeVar("T")
_FRESH = 1.0
_KEPT = 200


class SharedReads:
    """Keeps answers for a second, and lets those who ask meanwhile wait for the same one.

    Args:
        fresh: Seconds for which an answer is kept.
    """

    def __init__(self, fresh: float = _FRESH) -> None:
        self._fresh = fresh
        self._answers: dict[Hashable, tuple[float, asyncio.Task[Any]]] = {}

    async def get(self, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of `read`, or one to the same key of a moment ago."""
        now = mono()
        self._answers = (
            {each: kept for each, kept in self._answers.items() if _is_fresh(kept, now)} if self._is_full else self._answers
        )
        kept = self._answers.get(key)
        if kept is None or not _is_fresh(kept, now):
            kept = now + self._fresh, asyncio.ensure_future(_done(read))
            self._answers[key] = kept
        answer: T = await asyncio.shield(kept[1])
        return answer

    def keeps(self, key: Hashable) -> bool:
        """Return whether there is an answer to a key that is fresh."""
        kept = self._answers.get(key)
        return kept is not None and _is_fresh(kept, mono())

    def forget(self) -> None:
        """Read again what is asked for next: something was changed."""
        self._answers.clear()

    @property
    def _is_full(self) -> bool:
        return len(self._answers) >= _KEPT


def _is_fresh(kept: tuple[float, asyncio.Task[Any]], now: float) -> bool:
    until, task = kept
    failed = task.done() and (task.cancelled() or task.exception() is not None)
    return now < until and not failed


async def _done(read: Callable[[], Awaitable[T]]) -> T:
    return await read()
