"""`RedisShares`: weights of tenants, written on every shard so that all share by the same, priorities of what waits, and who waits in the lines."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from redis.asyncio import Redis

from command_bus.messages.policies import PRIORITIES, Priority
from command_bus.transport.flows import Flow, flow_of_record, parse_flow
from command_bus.transport.mailboxes import encoded
from command_bus.transport.ports.operator import Shares
from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.keys import GROUP, ShardKeys
from command_bus.transport.redis.mailbox_record import parse_record, refuse_newer
from command_bus.transport.redis.scripts import PRIORITIZE, WEIGHT

_WEIGHT = b"w:"
_SERVED = b"n:"
_PAGE = 500
_MINUTE = 60


class RedisShares(RetryingRequests, Shares):
    """Implements `Shares`."""

    async def put(self, tenant: str, weight: float | None) -> None:
        args = [encoded(tenant), "" if weight is None else f"{weight:.6g}"]
        for keys in self._keys.shards:
            await self._run(keys, WEIGHT, [keys.flows, keys.turns], args)

    async def prioritize(self, mailbox: str, priority: Priority, delayed: Sequence[str] = ()) -> int:
        keys = self._keys_of(mailbox)
        names = [keys.ready, keys.active, keys.delayed, keys.mailbox(mailbox), *keys.fair]
        answer = await self._run(keys, PRIORITIZE, names, [GROUP, mailbox, PRIORITIES.index(priority), *delayed])
        refuse_newer(answer, mailbox)
        return int(answer)

    async def weights(self) -> dict[str, float]:
        pages: list[Any] = [
            await self._ask(keys, lambda client, key: client.hgetall(key), keys.flows) for keys in self._keys.shards
        ]
        found: dict[str, float] = {}
        for page in pages:
            for field, value in page.items():
                if field.startswith(_WEIGHT) and (weight := _number(value)) is not None:
                    found[unquote(field.removeprefix(_WEIGHT).decode(errors="replace"))] = weight
        return found

    async def waiting(self) -> Counter[Flow]:
        parts = [part for keys in self._keys.shards for part in (self._in_line(keys), self._ready(keys, held=False))]
        return sum(await asyncio.gather(*parts), Counter())

    async def running(self) -> Counter[Flow]:
        return sum(await asyncio.gather(*(self._ready(keys, held=True) for keys in self._keys.shards)), Counter())

    async def served(self) -> Counter[Flow]:
        found: Counter[Flow] = Counter()
        for keys in self._keys.shards:
            (seconds, micros), page = await self._ask(keys, _served, keys.flows)
            now = int(seconds) + int(micros) / 1e6
            for field, value in page.items():
                if field.startswith(_SERVED) and (count := served_lately(value.decode(errors="replace"), now)):
                    found[parse_flow(field.removeprefix(_SERVED).decode(errors="replace"))] += count
        return found

    async def _in_line(self, keys: ShardKeys) -> Counter[Flow]:
        """Return how many entities of each flow wait in the line."""
        found: Counter[Flow] = Counter()
        start = 0
        while True:
            flows: Any = await self._ask(keys, lambda client, at: client.zrange(keys.turns, at, at + _PAGE - 1), start)
            counts: Any = await self._ask(keys, _counts, keys.line, flows) if flows else []
            for flow, count in zip(flows, counts, strict=True):
                if count:
                    found[parse_flow(flow.decode(errors="replace"))] += count
            if len(flows) < _PAGE:
                return found
            start += _PAGE

    async def _ready(self, keys: ShardKeys, *, held: bool) -> Counter[Flow]:
        """Return the entities of each flow in the ready stream: those that workers hold, or those that wait."""
        found: Counter[Flow] = Counter()
        start = "-"
        while True:
            entries: Any = await self._ask(keys, lambda client, at: client.xrange(keys.ready, min=at, count=_PAGE), start)
            names = [fields[b"e"] for _, fields in entries if b"e" in fields]
            records: Any = await self._ask(keys, lambda client, some: client.hmget(keys.active, some), names) if names else []
            for record in map(parse_record, records):
                if record.is_held if held else record.is_ready:
                    found[flow_of_record(record.parts.get("f"), record.message)] += 1
            if len(entries) < _PAGE:
                return found
            start = f"({entries[-1][0].decode()}"


def served_lately(counts: str, now: float) -> int:
    """Return the starts of the minute before a time in s, of `minute:its starts:starts of the minute before`: of that as much as is left."""
    minute, *starts = (int(each) if each.isdecimal() else 0 for each in [*counts.split(":"), "", ""][:3])
    age = int(now // _MINUTE) - minute
    left = 1 - now % _MINUTE / _MINUTE
    if age == 0:
        return round(starts[0] + left * starts[1])
    return round(left * starts[0]) if age == 1 else 0


async def _served(client: Redis, flows: str) -> Any:
    pipeline = client.pipeline(transaction=False)
    pipeline.time()
    pipeline.hgetall(flows)
    return await pipeline.execute()


async def _counts(client: Redis, line: str, flows: list[bytes]) -> Any:
    pipeline = client.pipeline(transaction=False)
    for flow in flows:
        pipeline.zlexcount(line, b"[" + flow + b"/", b"(" + flow + b"0")  # 0 is the character behind /
    return await pipeline.execute()


def _number(value: bytes) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None
