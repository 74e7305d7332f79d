"""Places for entities to run: the limit of a worker's concurrency, and of what it fetches."""

from __future__ import annotations

import asyncio

__all__ = ["Slots"]


class Slots:
    """A counter of free places that readers wait on."""

    __slots__ = ("_freed", "free", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        self._freed = asyncio.Event()
        self._freed.set()

    def take(self, count: int) -> int:
        """Occupy up to `count` places; how many were free."""
        taken = min(count, self.free)
        self.free -= taken
        if not self.free:
            self._freed.clear()
        return taken

    def give(self, count: int = 1) -> None:
        """Free places."""
        self.free += count
        if self.free:
            self._freed.set()

    async def available(self) -> int:
        """Wait until at least one place is free; how many are."""
        while not self.free:
            await self._freed.wait()
        return self.free
