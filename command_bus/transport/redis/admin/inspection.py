"""What a single entity shows when one looks closely, and what the workers say: read for people, who ask seldom."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.keys import GROUP, ShardKeys
from command_bus.transport.redis.scripts import HOMES

__all__ = ["Inspection", "MailboxHead"]

_LAST_MS = 2.0**53  # up to here a score is exact
_PAGE = 1000
_FARTHEST = 100_000  # members of `due` that are looked through for the first of a mailbox
_BYTES = 4 << 20  # of delayed commands that one script looks at: a few milliseconds


@dataclass(frozen=True, slots=True)
class MailboxHead:
    """One mailbox, from near.

    Attributes:
        lease_ms: How long its lease was not renewed; None if nobody holds it.
        entries: The first of what is in it: message id and envelope.
        shard: Where it is.
    """

    lease_ms: int | None
    entries: tuple[tuple[str, bytes], ...]
    shard: int


class Inspection(RetryingRequests):
    """Reads a little, but all of it."""

    async def now_ms(self) -> int:
        """The first shard's clock."""
        seconds, micros = await self._ask(self._keys.shards[0], lambda client: client.time())
        return int(seconds * 1000 + micros // 1000)

    async def closeup(self, mailbox: str, count: int) -> MailboxHead:
        """A mailbox with its first `count` entries."""
        index = self._keys.shard_of(mailbox)
        keys = self._keys.shards[index]
        entries: Any = await self._ask(keys, lambda client: client.xrange(keys.mailbox(mailbox), count=max(count, 1)))
        record: bytes | None = await self._ask(keys, lambda client: client.hget(keys.active, mailbox))
        state, activation = [*(record or b"").split(b"|"), b""][:2]
        lease = await self._lease(keys, activation.decode(errors="replace")) if state == b"h" else None
        found = tuple((entry.decode(), (fields or {}).get(b"e", b"")) for entry, fields in entries)
        return MailboxHead(lease, found[:count], index)

    async def due_ms(self, mailboxes: Sequence[str]) -> dict[str, int]:
        """When the retries of these mailboxes are due, where one waits."""
        return {
            name.removeprefix("r:"): at for name, at in (await self._scores([(box, f"r:{box}") for box in mailboxes])).items()
        }

    async def delayed_ms(self, mailbox: str, command_ids: Sequence[str]) -> dict[str, int]:
        """When these delayed commands take their place."""
        scores = await self._scores([(mailbox, f"d:{command}") for command in command_ids])
        return {name.removeprefix("d:"): at for name, at in scores.items()}

    async def delayed_until(self, mailboxes: Iterable[str]) -> dict[str, int]:
        """When the first delayed command of each of these takes its place; of those left out none is among the first of its shard."""
        by_shard: dict[int, set[str]] = {}
        for mailbox in mailboxes:
            by_shard.setdefault(self._keys.shard_of(mailbox), set()).add(mailbox)
        found: dict[str, int] = {}
        for shard, wanted in by_shard.items():
            at = 0
            while not wanted <= found.keys() and at < _FARTHEST:
                passed, homes = await self._due_page(self._keys.shards[shard], at)
                if not passed:
                    break
                at += passed
                found |= {home: due for home, due in reversed(homes) if home in wanted - found.keys()}
        return found

    async def _due_page(self, keys: ShardKeys, start: int) -> tuple[int, list[tuple[str, int]]]:
        """How many members of `due` were looked at from one on, and of the delayed commands among them mailbox and time, first ones first."""
        members: Any = await self._ask(keys, lambda client: client.zrange(keys.due, start, start + _PAGE - 1, withscores=True))
        at = [place for place, (name, _) in enumerate(members) if name[:2] == b"d:"]
        if not at:
            return len(members), []
        homes = await self._run(keys, HOMES, [keys.delayed], [_BYTES, *(members[place][0][2:] for place in at)])
        passed = len(members) if len(homes) == len(at) else at[len(homes)]
        return passed, [(home.decode(errors="replace"), _ms(members[place][1])) for home, place in zip(homes, at, strict=False)]

    async def workers(self) -> list[tuple[int, bytes]]:
        """What the workers say of themselves, live and lost ones, once for each shard, with the shard's time in ms."""
        found: list[tuple[int, bytes]] = []
        for keys in self._keys.shards:

            async def read(client: Redis, key: str = keys.workers) -> Any:
                pipeline = client.pipeline(transaction=False)
                pipeline.hgetall(key)
                pipeline.time()
                return await pipeline.execute()

            records, (seconds, micros) = await self._ask(keys, read)
            found += [(int(seconds) * 1000 + int(micros) // 1000, record) for record in records.values()]
        return found

    async def commands(self) -> dict[str, bytes]:
        """What was last said of each command."""
        keys = self._keys.shards[0]
        found: dict[bytes, bytes] = await self._ask(keys, lambda client: client.hgetall(keys.commands))
        return {name.decode(errors="backslashreplace"): record for name, record in found.items()}

    async def _scores(self, places: Sequence[tuple[str, str]]) -> dict[str, int]:
        """The scores of members of `due`, by the mailbox that tells the shard."""
        by_shard: dict[int, list[str]] = {}
        for mailbox, member in places:
            by_shard.setdefault(self._keys.shard_of(mailbox), []).append(member)
        found: dict[str, int] = {}
        for shard, members in by_shard.items():
            scores = await self._ask(self._keys.shards[shard], _scores_of, self._keys.shards[shard].due, members)
            found |= {member: _ms(score) for member, score in zip(members, scores, strict=True) if score is not None}
        return found

    async def _lease(self, keys: ShardKeys, activation: str) -> int | None:
        async def read(client: Redis) -> Any:
            try:
                return await client.xpending_range(keys.ready, GROUP, min=activation, max=activation, count=1)
            except ResponseError:  # the group is gone
                return []

        pending = await self._ask(keys, read)
        return int(pending[0]["time_since_delivered"]) if pending else None


def _ms(score: float) -> int:
    """A time as a score: who adds one may add infinity."""
    return int(max(min(score, _LAST_MS), 0.0))


async def _scores_of(client: Redis, key: str, members: list[str]) -> Any:
    pipeline = client.pipeline(transaction=False)
    for member in members:
        pipeline.zscore(key, member)
    return await pipeline.execute()
