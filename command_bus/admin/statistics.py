"""Statistics of a namespace, from counters and lengths: never from a scan of its commands."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from command_bus.admin.info import PriorityInfo, Stats
from command_bus.clock import mono
from command_bus.errors import EntitiesStopped, IdleTimeout
from command_bus.messages.policies import PRIORITIES
from command_bus.serialization.announcements import WorkerInfo, read_worker
from command_bus.session import OnSession
from command_bus.transport.mailboxes import mailbox_label
from command_bus.transport.records import ShardSnapshot

_NAMED = 100
_POLL_FIRST, _POLL_LAST = 0.01, 0.1  # seconds


class Statistics(OnSession):
    """Reads the figures of all shards.

    Args:
        session: Connections and settings of the bus.
    """

    async def stats(self) -> Stats:
        """Return the sum over the shards."""
        shots = await asyncio.gather(
            *(self._transport.operator.statistics.snapshot(shard) for shard in range(self._transport.shards))
        )
        counters: Counter[str] = Counter()
        for shot in shots:
            counters.update(shot.counters)
        read: dict[str, Any] = {}
        for each in fields(Stats):
            if name := each.metadata.get("counter"):
                read[each.name] = max(counters[name], 0)
            elif name := each.metadata.get("figure"):
                read[each.name] = sum(getattr(shot, name) for shot in shots)
        workers = _live_workers(shots)
        ended_otherwise = sum(counters[name] for name in ("rejected", "expired", "buried", "cancelled"))
        return Stats(
            ready=max(sum(shot.ready + sum(shot.line or ()) for shot in shots) - read["in_flight"], 0),
            paused=len({scope for shot in shots for scope in shot.paused}),  # that of a type is on every shard
            oldest_age=max((_age(shot) for shot in shots), default=0.0),
            longest_running=max((worker.longest for worker in workers), default=0.0),
            completed=counters["settled"] - ended_otherwise,
            workers=workers,
            priorities=_priorities(shots),
            schedule_overdue=max((_overdue(shot) for shot in shots), default=0.0),
            **read,
        )

    async def until_idle(self, timeout: float | None) -> None:
        """Wait until nothing is left, at most `timeout` seconds.

        Raises:
            EntitiesStopped: All that is left waits for an operator.
            IdleTimeout: There is still work.
        """
        deadline = math.inf if timeout is None else mono() + timeout
        pause = _POLL_FIRST
        while depth := await self.busy():
            if mono() >= deadline:
                raise IdleTimeout(f"{depth} commands are not settled after {timeout:g} s", depth=depth)
            await asyncio.sleep(min(pause, max(deadline - mono(), 0.0)))
            pause = min(pause * 1.5, _POLL_LAST)

    async def busy(self) -> int:
        """Return how many commands and entities are not settled; 0 if all is idle.

        Several shards are not read at one moment: they are idle only if nothing was accepted or settled between two looks at all of
        them: a follow-up that goes to another shard may be missed by the first.

        Raises:
            EntitiesStopped: All that is left waits for an operator.
        """
        left, events = await self._look()
        if left or self._transport.shards == 1:
            return left
        left, again = await self._look()
        return left or int(again != events)

    async def _look(self) -> tuple[int, int]:
        """Return what is left, and how many commands were ever accepted or settled."""
        left = events = 0
        moving = False
        stopped: list[str] = []
        transport = self._transport
        for shard in range(transport.shards):
            shot = await transport.operator.statistics.snapshot(shard)
            events += shot.counters["accepted"] + shot.counters["settled"]
            if not shot.active and not shot.due:
                continue
            left += max(shot.counters["depth"], 1)
            names = None
            if (shot.paused or shot.parked) and not shot.due and not shot.ends:
                names = await transport.operator.statistics.stopped(shard, _NAMED)
            if names:
                stopped += names
            else:
                moving = True
        if stopped and not moving:
            labels = tuple(mailbox_label(name) for name in stopped[:_NAMED])
            raise EntitiesStopped(
                f"{left} commands wait for an operator: {', '.join(labels[:5])} paused or parked", entities=labels
            )
        return left, events


def _live_workers(shots: Sequence[ShardSnapshot]) -> tuple[WorkerInfo, ...]:
    found: dict[str, WorkerInfo] = {}
    for shot in shots:
        for record in shot.workers:
            info = read_worker(record)
            if info is not None and info.seen_ms >= shot.now_ms - info.patience_ms:
                found[info.name] = info
    return tuple(found.values())


def _priorities(shots: Sequence[ShardSnapshot]) -> tuple[PriorityInfo, ...]:
    used = [shot for shot in shots if shot.line is not None]
    if not used:
        return ()
    return tuple(
        PriorityInfo(each, sum((shot.line or (0, 0, 0))[at] for shot in used), sum(shot.starts[at] for shot in used))
        for at, each in enumerate(PRIORITIES)
    )


def _age(shot: ShardSnapshot) -> float:
    return 0.0 if shot.oldest_ready_ms is None else max(0, shot.now_ms - shot.oldest_ready_ms) / 1000


def _overdue(shot: ShardSnapshot) -> float:
    """Return for how many seconds the first schedule of a shard has been due."""
    return 0.0 if shot.schedule_ms is None else max(shot.now_ms - shot.schedule_ms, 0) / 1000
