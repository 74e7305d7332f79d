"""`Slots`: the slots of a worker. One entity runs in each. They limit a worker's concurrency, and the readers of its shards share them.

A reader reserves slots before it reads, and returns those that it did not fill. Free slots go round the readers whose shard is known to
have work, in the order in which they ask. A shard that was found empty is *quiet*: its reader blocks until something arrives, and must not
reserve slots that another shard has work for. So such a read reserves none, and begins only while there are slots to spare; the little
that may arrive when they are gone is given back. While there are none to spare, a quiet shard is read without blocking, from time to time
and when its turn comes.

A single reader shares with no other: it always blocks, on slots that it has reserved.

A worker that had to turn work away, because its threads hang, does not block: the server would hand it activations that a worker which can
run them waits for as well. It reads from time to time, for activations that no other worker takes.

While the slots are paused no reader may read, and what a read that is under way brings is given back. Those that run are not concerned.

A handler that waits for the bus lends its slot, so that the command that it waits for can run here. When it goes on it takes a slot
before any reader does. It also takes one that a blocking read has reserved: what that read brings beyond the slots left is given back,
which is work for the server and for a worker. A read that does not block is answered soon, so it keeps its slots for a moment.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from command_bus.clock import mono

_LOOK_AGAIN = 0.1
"""Seconds after which a quiet shard is looked at while slots are scarce: an idle worker would have been woken at once."""
_KEPT = 0.05
"""Seconds for which a read that does not block keeps its slots from handlers that go on: its server may be away."""
_STANDSTILL = 2.0
"""Seconds in which no handler that waits went on, although as many wait as may."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Permission to read.

    Attributes:
        count: How many activations at most.
        reserved: How many slots it has for them already.
        blocks: Whether it may wait for them.
    """

    count: int
    reserved: int
    blocks: bool


class Slots:
    """The free slots, and who takes which.

    Args:
        total: How many there are.
        readers: How many readers share them; they are known by their numbers.
        max_lent: How many may be lent at a time.
        is_stuck: Whether some of the work cannot be run here for now: then a reader waits for nothing that others may wait for.
        drained: Called when all work is over, and a read of each reader has brought none since.
    """

    def __init__(
        self,
        total: int,
        readers: int = 1,
        max_lent: int = 0,
        *,
        is_stuck: Callable[[], bool] = lambda: False,
        drained: Callable[[], None] = lambda: None,
    ) -> None:
        self.total = total
        self.paused = False
        self.running = 0
        self.lent = 0
        self._max_lent = max_lent
        self._is_stuck = is_stuck
        self._drained = drained
        self._silent: set[int] | None = None
        """Readers that have read nothing since there was work; None before there was any, and once that was said."""
        self._moved_at = mono()
        self._reserved = 0
        self._kept = 0  # of those: for reads that do not block
        self._until_kept: asyncio.TimerHandle | None = None
        self._readers = readers
        self._line: deque[tuple[int, asyncio.Event]] = deque()
        self._returning: deque[asyncio.Future[None]] = deque()
        self._busy = set(range(readers))
        self._looked = [0.0] * readers
        self._spare = asyncio.Event()

    @property
    def free(self) -> int:
        """Slots in which no entity runs and that no read has reserved; below zero if a handler took a reserved one. 0 while paused."""
        return 0 if self.paused else self.total - self.running - self._reserved

    @property
    def all_lent(self) -> bool:
        """Whether no more may be lent."""
        return self.lent >= self._max_lent

    def pause(self) -> None:
        """Let no reader read until `resume`."""
        self.paused = True
        self._wake()

    def resume(self) -> None:
        """Let readers read again."""
        self.paused = False
        self._wake()

    def resize(self, total: int) -> None:
        """Have another number of slots; those beyond it are free no more once what runs in them has ended."""
        self.total = total
        self._give_turns()
        self._wake()

    # For readers.

    async def ask(self, reader: int, wanted: int, *, may_block: bool = True) -> Ask:
        """Wait until a reader may read, and for how many; `may_block` is whether the read may wait for work."""
        if self._is_stuck():
            await asyncio.sleep(_LOOK_AGAIN)
            return await self._reserved_ask(reader, wanted, blocks=False)
        if self._readers > 1 and reader not in self._busy:
            if await self._spare_until(self._looked[reader] + _LOOK_AGAIN):
                return Ask(self._share(wanted, self._readers), 0, blocks=True)
            wanted = 1
        return await self._reserved_ask(reader, wanted, blocks=may_block and self._readers == 1)

    async def _reserved_ask(self, reader: int, wanted: int, *, blocks: bool) -> Ask:
        count = await self._reserve(reader, wanted)
        if not blocks:
            self._kept += count
        return Ask(count, count, blocks)

    def answered(self, reader: int, ask: Ask, fetched: int, needed: int) -> int:
        """Record that a read came back; return how many of the `needed` slots it has. Those are taken now, the other reserved ones free.

        Args:
            reader: The number of the reader.
            ask: What it was allowed.
            fetched: Entries of any kind. As many as it asked for: there may be more. -1: it failed.
            needed: Those among them that need a slot.
        """
        self._looked[reader] = mono()
        if fetched < ask.count:
            self._busy.discard(reader)
        else:
            self._busy.add(reader)
        self._reserved -= ask.reserved
        if not ask.blocks:
            self._kept -= ask.reserved
        room = min(ask.reserved, self.total - self.running) if ask.reserved and not self.paused else self.free
        had = max(0, min(needed, room))
        self.running += had
        if fetched >= 0:
            self._note(reader, work=needed > 0)
        self._give_turns()
        self._wake()
        return had

    def _note(self, reader: int, *, work: bool) -> None:
        """Note whether a read that was answered has brought work."""
        if work:
            self._silent = set()
        elif self._silent is not None:
            self._silent.add(reader)
            if len(self._silent) == self._readers and not self.running and not self.lent:
                self._silent = None
                self._drained()

    def another_waits(self, reader: int) -> bool:
        """Return whether the reader of another shard waits for a slot."""
        return any(waiting != reader for waiting, _ in self._line)

    # For those that run.

    def give(self) -> None:
        """Give a slot back: to a handler that goes on, else to the readers."""
        self.running -= 1
        self._give_turns()
        self._wake()

    def _give_turns(self, *, also_kept: bool = False) -> None:
        """Give slots to handlers that go on, those that reads keep only with `also_kept`."""
        kept = 0 if also_kept else self._kept
        while self._returning and self.running + kept < self.total:
            turn = self._returning.popleft()
            if not turn.done():  # else its handler was cancelled in this turn of the event loop, and takes a slot itself
                self.take_back_now()
                turn.set_result(None)
        if self._returning and self.running < self.total and self._until_kept is None:
            self._until_kept = asyncio.get_running_loop().call_later(_KEPT, self._give_kept)

    def _give_kept(self) -> None:
        self._until_kept = None
        self._give_turns(also_kept=True)

    def lend(self, *, beyond: bool = False) -> bool:
        """Lend the slot of a handler that waits; return False if no more may be lent. `beyond` lends it all the same."""
        if self.all_lent and not beyond:
            return False
        self.lent += 1
        self._moved_at = mono()
        self.give()
        return True

    def take_back(self) -> asyncio.Future[None]:
        """Take a slot again for a handler that goes on, before any reader does; return what is done once it has one."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._returning.append(turn)
        self._give_turns()
        return turn

    def withdraw(self, turn: asyncio.Future[None]) -> bool:
        """Leave the slot lent that `take_back` waits for, and end that wait; return False if the slot is taken already."""
        if turn.done() and not turn.cancelled():
            return False
        if turn in self._returning:
            self._returning.remove(turn)
        if not turn.done():
            turn.set_result(None)
        return True

    def take_back_now(self) -> None:
        """Take a slot again at once, also beyond the total."""
        self.lent -= 1
        self.running += 1
        self._moved_at = mono()

    def admits_caller(self) -> bool:
        """Return whether a handler may begin that will lend its slot.

        If no more may be lent: one may, after each period in which none of those that wait went on. They may wait for this command, or for
        one behind it in its mailbox.
        """
        if not self.all_lent:
            return True
        if mono() - self._moved_at < _STANDSTILL:
            return False
        self._moved_at = mono()
        return True

    # Who is next.

    def _share(self, wanted: int, among: int) -> int:
        return min(wanted, max(1, self.free // max(1, among)))

    def _wake(self) -> None:
        """Let the first in line go on, and those who wait to block if there is something to spare."""
        if self.free > 0 and self._line:
            self._line[0][1].set()
        if self._has_spare():
            self._spare.set()
        else:
            self._spare.clear()

    def _has_spare(self) -> bool:
        """Return whether a read that blocks keeps no reader from a slot: each could have one, or none has work."""
        return self.free >= self._readers or (self.free > 0 and not self._busy)

    async def _spare_until(self, deadline: float) -> bool:
        """Wait for slots to spare; whether there are some."""
        try:
            async with asyncio.timeout(max(0.0, deadline - mono())):
                while not self._has_spare():
                    self._spare.clear()  # slots are taken without a word to those who wait here
                    await self._spare.wait()
        except TimeoutError:
            return False
        return True

    async def _reserve(self, reader: int, wanted: int) -> int:
        """Wait in line for free slots, and reserve a share. Those freed in one turn of the event loop are reserved together."""
        turn = (reader, asyncio.Event())
        self._line.append(turn)
        try:
            while self._line[0] is not turn or self.free <= 0:
                turn[1].clear()
                await turn[1].wait()
            count = self._share(wanted, len(self._busy))
            self._reserved += count
        finally:
            self._line.remove(turn)
            self._wake()
        return count
