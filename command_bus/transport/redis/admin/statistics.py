"""Figures of a shard: counters and lengths, never a scan of commands."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from command_bus.errors import NewerState, TransportUnavailable
from command_bus.serialization.odd_values import stored_ms
from command_bus.transport.ports.operator import StatisticsReader
from command_bus.transport.records import Recount, ShardSnapshot
from command_bus.transport.redis.connection.retrying import RetryingRequests, server_ms
from command_bus.transport.redis.keys import GROUP, ShardKeys
from command_bus.transport.redis.scripts import RECOUNT

_PAGE = 200
_FLOWS = 100


class RedisStatistics(RetryingRequests, StatisticsReader):
    """Reads figures from the counters of shards."""

    async def snapshot(self, shard: int) -> ShardSnapshot:
        """Read them in one round trip; in two if entities wait for a worker."""
        keys = self._keys.shards[shard]
        found: dict[str, Any] = await self._ask_once(keys, _read, keys)
        counters = Counter({name.decode(errors="replace"): _number(value) for name, value in found["counters"].items()})
        waiting = found["waiting"]
        ends = sum(name[:2] == b"p:" for name, _ in found["first_due"])
        return ShardSnapshot(
            counters=counters,
            ready=found["ready"],
            in_flight=_pending(found),
            oldest_ready_ms=min([*found["oldest"], *(_number(entry.partition(b"-")[0]) for entry, _ in waiting)], default=None),
            due=max(found["due"] - max(counters["scheduled"], 0) - ends, 0),
            ends=ends,
            active=found["active"],
            paused=frozenset(scope.decode(errors="backslashreplace") for scope in found["paused"]),
            parked=found["parked"],
            dead=found["dead"],
            workers=tuple(found["workers"].values()),
            limited=found["limited"],
            suspended=found["suspended"],
            now_ms=server_ms(found["time"]),
            line=found["line"],
            starts=found["starts"],
            schedules=found["schedules"],
            history=found["history"],
            states=found["states"],
            schedule_ms=next((stored_ms(score) for name, score in found["first_due"] if name[:2] == b"s:"), None),
        )

    async def stopped(self, shard: int, limit: int) -> list[str] | None:
        keys = self._keys.shards[shard]
        names: list[str] = []
        async for page in self._hash_pages(keys, keys.active, _PAGE, once=True):
            if not all(state.startswith(b"s|") for state in page.values()):
                return None
            names += [mailbox.decode(errors="replace") for mailbox in page]
        return names[:limit]

    async def recount(self, *, correct: bool) -> Recount:
        found = [await self.recount_shard(keys, correct=correct) for keys in self._keys.shards]
        return Recount(
            sum(each.stored for each in found),
            sum(each.counted for each in found),
            sum(max(each.delayed, 0) for each in found),
            all(each.complete for each in found),
        )

    async def recount_shard(self, keys: ShardKeys, *, correct: bool, most: int | None = None) -> Recount:
        """Compare the counters of one shard.

        Args:
            keys: Names of the shard's keys.
            correct: Whether to set them right, too.
            most: Mailboxes with work, and delayed commands, above which it is not counted; None: as many as one step takes.

        Raises:
            NewerState: It has states that only a later release knows.
            TransportUnavailable: The server cannot be reached, or entities come and go too quickly.
        """
        most = _MOST if most is None else most
        outs = [f"{keys.outs}{shard}" for shard, other in enumerate(self._keys.shards) if other is not keys]
        for _ in range(_TRIES):
            names: Any = await self._ask(keys, _names, keys.active, most)
            keys_of: list[Any] = [keys.ready, keys.active, keys.stats, keys.delayed, keys.delayed_counts]
            keys_of += [*outs, *(keys.mailboxes.encode() + name for name in names)]
            args = [GROUP, len(keys.mailboxes), most, _BYTES, int(correct), len(outs)]
            answer = await self._run(keys, RECOUNT, keys_of, args)
            if answer[0] == b"many":
                return Recount(0, 0, 0, complete=False)
            if answer[0] == b"newer":
                raise NewerState(f"{keys.prefix}: an entity is in a state that only a later release knows: nothing was counted")
            if answer[0] != b"changed":
                stored, counted, delayed = answer
                return Recount(stored, counted, delayed, complete=delayed >= 0)
        raise TransportUnavailable(f"{keys.prefix}: entities came and went too quickly to be counted; try again")


_FIRST = 10
"""Members of `due` among which a schedule that is late is looked for, and ends of pauses: what matters stands first."""
_NAMES = (
    "counters", "dead", "ready", "pending", "due", "active", "paused", "parked", "groups", "workers", "first_due", "time", "limited",
    "schedules", "history", "flows", "suspended", "states",
)  # fmt: skip


async def _read(client: Redis, keys: ShardKeys) -> dict[str, Any]:
    pipeline = client.pipeline(transaction=False)
    pipeline.hgetall(keys.stats)
    pipeline.xlen(keys.dead)
    pipeline.xlen(keys.ready)
    pipeline.xpending(keys.ready, GROUP)
    pipeline.zcard(keys.due)
    pipeline.hlen(keys.active)
    pipeline.hgetall(keys.paused)
    pipeline.hlen(keys.parked)
    pipeline.xinfo_groups(keys.ready)
    pipeline.hgetall(keys.workers)
    pipeline.zrange(keys.due, 0, _FIRST - 1, withscores=True)
    pipeline.time()
    pipeline.zlexcount(keys.places, "[q\n", "(q\x0b")
    pipeline.hlen(keys.schedules)
    pipeline.xlen(keys.history)
    pipeline.hmget(keys.flows, "c0", "s0", "s1", "s2")
    pipeline.hlen(keys.suspended)
    pipeline.hlen(keys.states)
    found: dict[str, Any] = dict(zip(_NAMES, await pipeline.execute(raise_on_error=False), strict=True))
    for name, nothing in (("pending", {}), ("groups", []), ("schedules", 0), ("history", 0), ("suspended", 0), ("states", 0)):
        if isinstance(found[name], ResponseError):
            found[name] = nothing  # no stream or no group yet, or a user whose ACL is of an earlier release
    for answer in found.values():
        if isinstance(answer, Exception):
            raise answer
    in_use, *starts = found["flows"]
    found["starts"] = tuple(_number(value or b"0") for value in starts)
    waits = found["ready"] > _pending(found)
    delivered = next((group["last-delivered-id"].decode() for group in found["groups"]), "0-0")
    (found["line"], found["oldest"]), found["waiting"] = await asyncio.gather(
        _line(client, keys) if in_use is not None else _nothing((None, [])),
        client.xrange(keys.ready, min=f"({delivered}", count=1) if waits else _nothing([]),
    )
    return found


async def _nothing(answer: Any) -> Any:
    return answer


async def _line(client: Redis, keys: ShardKeys) -> tuple[tuple[int, ...], list[int]]:
    """Return how many places of each priority the line has, and since when (ms) the first of each flow waits, of a hundred flows."""
    pipeline = client.pipeline(transaction=False)
    for digit in range(3):
        pipeline.zlexcount(keys.line, f"[{digit}", f"({digit + 1}")
    pipeline.zrange(keys.turns, 0, _FLOWS - 1)
    *counts, flows = await pipeline.execute()
    for flow in flows:
        pipeline.zrangebylex(keys.line, b"[" + flow + b"/", b"(" + flow + b"0", 0, 1)
    firsts: list[Any] = [first for (first,) in filter(None, await pipeline.execute())] if flows else []
    return tuple(counts), [_number(first.split(b"/", 2)[1][:-10]) for first in firsts]


def _pending(found: dict[str, Any]) -> int:
    return int(found["pending"].get("pending") or 0)


def _number(value: bytes) -> int:
    """Return a counter, 0 for what is no number."""
    digits = value.removeprefix(b"-")
    return int(value) if digits.isdigit() and len(digits) < 20 else 0


_MOST = 20_000
"""Mailboxes with work and delayed commands of one shard that are counted: a script then takes some tens of milliseconds."""
_BYTES = 16 * 1024 * 1024
_TRIES = 20
"""How often a shard is counted again because another mailbox has got its second command in between."""


async def _names(client: Redis, key: str, most: int) -> list[bytes]:
    """Return the mailboxes with work, as many as one step counts."""
    if await client.hlen(key) > most:
        return []
    found: Any = await client.hkeys(key)
    return list(found)
