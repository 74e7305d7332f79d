"""`RedisSchedules`: the records of schedules, and their firings.

A record is a field of the hash `schedules` in the shard of the schedule's name; `due` says when a worker looks at it (`s:<name>`). A firing
is accepted in the shard of its entity, where the hash `fired` has the number of the last one. The two may be different shards, so the
record is changed twice: before the firing, which pins a tick and numbers it, and behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from command_bus.clock import mono
from command_bus.transport.flows import NORMAL_FLOW
from command_bus.transport.ports.schedules import FireAnswer, Firing, RecordChange, ScheduleStore
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.incarnations import Incarnations
from command_bus.transport.redis.keys import GROUP, KeySpace, ShardKeys
from command_bus.transport.redis.scripts import SCHEDULE_BAR, SCHEDULE_CHANGE, SCHEDULE_FIRE

T = TypeVar("T")
_PAGE = 200
_MOST = 500
"""Firings or changes in one script."""
_CONFIRMED = "+=k"
"""Answers that replicas must know of: else a record could be moved on behind a failover that has taken the firing."""


class RedisSchedules(RetryingRequests, ScheduleStore):
    """Implements `ScheduleStore`.

    Args:
        connections: Clients that this process shares.
        keys: The shards.
        patience: As for `RetryingRequests`.
        max_total_depth: Commands that the namespace may hold.
        max_entities: Entities that may have work at a time; None: any number.
    """

    def __init__(
        self,
        connections: Connections,
        keys: KeySpace,
        *,
        patience: float,
        max_total_depth: int,
        max_entities: int | None = None,
    ) -> None:
        super().__init__(connections, keys, patience=patience)
        self._limits = keys.limits(max_total_depth, max_entities)
        self._incarnations = Incarnations(connections, keys, patience=patience)

    async def read(self, names: Sequence[str]) -> list[bytes | None]:
        await self._incarnations.all()  # before the records: what is decided from them is of this time

        async def ask(shard: ShardKeys, part: Sequence[str]) -> list[bytes | None]:
            values: list[bytes | None] = await self._ask(shard, lambda client: client.hmget(shard.schedules, list(part)))
            return values

        return await self._by_shard(names, lambda name: name, ask)

    async def change(self, changes: Sequence[RecordChange]) -> list[bool]:

        async def run(shard: ShardKeys, part: Sequence[RecordChange]) -> list[bool]:
            args: list[Any] = [GROUP, await self._incarnations.of(shard)]
            for each in part:
                args += (each.name, each.before, each.after, "-" if each.due is None else "=" if each.due < 0 else each.due)
                args.append("\n".join(each.told))
            names = [shard.ready, shard.schedules, shard.due, shard.stats, shard.watched, shard.events]
            answer = await self._run(shard, SCHEDULE_CHANGE, names, args)
            self._incarnations.check(answer)
            return [letter == ord("1") for letter in answer]

        return await self._by_shard(changes, lambda each: each.name, run)

    async def fire(self, firings: Sequence[Firing]) -> list[FireAnswer]:
        return await self._by_shard(firings, lambda each: each.mailbox, self._fire)

    async def _fire(self, shard: ShardKeys, part: Sequence[Firing]) -> list[FireAnswer]:
        names = [
            shard.ready,
            shard.active,
            shard.stats,
            shard.delayed_counts,
            shard.paused,
            shard.watched,
            shard.events,
            shard.lone,
            shard.fired,
            *shard.fair,
            shard.due,
            shard.delayed,
        ]
        args: list[Any] = [self._limits, await self._incarnations.of(shard)]
        for each in part:
            names += (shard.mailbox(each.mailbox), shard.mark(each.command_id))
            args += (each.schedule, each.incarnation, each.seq, "1" if each.armed else "")
            args += (each.mailbox, each.max_depth, each.digest, each.envelope, "1" if each.late else "", each.flow or NORMAL_FLOW)
        server = self._connections.at(shard.prefix)
        answer, confirmed = await server.run_confirmed(SCHEDULE_FIRE, names, args, shard.stats)
        self._incarnations.check(answer)
        letters: Any = answer.decode()
        return list(letters) if confirmed else ["?" if letter in _CONFIRMED else letter for letter in letters]

    async def bar(self, schedule: str, mailbox: str, incarnation: str, seq: int) -> bool | None:
        shard, server = self._keys_of(mailbox), self._connections.at(self._keys_of(mailbox).prefix)
        names, args = [shard.fired, shard.stats], [await self._incarnations.of(shard), schedule, incarnation, seq]
        answer, confirmed = await server.retry_until(
            lambda: server.run_confirmed(SCHEDULE_BAR, names, args, shard.stats), mono() + self._patience
        )
        self._incarnations.check(answer)
        return True if answer else False if confirmed else None

    async def forget(self, schedule: str) -> None:
        await self._everywhere(lambda client, shard: client.hdel(shard.fired, schedule, f"\n{schedule}"))

    async def pages(self, shard: int) -> AsyncIterator[list[tuple[str, bytes]]]:
        keys, cursor = self._keys.shards[shard], 0
        while True:
            cursor, page = await self.page(keys, cursor)
            if page:
                yield page
            if not cursor:
                return

    async def page(self, keys: ShardKeys, cursor: int) -> tuple[int, list[tuple[str, bytes]]]:
        """Return the next cursor and a page of the schedules of a shard."""
        answer: Any = await self._ask(keys, lambda client: client.hscan(keys.schedules, cursor, count=_PAGE))
        following, values = answer
        return following, [(name.decode(errors="backslashreplace"), value) for name, value in values.items()]

    async def mark(self, mailbox: str, command_id: str) -> bytes | None:
        shard = self._keys_of(mailbox)
        found: bytes | None = await self._ask(shard, lambda client: client.get(shard.mark(command_id)))
        return found

    async def due_at(self, names: Sequence[str]) -> list[int | None]:

        async def ask(shard: ShardKeys, part: Sequence[str]) -> list[int | None]:
            due = await self._due_times(shard, [f"s:{name}" for name in part])
            return [due.get(f"s:{name}") for name in part]

        return await self._by_shard(names, lambda name: name, ask)

    async def _by_shard(self, items: Sequence[T], home: Callable[[T], str], ask: Any) -> list[Any]:
        """Return the answers to items, in their order: those of one shard are asked together, a page at a time."""
        places: dict[int, list[int]] = {}
        for place, item in enumerate(items):
            places.setdefault(self._keys.shard_of(home(item)), []).append(place)
        lots = [(shard, found[at : at + _MOST]) for shard, found in places.items() for at in range(0, len(found), _MOST)]
        answers = await asyncio.gather(*(ask(self._keys.shards[shard], [items[place] for place in lot]) for shard, lot in lots))
        by_place: dict[int, Any] = {}
        for (_, lot), lot_answers in zip(lots, answers, strict=True):
            by_place |= dict(zip(lot, lot_answers, strict=True))
        return [by_place[place] for place in range(len(items))]
