"""`RedisLimits`: write what limits allow, to all shards, and read what they have spent, from the first.

The shards have the same rules, so that each knows whether an entity's start is limited at all. A rule is written to the first shard first: an
entity of another one that is not asked for yet starts, as a moment ago. What a broken request leaves different, workers set right (`sweep`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from command_bus.serialization.odd_values import stored_text
from command_bus.transport.ports.limits import BusLimits, Declared, LimitUse, LimitWaitInfo, StoredRule, limit_label
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.retrying import RetryingRequests, server_ms
from command_bus.transport.redis.incarnations import Incarnations
from command_bus.transport.redis.keys import GROUP, KeySpace, ShardKeys
from command_bus.transport.redis.scripts import LIMIT_LOOK, LIMITS, RULE

_PAGE = 500


def limit_keys(keys: ShardKeys) -> list[str]:
    """Return the keys of limits.lua."""
    return [keys.ready, keys.active, keys.due, keys.paused, keys.rules, keys.limits, keys.places, keys.stats, keys.flows]


class RedisLimits(RetryingRequests, BusLimits):
    """Implements `BusLimits`.

    Args:
        connections: Clients that this process shares.
        keys: The shards.
        patience: As for `RetryingRequests`.
    """

    def __init__(self, connections: Connections, keys: KeySpace, *, patience: float) -> None:
        super().__init__(connections, keys, patience=patience)
        self._incarnations = Incarnations(connections, keys, patience=patience)

    @property
    def _first(self) -> ShardKeys:
        return self._keys.shards[0]

    async def declare(self, rules: Mapping[str, str]) -> dict[str, Declared]:
        found: dict[str, Declared] = {}
        for rule, text in rules.items():
            for shard in reversed(self._keys.shards):
                found[rule] = cast("Declared", (await self._rule(shard, "declare", rule, text)).decode())
        return found

    async def declare_keyed(self, names: Mapping[str, Sequence[str]]) -> None:
        for entity_type, limits in names.items():
            for shard in self._keys.shards:
                await self._rule(shard, "keyed", entity_type, ",".join(sorted(limits)))

    async def put(self, rule: str, text: str) -> bool:
        return any([await self._rule(shard, "put", rule, text) == b"written" for shard in self._keys.shards])

    async def _rule(self, shard: ShardKeys, verb: str, rule: str, text: str) -> bytes:
        answer: bytes = await self._run(shard, RULE, [shard.rules, shard.ready, shard.due, shard.places], [verb, rule, text])
        return answer

    async def hold(self, scope: str, seconds: float) -> bool:
        """Hold it back, by the server's time."""
        now_ms = server_ms(await self._ask(self._first, lambda client: client.time()))
        return await self._hold(scope, now_ms + int(seconds * 1000))

    async def release(self, scope: str) -> None:
        await self._hold(scope, 0)

    async def _hold(self, scope: str, until: int) -> bool:
        incarnation = await self._incarnations.of(self._first)
        answer = await self._run(self._first, LIMITS, limit_keys(self._first), [GROUP, "hold", incarnation, scope, until])
        self._incarnations.check(answer)
        return bool(answer)

    async def rules(self) -> list[StoredRule]:
        fields = await self._fields()
        names = {name[2:] for name in fields if name[:2] in ("d:", "p:")}
        return [StoredRule(name, fields.get(f"d:{name}", ""), fields.get(f"p:{name}", "")) for name in sorted(names)]

    async def keyed(self) -> dict[str, list[str]]:
        return {
            name.removeprefix("keyed:"): text.split(",")
            for name, text in (await self._fields()).items()
            if name.startswith("keyed:")
        }

    async def _fields(self) -> dict[str, str]:
        found: dict[bytes, bytes] = await self._ask(self._first, lambda client: client.hgetall(self._first.rules))
        return {stored_text(name): stored_text(value) for name, value in found.items()}

    async def uses(self, rules: Sequence[str]) -> list[LimitUse]:
        found = await self._look("scopes", rules, 6)
        return sorted(
            (
                LimitUse(
                    stored_text(scope), None if tokens < 0 else tokens / 1000, taken, waiting, _seconds(free), held / 1_000_000
                )
                for scope, tokens, taken, waiting, free, held in found
            ),
            key=lambda use: use.scope,
        )

    async def waits(self, mailboxes: Sequence[str]) -> dict[str, LimitWaitInfo]:
        waits: dict[str, LimitWaitInfo] = {}
        for at in range(0, len(mailboxes), _PAGE):
            for mailbox, scope, since, before, free in await self._look("stand", mailboxes[at : at + _PAGE], 5):
                waits[stored_text(mailbox)] = LimitWaitInfo(limit_label(stored_text(scope)), int(since), before, _seconds(free))
        return waits

    async def waiting(self) -> int:
        answer: int = await self._run(self._first, LIMIT_LOOK, self._look_keys, ["all"])
        return answer

    @property
    def _look_keys(self) -> list[str]:
        return [self._first.rules, self._first.limits, self._first.places]

    async def _look(self, verb: str, what: Sequence[str], fields: int) -> list[tuple[Any, ...]]:
        flat: list[Any] = await self._run(self._first, LIMIT_LOOK, self._look_keys, [verb, *what])
        return [tuple(flat[at : at + fields]) for at in range(0, len(flat), fields)]


def _seconds(micros: int) -> float | None:
    return None if micros < 0 else micros / 1_000_000
