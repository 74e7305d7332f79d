"""Places for entities to run: the limit of a worker's concurrency, shared by the readers of its shards.

A reader occupies the places that it reads for before it reads, and gives back those that it did not fill. Free places go round the
readers whose shard is known to have work, in the order in which they ask. A shard that was found empty is *quiet*: its reader blocks
until something arrives, and must not occupy places meanwhile that another shard has work for. So such a read occupies none, and begins
only while there are places to spare; the little that may arrive when they are gone is handed back. While there are none to spare, a quiet
shard is looked at without blocking, now and then and when its turn comes.

With one reader there is nobody to share with: it always blocks, on places that it occupies.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from command_bus.clock import mono

__all__ = ["Ask", "Slots"]

_LOOK_AGAIN = 0.1
"""Seconds after which a quiet shard is looked at while places are scarce: an idle worker would have been woken at once."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a reader may ask for.

    Attributes:
        count: How many activations at most.
        occupied: How many places it has for them already.
        blocks: Whether it may wait for them.
    """

    count: int
    occupied: int
    blocks: bool


class Slots:
    """The free places, and who takes which.

    Args:
        total: How many there are.
        readers: How many readers share them; they are known by their numbers.
    """

    def __init__(self, total: int, readers: int = 1) -> None:
        self.total = total
        self.free = total
        self._readers = readers
        self._line: deque[asyncio.Event] = deque()
        self._busy = set(range(readers))
        self._looked = [0.0] * readers
        self._spare = asyncio.Event()

    async def ask(self, reader: int, wanted: int) -> Ask:
        """Wait until a reader may read, and for how many."""
        if self._readers > 1 and reader not in self._busy:
            if await self._spare_until(self._looked[reader] + _LOOK_AGAIN):
                return Ask(self._share(wanted, self._readers), 0, blocks=True)
            wanted = 1
        count = await self._occupy(wanted)
        return Ask(count, count, blocks=self._readers == 1)

    def answered(self, reader: int, ask: Ask, fetched: int, needed: int) -> int:
        """A read came back: how many of the `needed` places it has; what it does not need of the occupied is free again.

        Args:
            reader: Whose.
            ask: What it was allowed.
            fetched: Entries of any kind. As many as it asked for: there may be more.
            needed: Those among them that need a place.
        """
        self._looked[reader] = mono()
        if fetched < ask.count:
            self._busy.discard(reader)
        else:
            self._busy.add(reader)
        had = min(needed, ask.occupied) if ask.occupied else min(needed, self.free)
        self.give(ask.occupied - had)
        return had

    def give(self, count: int = 1) -> None:
        """Free places; or, if it is less than nothing, occupy them."""
        self.free += count
        self._wake()

    # Who is next.

    def _share(self, wanted: int, among: int) -> int:
        return min(wanted, max(1, self.free // max(1, among)))

    def _wake(self) -> None:
        """Let the first in line go on, and those who wait to block if there is something to spare."""
        if self.free > 0 and self._line:
            self._line[0].set()
        if self._has_spare():
            self._spare.set()
        else:
            self._spare.clear()

    def _has_spare(self) -> bool:
        """Whether nobody is kept from a place by a read that blocks: each could have one, or nobody has work for them."""
        return self.free >= self._readers or (self.free > 0 and not self._busy)

    async def _spare_until(self, deadline: float) -> bool:
        """Wait for places to spare; whether there are some."""
        try:
            async with asyncio.timeout(max(0.0, deadline - mono())):
                while not self._has_spare():
                    await self._spare.wait()
        except TimeoutError:
            return False
        return True

    async def _occupy(self, wanted: int) -> int:
        """Wait in line for free places, and take a share. Those freed in one turn of the event loop are taken together."""
        turn = asyncio.Event()
        self._line.append(turn)
        try:
            while self._line[0] is not turn or self.free <= 0:
                turn.clear()
                await turn.wait()
            count = self._share(wanted, len(self._busy))
            self.free -= count
        finally:
            self._line.remove(turn)
            self._wake()
        return count
