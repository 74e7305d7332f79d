"""`PendingRecovery`: takes over expired leases, and wakes what has become due.

A lease is expired when its pending entry has been idle for the lease's length. The server's idle times follow its wall clock, which can
jump; so a lease is watched twice. When its idle time first passes 0.55 of the lease, (activation, renewal sequence) is noted, the
rest is waited for on this process's own monotonic clock, and it is taken over (XCLAIM, which only one of several recoverers wins) only
if the sequence is still the same: nobody renewed it meanwhile.

What was started is then settled by the policy of its command: run again, or dead-lettered as interrupted. What was only delivered
is made ready again, and that is not an attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from redis.asyncio import Redis

from command_bus.clock import mono
from command_bus.errors import CommandBusError
from command_bus.randomness import JITTER
from command_bus.transport.interfaces import Bury, GiveBack, Lease, Started, Step, Steps
from command_bus.transport.redis.cancellation import end_tasks
from command_bus.transport.redis.connections import Backoff, Connections
from command_bus.transport.redis.keys import GROUP, KeySpace, ShardKeys, mailbox_label
from command_bus.transport.redis.ready import mailbox_of, repair_page
from command_bus.transport.redis.scripts import FORGET, PROMOTE

__all__ = ["PendingRecovery", "rest_of"]

_log = logging.getLogger("command_bus.worker")
_PAGE = 200
_CHECK = 1.0

Decide = Callable[[Started], Step]
_SUSPECT = 0.55
"""The part of a lease without renewal after which its owner is watched: later than it renews, early enough for `_SHORTEST_WATCH`."""
_SHORTEST_WATCH = 0.4
_OVER = 0.9
"""The part of a lease that must be over by the server's clock when it is taken: a request that was long under way comes too late for it."""
_TOLD_OF = 3600.0
"""Seconds for which a lost worker is told of, at least: who is called at night comes later than ten of the shortest leases."""
_LATE = 0.1
"""The part of a lease by which answers may be late: idle since a little later is no sign of life."""


def rest_of(lease: float, idle: float) -> float:
    """Seconds to watch a suspect before it is taken over.

    Until the lease ends; but if that is soon, or seems to be over already (the server's clock jumped, or nobody was watching), longer than the
    third of it after which an owner that lives renews.
    """
    return max(lease * _SHORTEST_WATCH, lease - idle) if idle < lease else lease / 2


class _Suspect(NamedTuple):
    """A lease that may be over: the renewal sequence that was seen, since when it is idle, and how long it is watched.

    Either shows a sign of life: a renewal counts the sequence up, and a claim (of what a broken connection was assigned, say) only
    begins the idle time anew.
    """

    sequence: int
    since: float
    until: float


class PendingRecovery:
    """Watches every shard for expired leases and due work.

    Args:
        connections: Of this process.
        keys: The shards.
        owner: This worker's consumer name.
        lease: Seconds that a lease lives.
        steps: Carries the decisions out.
        decide: What to do with a command that was interrupted.
    """

    def __init__(
        self, connections: Connections, keys: KeySpace, *, owner: str, lease: float, steps: Steps, decide: Decide
    ) -> None:
        self._watches = [
            _Watch(connections.at(shard.prefix), shard, index, owner, lease, steps, decide)
            for index, shard in enumerate(keys.shards)
        ]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to watch; returns at once."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(watch.run(), name=f"command_bus.recovery {watch.keys.prefix}") for watch in self._watches]

    def kick(self, shard: int) -> None:
        """Something may be due earlier than known."""
        self._watches[shard].kick()

    async def settle(self, shard: int, activations: list[tuple[str, str]], *, ours: bool = False) -> None:
        """Settle activations (id, mailbox) that nobody holds; with `ours`, none whose holder was another worker, which may live."""
        watch = self._watches[shard]
        await asyncio.gather(*(watch.settle(activation, mailbox, ours=ours) for activation, mailbox in activations))

    @property
    def recovered(self) -> int:
        """Leases taken over so far."""
        return sum(watch.recovered for watch in self._watches)

    async def stop(self) -> None:
        """Stop watching."""
        await end_tasks(self._tasks)


