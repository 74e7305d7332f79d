"""`RedisRecounts`: compares the counters of the shards with what is there, and corrects them."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis

from command_bus.errors import NewerState, TransportUnavailable
from command_bus.transport.records import Recount
from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.keys import GROUP, ShardKeys
from command_bus.transport.redis.scripts import RECOUNT

_MOST = 20_000
"""Mailboxes with work and delayed commands of one shard that are counted: a script then takes some tens of milliseconds."""
_BYTES = 16 * 1024 * 1024
_TRIES = 20
"""How often a shard is counted again because another mailbox has got its second command in between."""


class RedisRecounts(RetryingRequests):
    """Implements `Recounts`."""

    async def recount(self, *, correct: bool) -> Recount:
        """See `Recounts`."""
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
            keys: Of the shard.
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


async def _names(client: Redis, key: str, most: int) -> list[bytes]:
    """Return the mailboxes with work, as many as one step counts."""
    if await client.hlen(key) > most:
        return []
    found: Any = await client.hkeys(key)
    return list(found)
