"""`Offers`: when a worker offers a command again that it cannot run, as it does not know it or its handlers would all wait.

Few are offered once a second each. But each offer is work for the server and for a worker, and waits in the same stream as commands that are
known. So a worker gives its offers turns, a thousand a second: the more commands wait, the longer each waits for its turn. Ten seconds are
the most; where more wait than have turns in ten seconds, several share one.

An offer goes to the worker that reads next. By chance a command is passed on at once instead of waiting: waiting alone would offer it to the same
workers for ever, for the server wakes readers in turn, and each wait wakes two, one for its clock and one for the command. While many
wait that is rare: then readers do not sleep, and come in no order.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

from command_bus.clock import mono
from command_bus.errors import CommandBusError
from command_bus.messages.event import handles
from command_bus.serialization.announcements import worker_statuses
from command_bus.transport.steps import GIVE_BACK_UNCOUNTED, GiveBack, Retry, Started, Step

_KEPT = 5.0
"""Seconds for which an answer is used."""


class OtherWorkers:
    """The commands of all live workers.

    Args:
        records: Reads the records of the workers.
    """

    def __init__(self, records: Callable[[], Awaitable[list[tuple[int, bytes]]]]) -> None:
        self._records = records
        self._commands: frozenset[str] = frozenset()
        self._asked = mono() - _KEPT

    async def handle(self, name: str) -> bool:
        """Return whether a live worker handles a command of this name; True if that cannot be read now."""
        if mono() - self._asked >= _KEPT:
            try:
                records = await self._records()
            except CommandBusError:
                return True
            live = (each for each in worker_statuses(records) if each.alive)
            self._commands, self._asked = frozenset(name for each in live for name in each.commands), mono()
        return handles(self._commands, name)


_log = logging.getLogger("command_bus.worker")
_SHORTEST_MS, _LONGEST_MS = 1000, 10_000
_EVERY_MS = 1
_OFFERS_LEFT = 4
"""A command waits for at most this part of what is left of its grace: the nearer its end, the more often it is offered."""
_UNKNOWN_NAMES = 100
"""Names of unknown commands that a worker warns of, each once; and of which it knows since when none handles them."""
_OUT_OF_SIGHT_MS = 2 * _LONGEST_MS
"""Of a name that was not offered for so long nothing is known: a worker that handles it may have come and gone."""
_PASS_ON = 0.5
"""The chance that a command is passed on at once while few wait."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The decision to leave a command to a newer worker.

    Attributes:
        left_ms: Milliseconds until its grace is over, by its own first offer; 0 or less if it is.
        name: Its wire name; empty if that cannot be read.
        command_id: Its id; empty if that cannot be read.
        why: What keeps this worker from running it.
        otherwise: Makes its end, once its grace is over and no live worker handles it; None if that cannot be told by its name.
        waits_since: When its own grace began at the earliest, in ms: none is given up that came later.
    """

    left_ms: int
    name: str
    command_id: str
    why: str
    otherwise: Callable[[], Step] | None = None
    waits_since: int = 0


class Behind(NamedTuple):
    """The decision to start a command again under a higher fence: it runs for entities in a shard whose clock is ahead, too.

    Attributes:
        mailbox: Its own.
        fence: The one that it has to be above.
    """

    mailbox: str
    fence: int


class Offers:
    """The turns of one worker's offers.

    Args:
        random: For what is passed on.
        worker: Its name.
        others: Knows what other workers handle; None: nothing.
        raise_fence: Sees to it that the next starts in the shard of a mailbox have higher fences than one.
    """

    def __init__(
        self,
        random: Random,
        worker: str,
        others: OtherWorkers | None = None,
        raise_fence: Callable[[str, int], Awaitable[int]] | None = None,
    ) -> None:
        self._raise_fence = raise_fence
        self._random = random
        self._others = others
        self._worker = worker
        self._free_ms = 0
        self._warned_of: set[str] = set()
        self._unhandled: dict[
            str, tuple[int, int]
        ] = {}  # by name: since when no live worker handles it, and when it was last offered

    async def left(self, started: Started, offer: Offer | Behind) -> Step:
        """Leave a command that this worker does not know to others; end it if its grace is over and no live worker handles it.

        One that may run, though not under this fence, is started again.

        Its grace begins when no live worker handles its name any more, though not before it came: of many in one line, each has waited while
        the first was offered.
        """
        if isinstance(offer, Behind):
            if self._raise_fence is not None:
                await self._raise_fence(*offer)
            return GIVE_BACK_UNCOUNTED
        if offer.otherwise is None:
            return self.unknown(started, offer)
        if self._others is not None and await self._others.handle(offer.name):
            self._unhandled.pop(offer.name, None)
            return self.again(started.now_ms)
        since, first = self._unhandled_since(offer.name, started.now_ms), started.woken_ms
        if started.attempt <= 1:  # else it was handled since its first start
            since = min(since, first)
        left_ms = offer.left_ms + max(since, offer.waits_since) - first
        return self.unknown(started, replace(offer, left_ms=left_ms)) if left_ms > 0 else offer.otherwise()

    def _unhandled_since(self, name: str, now_ms: int) -> int:
        """Return since when no live worker handles a name, as far as this one knows."""
        since, seen = self._unhandled.get(name, (now_ms, now_ms))
        if now_ms - seen > _OUT_OF_SIGHT_MS:
            since = now_ms
        if name in self._unhandled or len(self._unhandled) < _UNKNOWN_NAMES:
            self._unhandled[name] = (since, now_ms)
        return since

    def unknown(self, started: Started, offer: Offer) -> GiveBack | Retry:
        """Return how a command is offered next that this worker does not know. Warn once of each name."""
        if offer.name not in self._warned_of and len(self._warned_of) < _UNKNOWN_NAMES:
            self._warned_of.add(offer.name)
            grace = (started.now_ms - started.woken_ms + offer.left_ms) / 1000
            _log.warning(
                "%s: its entity waits for a worker that has one, and it becomes a dead letter %g s after it was first offered",
                offer.why, grace, extra={"command": offer.name, "command_id": offer.command_id, "worker": self._worker},
            )  # fmt: skip
        return self.next(started.now_ms, offer.left_ms)

    def again(self, now_ms: int) -> GiveBack | Retry:
        """Return how a command is offered next, without an end: it is known to this worker, or to another one that lives."""
        return self.next(now_ms, _LONGEST_MS * _OFFERS_LEFT)

    def next(self, now_ms: int, left_ms: int) -> GiveBack | Retry:
        """Return how a command is offered next: at once, or within ten seconds, and before its grace is over.

        Args:
            now_ms: By the server's clock, which may jump.
            left_ms: Until its grace is over, more than 0.
        """
        turn = self._turn_in(now_ms)
        pause = min(turn, max(left_ms // _OFFERS_LEFT, _SHORTEST_MS))
        if self._random.random() < _PASS_ON * _SHORTEST_MS / pause:
            return GIVE_BACK_UNCOUNTED
        self._free_ms = now_ms + turn + _EVERY_MS
        return Retry(min(pause, left_ms), counts=False)

    def _turn_in(self, now_ms: int) -> int:
        """Return the milliseconds until the first free turn."""
        turn = max(self._free_ms - now_ms, _SHORTEST_MS)
        return turn if turn <= _LONGEST_MS else _LONGEST_MS // 2  # none is: a second command gets those of the later half
