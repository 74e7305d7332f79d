"""`Upkeep`: repairs mailboxes that lost their activation and counters, and removes what is over: lost workers, unique keys, old dead letters.

A mailbox may lose its activation (its entry in the ready stream) with data that the server lost or an operator deleted, or if the
process that resumed it died before it was done. No worker would ever run it. So workers check all mailboxes with work, a page at a time. The fleet
gets through them in about five minutes, whatever their number: after a page a worker pauses for the page's part of all mailboxes, times
the number of workers. Each worker begins at a random place, so that their ways differ.

`LetterPruning`: deletes dead letters that are older than they are kept, or more than are kept, a page at a time.

A letter that parks an entity is never deleted: the entity waits for a decision about it. Workers do this without a word to each other; the
script looks at each letter again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from command_bus.clock import mono
from command_bus.errors import CommandBusError
from command_bus.randomness import JITTER
from command_bus.serialization.envelope import names_of
from command_bus.settings import BusSettings
from command_bus.transport.mailboxes import is_mailbox
from command_bus.transport.redis.admin.statistics import RedisStatistics
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.errors import is_not_permitted
from command_bus.transport.redis.connection.retrying import hash_page, server_ms
from command_bus.transport.redis.keys import GROUP, KeySpace, ShardKeys
from command_bus.transport.redis.maintenance.periodic import Periodic
from command_bus.transport.redis.ready_stream import repair_page
from command_bus.transport.redis.scripts import CHANGE_STATE, PRUNE_LETTERS, REMOVE_WORKER, SWEEP_UNIQUE
from command_bus.transport.unique_keys import mailbox_of_key

_log = logging.getLogger("command_bus.worker")
_PATIENCE = 2.0
_EVERY = 3600.0
"""Seconds in which the fleet counts each shard once, about."""
_MOST = 5_000
"""Mailboxes with work, and delayed commands, of a shard that workers count: the server then takes about ten milliseconds."""


class CounterCheck:
    """The counters of one shard.

    Args:
        connections: Clients that this process shares.
        keys: All shards.
        shard: This one.
    """

    def __init__(self, connections: Connections, keys: KeySpace, shard: ShardKeys) -> None:
        self._recounts = RedisStatistics(connections, keys, patience=_PATIENCE)
        self._connections = connections.at(shard.prefix)
        self._shard = shard
        self._at: float | None = None

    async def turn(self, now: float, workers: int, *, is_idle: bool = False) -> None:
        """Count if it is time, or if the depth can be seen to be wrong.

        Args:
            now: By the monotonic clock.
            workers: How many share the work.
            is_idle: Whether no entity has work.
        """
        if self._at is None:  # workers that start together count at different times
            self._at = now + _EVERY * workers * JITTER.random()
        try:
            if now < self._at and not (is_idle and self._at < float("inf") and await self._is_too_deep()):
                return
            self._at = now + _EVERY * workers * JITTER.uniform(0.8, 1.2)
            await self._count()
        except CommandBusError as error:
            if is_not_permitted(error):
                self._at = float("inf")
            _log.info("%s: the counters were not compared: %s", self._shard.prefix, error)

    async def _is_too_deep(self) -> bool:
        """Return whether the depth is more than what is delayed. Of an idle shard it is that, or a little more while follow-ups are relayed."""
        shard = self._shard
        depth = await self._connections.ask(lambda client: client.hget(shard.stats, "depth"))
        if not (depth or b"").isdigit() or int(depth) == 0:
            return False
        delayed: int = await self._connections.ask(lambda client: client.hlen(shard.delayed))
        return int(depth) > delayed

    async def _count(self) -> None:
        """Compare, and correct what is wrong; what is right is not written, so that nothing brings the keys of a deleted namespace back."""
        found = await self._recounts.recount_shard(self._shard, correct=False, most=_MOST)
        if found.stored == found.counted and found.delayed <= 0:
            return
        found = await self._recounts.recount_shard(self._shard, correct=True, most=_MOST)
        _log.warning(
            "%s: wrong counters are set right: depth was %d, and %d were counted; of %d entities the delayed commands",
            self._shard.prefix,
            found.stored,
            found.counted,
            max(found.delayed, 0),
        )


_PAGE = 200


async def sweep_page(connections: Connections, keys: ShardKeys, cursor: int) -> tuple[int, int, float]:
    """Release those keys of a page whose command is gone.

    Returns:
        The next cursor, how many keys were released, and which part of all keys the page was.

    Raises:
        CommandBusError: The server cannot be asked.
    """
    count, following, found = await connections.ask(hash_page, keys.unique, cursor, _PAGE)
    stored = [key for key in found if is_mailbox(key)]
    names = [keys.unique, keys.active, keys.delayed, *(keys.mailbox(mailbox_of_key(key.decode())) for key in stored)]
    released = int(await connections.run(SWEEP_UNIQUE, names, [len(keys.mailboxes), *stored])) if stored else 0
    return following, released, len(found) / count if count else 1.0


_ROUND = 300.0
"""Seconds in which the fleet looks at every mailbox that has work."""
_LONGEST_PAUSE, _SHORTEST_PAUSE = 60.0, 0.02
_LIMITED_PAUSE = 5.0
"""Seconds between two pages of the fleet, at most, while mailboxes wait for limits."""
_SWEEP = 60.0
_STATES, _FEW = 200, 20
"""States that are looked at together; if more than one of so many is over, the next page is looked at soon."""
_BETWEEN_PAGES = 0.1
"""Seconds between two pages of dead letters while there are more to delete."""
_SHOWN = 3600.0
"""Seconds for which a lost worker is shown, at least: an engineer on call arrives later than ten of the shortest leases."""


_LETTERS = 500
_BYTES = 1024 * 1024
"""Of letters that one script reads, and one letter more: it then takes a few milliseconds, and other clients are served in between."""


class LetterLimits(NamedTuple):
    """The age and number of dead letters that are kept in one shard; None: without a limit."""

    ttl_ms: int | None = None
    most: int | None = None

    @classmethod
    def of(cls, settings: BusSettings, shards: int) -> Self:
        """Return a shard's part of what settings say, the number rounded up."""
        ttl, most = settings.dead_letter_ttl, settings.max_dead_letters
        return cls(None if ttl is None else max(1, int(ttl * 1000)), None if most is None else -(-most // shards))


ALL_LETTERS = LetterLimits()


_MARK_MS = 600_000
"""Milliseconds for which the mark of a durable command is kept once its letter is gone."""


class LetterPruning:
    """The pruning of one shard.

    Args:
        connections: To its server.
        keys: Names of the shard's keys.
        limits: Most age and number of its dead letters.
    """

    def __init__(self, connections: Connections, keys: ShardKeys, limits: LetterLimits) -> None:
        self._connections = connections
        self._keys = keys
        self._limits = limits
        self._after = ""

    async def page(self) -> bool:
        """Look at a page of letters, the oldest first; return whether there may be more to delete."""
        keys, limits = self._keys, self._limits
        if limits.ttl_ms is None and limits.most is None:
            return False
        try:
            deleted, after, unknown = await self._prune({})
            if unknown:
                sides = {letter: names_of(names)[0] for letter, names in zip(unknown[::2], unknown[1::2], strict=True)}
                again, after, _ = await self._prune(sides)
                deleted += again
        except CommandBusError as error:
            if not is_not_permitted(error):
                raise
            _log.warning(
                "%s: no letter is deleted by age or number, make the worker's user with prunes=True: %s", keys.dead, error
            )
            self._limits = ALL_LETTERS
            return False
        self._after = after.decode()
        if deleted:
            _log.info("%s: %d dead letters are deleted: too old, or too many", keys.dead, deleted)
        return bool(self._after)

    async def _prune(self, sides: Mapping[bytes, str]) -> tuple[int, bytes, list[bytes]]:
        """Delete what may go; of letters that kept a side record those whose command is known."""
        keys, limits = self._keys, self._limits
        names = [keys.ready, keys.dead, keys.parked, keys.stats, keys.watched, keys.events]
        most, ttl = ("" if each is None else each for each in (limits.most, limits.ttl_ms))
        args = [GROUP, ttl, most, self._after, _LETTERS, _BYTES, _MARK_MS, *sides]
        for command_id in sides.values():
            names += (keys.side(command_id), keys.mark(command_id))
        answer: tuple[int, bytes, list[bytes]] = await self._connections.run(PRUNE_LETTERS, names, args)
        return answer


@dataclass(eq=False)
class Upkeep(Periodic):
    """The upkeep of one shard.

    Attributes:
        worker: This worker's name, which is that of its consumer.
        lease: Seconds that a lease lives.
        letters: How long and how many dead letters are kept.
        limited: Told which mailboxes of a page wait for limits; None if other workers look after them.
        over: Returns whether a mailbox's state is kept no longer at a time; None: all are kept for ever.
    """

    name = "upkeep"
    worker: str
    lease: float
    letters: LetterLimits = ALL_LETTERS
    limited: Callable[[Sequence[str]], Awaitable[None]] | None = None
    over: Callable[[bytes, bytes, int], bool] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._cursor = JITTER.getrandbits(32)
        self._unique_cursor = JITTER.getrandbits(32)
        self._state_cursor = 0
        self._states_at = 0.0
        self._sweep_at = 0.0
        self._pruning = LetterPruning(self.server, self.keys, self.letters)
        self._prune_at = 0.0
        self._workers = 1
        self._counters = CounterCheck(self.connections, self.space, self.keys)
        self._longest = _LONGEST_PAUSE

    async def turn(self) -> float:
        """Check a page of mailboxes, and now and then the workers; return the seconds until the next turn."""
        now = mono()
        if now >= self._sweep_at:
            self._sweep_at = now + max(_SWEEP, self.lease * 2) * JITTER.uniform(0.8, 1.2)
            await self._remove_lost()
        if now >= self._prune_at:
            pause = _BETWEEN_PAGES if await self._pruning.page() else _LONGEST_PAUSE
            self._prune_at = now + pause * JITTER.uniform(0.8, 1.2)
        if self.over is not None and now >= self._states_at:
            pause = _BETWEEN_PAGES if await self._delete_states(self.over) else _LONGEST_PAUSE
            self._states_at = now + pause * JITTER.uniform(0.8, 1.2)
        part = min(await self._repair(), await self._sweep())
        pause = min(self._longest, max(_SHORTEST_PAUSE, _ROUND * self._workers * part)) * JITTER.uniform(0.8, 1.2)
        next_at = self._prune_at if self.over is None else min(self._prune_at, self._states_at)
        return max(_SHORTEST_PAUSE, min(pause, next_at - mono()))

    async def _repair(self) -> float:
        """Repair a page of mailboxes, and now and then the counters; return which part of all mailboxes it was."""
        page = await repair_page(self.server, self.keys, self._cursor)
        self._cursor, self._longest = page.cursor, _LONGEST_PAUSE
        if page.repaired:
            _log.warning("%s: %d mailboxes had lost their activation and got a new one", self.keys.ready, page.repaired)
        await self._counters.turn(mono(), self._workers, is_idle=page.idle)
        if page.limited and self.limited is not None:
            self._longest = min(_LONGEST_PAUSE, _LIMITED_PAUSE * self._workers)
            with suppress(CommandBusError):  # of the first shard, which is asked: the next round finds them again
                await self.limited(page.limited)
        return page.part

    async def _sweep(self) -> float:
        """Release those unique keys of a page whose command is gone; return which part of all it was."""
        self._unique_cursor, released, part = await sweep_page(self.server, self.keys, self._unique_cursor)
        if released:
            _log.info("%s: %d unique keys were held by no command any more, or their window was over", self.keys.unique, released)
        return part

    async def _delete_states(self, over: Callable[[bytes, bytes, int], bool]) -> bool:
        """Delete those states of a page that are kept no longer, and whose entity does nothing; return whether there may be more soon."""
        key, cursor = self.keys.states, self._state_cursor
        now_ms = server_ms(await self.server.ask(lambda client: client.time()))
        self._state_cursor, page = await self.server.ask(lambda client: client.hscan(key, cursor, count=_STATES))
        ended = [(mailbox, state) for mailbox, state in page.items() if over(mailbox, state, now_ms)]
        for mailbox, state in ended:
            await self.server.run(CHANGE_STATE, [self.keys.active, key], [mailbox, "", 1, state])
        return len(ended) > len(page) // _FEW and self._state_cursor != 0

    async def _remove_lost(self) -> None:
        """Remove workers that have been silent for an hour and ten leases and hold nothing; count the live ones."""
        consumers: Any = await self.server.ask(lambda client: client.xinfo_consumers(self.keys.ready, GROUP))
        limit_ms = max(_SHOWN, self.lease * 10) * 1000
        self._workers = max(1, sum(consumer["idle"] <= self.lease * 1000 for consumer in consumers))
        for consumer in consumers:
            name = consumer["name"].decode()
            if name != self.worker and consumer["pending"] == 0 and consumer["idle"] > limit_ms:
                await self.server.run(REMOVE_WORKER, [self.keys.ready, self.keys.workers], [GROUP, name])