class _Watch:
    """One shard's watch."""

    def __init__(
        self, connections: Connections, keys: ShardKeys, shard: int, owner: str, lease: float, steps: Steps, decide: Decide
    ) -> None:
        self.keys = keys
        self.recovered = 0
        self._connections = connections
        self._shard = shard
        self._owner = owner
        self._lease = lease
        self._steps = steps
        self._decide = decide
        self._kicked = asyncio.Event()
        self._suspects: dict[str, _Suspect] = {}
        self._next_due: float | None = None
        self._sweep_at = 0.0
        self._repaired_to = 0

    def kick(self) -> None:
        self._kicked.set()

    async def run(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._promote()
                await self._recover()
                await self._sweep()
                await self._connections.keep_scripts()
                backoff.reset()
                pause = self._pause()
            except CommandBusError as error:
                pause = backoff.next()
                _log.warning("%s: recovery cannot look, next try in %.2f s: %s", self.keys.prefix, pause, error)
            except Exception:  # noqa: BLE001 - whatever it is, leases must be watched
                pause = backoff.next()
                _log.warning("%s: recovery failed, next try in %.2f s", self.keys.prefix, pause, exc_info=True)
            try:
                async with asyncio.timeout(pause):
                    await self._kicked.wait()
            except TimeoutError:
                pass
            self._kicked.clear()

    def _pause(self) -> float:
        """Until something is due, a suspect's time is over, or the regular check; at most about a second."""
        now = mono()
        check = min(_CHECK, self._lease / 3) * JITTER.uniform(0.8, 1.2)
        moments = [now + check, *(suspect.until for suspect in self._suspects.values())]
        if self._next_due is not None:
            moments.append(self._next_due)
        return max(0.0, min(moments) - now)

    # Due work.

    async def _promote(self) -> None:
        while True:
            members = await self._due_members()
            keys = self.keys
            args: list[Any] = [GROUP]
            names = [keys.ready, keys.active, keys.due, keys.delayed, keys.later, keys.paused]
            for member, mailbox in members:
                args += (member, mailbox)
                names.append(keys.mailbox(mailbox))
            if not members:
                return
            _, wait_ms = await self._connections.run(PROMOTE, names, args)
            self._next_due = mono() + wait_ms / 1000 if wait_ms >= 0 else None
            if wait_ms != 0:
                return

    async def _due_members(self) -> list[tuple[str, str]]:
        """The members of `due` whose time has come, with their mailboxes."""

        async def look(client: Redis) -> Any:
            pipeline = client.pipeline(transaction=False)
            pipeline.time()
            pipeline.zrange(self.keys.due, 0, _PAGE - 1, withscores=True)
            return await pipeline.execute()

        (seconds, micros), scored = await self._connections.ask(look)
        now_ms = seconds * 1000 + micros // 1000
        due = [member.decode() for member, score in scored if score <= now_ms]
        later = [score for _, score in scored if score > now_ms]
        self._next_due = mono() + (later[0] - now_ms) / 1000 if later else None
        delayed = [member[2:] for member in due if member.startswith("d:")]
        homes: dict[str, str] = {}
        if delayed:
            values: Any = await self._connections.ask(lambda client: client.hmget(self.keys.delayed, delayed))
            homes = {command: value.partition(b"\n")[0].decode() for command, value in zip(delayed, values, strict=True) if value}
        found = []
        for member in due:
            kind, name = member[:2], member[2:]
            mailbox = name if kind == "r:" else homes.get(name, "")
            found.append((member, mailbox))
        return found

    # Expired leases.

    async def _recover(self) -> None:
        pending = await self._idle_leases()
        now = mono()
        suspects: dict[str, _Suspect] = {}
        expired: list[str] = []
        for item in pending:
            activation, sequence, idle = item["message_id"].decode(), item["times_delivered"], item["time_since_delivered"] / 1000
            known = self._suspects.get(activation)
            if known is None or known.sequence != sequence or now - idle > known.since + _LATE * self._lease:
                suspects[activation] = _Suspect(sequence, now - idle, now + rest_of(self._lease, idle))
            elif now >= known.until:
                expired.append(activation)
            else:
                suspects[activation] = known
        self._suspects = suspects
        if expired:
            await self._take_over(expired)

    async def _idle_leases(self) -> list[Any]:
        """All pending entries that are idle for long enough to be watched, page by page."""
        found: list[Any] = []
        start = "-"
        idle = max(1, int(self._lease * 1000 * _SUSPECT))
        while True:
            page: Any = await self._connections.ask(
                lambda client, at: client.xpending_range(self.keys.ready, GROUP, min=at, max="+", count=_PAGE, idle=idle), start
            )
            found += page
            if len(page) < _PAGE:
                return found
            start = "(" + page[-1]["message_id"].decode()

    async def _take_over(self, expired: list[str]) -> None:
        ids: list[Any] = list(expired)
        claimed: Any = await self._connections.ask(
            lambda client: client.xclaim(
                self.keys.ready, GROUP, self._owner, max(1, int(self._lease * 1000 * _OVER)), ids, justid=False
            )
        )
        claimed = [(entry, fields) for entry, fields in claimed if entry is not None]  # Redis 6.2 gives nil for deleted entries
        found = [(entry.decode(), mailbox_of(fields)) for entry, fields in claimed if fields and b"e" in fields]
        litter = [entry.decode() for entry, fields in claimed if not fields or b"e" not in fields]
        await asyncio.gather(*(self.settle(activation, mailbox, idle=True) for activation, mailbox in found), self._drop(litter))

    async def settle(self, activation: str, mailbox: str, *, ours: bool = False, idle: bool = False) -> None:
        """Decide what becomes of one mailbox whose holder is gone; with `ours`, only if the holder was this worker.

        With `idle` it seems to be gone, by its lease; but if it has started a command a moment ago, it was paused, and is back.
        """
        record, now_us = await self._connections.ask(self._look_at, mailbox)
        fields = record.decode().split("|") if record else []
        lease = Lease(self._shard, mailbox, activation, mono() + self._lease)
        if not fields or fields[1] != activation:
            await self._drop([activation])  # its mailbox has moved on: a leftover
            return
        if ours and fields[0] == "h" and fields[-1].partition("#")[0] != self._owner:
            return  # held by another that may well live: its next renewal claims it back, or its lease ends
        if idle and fields[0] == "h" and 0 <= now_us - int(fields[2]) < self._lease * 1e6 * _SHORTEST_WATCH:
            return  # its next renewal claims it back, or its lease ends
        self.recovered += 1
        if fields[0] == "r":
            await self._steps.advance(lease, GiveBack(counts=False))
            return
        _, _, fence, message, attempt, first_ms, holder = fields
        lease.running = f"{fence}|{message}"
        entries: Any = await self._connections.ask(lambda client: client.xrange(self.keys.mailbox(mailbox), message, message))
        content = entries[0][1] if entries else {}
        raw = [part for pair in content.items() for part in pair]
        started = Started(fence, message, int(attempt), int(first_ms), abs(int(first_ms)), content.get(b"e"), raw)
        lost, entity = holder.partition("#")[0], mailbox_label(mailbox)
        _log.warning(
            "worker %s lost %s: its lease ended while a command ran (attempt %s)",
            lost,
            entity,
            attempt,
            extra={"entity": entity, "worker": lost, "attempt": int(attempt)},
        )
        step = self._decide(started)
        if isinstance(step, Bury):
            step.follow = "leave"  # the next command is for whoever reads the new activation: nobody here would run it
        await self._steps.advance(lease, step)

    async def _look_at(self, client: Redis, mailbox: str) -> tuple[bytes | None, int]:
        """A mailbox's state, and the server's time in microseconds, which fences are made of."""
        pipeline = client.pipeline(transaction=False)
        pipeline.hget(self.keys.active, mailbox)
        pipeline.time()
        record, (seconds, micros) = await pipeline.execute()
        return record, seconds * 1_000_000 + micros

    async def _drop(self, activations: list[str]) -> None:
        if not activations:
            return

        async def delete(client: Redis) -> None:
            pipeline = client.pipeline(transaction=False)
            pipeline.xack(self.keys.ready, GROUP, *activations)
            pipeline.xdel(self.keys.ready, *activations)
            await pipeline.execute()

        await self._connections.ask(delete)

    # Workers that have left.

    async def _sweep(self) -> None:
        """Forget workers that have been silent for an hour and ten leases, and hold nothing; look for lost activations, a page at a time."""
        now = mono()
        if now < self._sweep_at:
            return
        self._sweep_at = now + max(60.0, self._lease * 2) * JITTER.uniform(0.8, 1.2)
        self._repaired_to, repaired = await repair_page(self._connections, self.keys, self._repaired_to)
        if repaired:
            _log.warning("%s: %d mailboxes had lost their activation and got a new one", self.keys.ready, repaired)
        consumers: Any = await self._connections.ask(lambda client: client.xinfo_consumers(self.keys.ready, GROUP))
        limit_ms = max(_TOLD_OF, self._lease * 10) * 1000
        for consumer in consumers:
            name = consumer["name"].decode()
            if name != self._owner and consumer["pending"] == 0 and consumer["idle"] > limit_ms:
                await self._connections.run(FORGET, [self.keys.ready, self.keys.workers], [GROUP, name])
