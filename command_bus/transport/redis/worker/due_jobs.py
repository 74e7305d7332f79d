"""The work that becomes due beside commands and retries, one job for each kind of member: schedules (`s:`), ends of pauses (`p:`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from command_bus.errors import NewerState
from command_bus.randomness import JITTER
from command_bus.transport.redis.admin.holds import PAUSE_END, RedisHolds
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.keys import KeySpace, ShardKeys
from command_bus.transport.redis.scheduling.store import RedisSchedules
from command_bus.transport.redis.worker.due_work import Member, Performed
from command_bus.transport.redis.worker.periodic import run_periodically
from command_bus.transport.schedule_interfaces import DueSchedules

_PATIENCE = 2.0
"""Seconds for which one request is repeated: other due work waits meanwhile."""
_ROUND = 60.0
"""Seconds in which a worker looks over all schedules of a shard, if they are one page; with more pages it takes as much longer."""
_SHORTEST_PAUSE = 2.0


class PauseJob:
    """Ends pauses of one shard whose time has come.

    Args:
        connections: Of this process.
        keys: All shards.
        shard: This one.
    """

    def __init__(self, connections: Connections, keys: KeySpace, shard: ShardKeys) -> None:
        self._holds = RedisHolds(connections, keys, patience=_PATIENCE)
        self._shard = shard

    async def perform(self, members: Sequence[Member]) -> Performed:
        """See `DueJob`."""
        done, left = 0, list[str]()
        for member in members:
            try:
                done += await self._holds.over(self._shard, member.name.removeprefix(PAUSE_END), member.score)
            except NewerState:  # a worker of that release ends it
                left.append(member.name)
        return Performed(done, left)


class ScheduleJob:
    """Fires the schedules of one shard that are due.

    Args:
        schedules: Knows how.
    """

    def __init__(self, schedules: DueSchedules) -> None:
        self._schedules = schedules

    async def perform(self, members: Sequence[Member]) -> Performed:
        """See `DueJob`."""
        done, left = await self._schedules.fire_due([member.name[2:] for member in members])
        return Performed(done, [f"s:{name}" for name in left])


class ScheduleSweep:
    """Looks over all schedules of a shard, a page at a time.

    Args:
        connections: Of this process.
        keys: All shards.
        shard: This one.
        schedules: Knows what to do about them.
    """

    def __init__(self, connections: Connections, keys: KeySpace, shard: ShardKeys, schedules: DueSchedules) -> None:
        self._outage = connections.at(shard.prefix).outage
        self._store = RedisSchedules(connections, keys, patience=_PATIENCE, max_total_depth=0)
        self._shard = shard
        self._schedules = schedules
        self._cursor = 0

    async def run(self) -> None:
        """Run until cancelled."""
        await run_periodically(self.turn, asyncio.Event(), f"{self._shard.prefix} schedules", self._outage)

    async def turn(self) -> float:
        """Look over a page; return the seconds until the next turn."""
        self._cursor, page = await self._store.page(self._shard, self._cursor)
        if page:
            await self._schedules.look_over(page)
        return (_SHORTEST_PAUSE if self._cursor else _ROUND) * JITTER.uniform(0.8, 1.2)
