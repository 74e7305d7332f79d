"""`Incarnations`: which life of each shard this process has read.

A process can be stopped while the namespace is deleted, and go on later with what it had read before. What it would write without a lease names the
incarnation of the shard, and a script compares it. The first that needs one records it; deletion closes it first and removes it last.
"""

from __future__ import annotations

import re
from typing import Any, Final

from redis.asyncio import Redis

from command_bus.errors import TransportUnavailable
from command_bus.randomness import token
from command_bus.serialization.odd_values import pass_over, stored_text
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.keys import KeySpace, ShardKeys

INCARNATION: Final = "incarnation"
"""A field of `stats`."""
_WHOLE: Final = re.compile(rb"[!-~]{1,100}")
CLOSED: Final = "closed"
"""Its value while the namespace is being deleted."""


class Incarnations(RetryingRequests):
    """The incarnations of the shards, read once.

    Args:
        connections: Clients that this process shares.
        keys: The shards.
        patience: As for `RetryingRequests`.
    """

    def __init__(self, connections: Connections, keys: KeySpace, *, patience: float) -> None:
        super().__init__(connections, keys, patience=patience)
        self._known: dict[str, str] = {}

    async def all(self) -> None:
        """Read those of all shards, unless they are known.

        Raises:
            TransportUnavailable: The server cannot be reached, or the namespace is being deleted.
        """
        if len(self._known) < self._keys.count:
            for shard in self._keys.shards:
                await self.of(shard)

    async def of(self, shard: ShardKeys) -> str:
        """Return that of a shard.

        Raises:
            TransportUnavailable: As for `all`.
        """
        known = self._known.get(shard.prefix)
        if known is None:
            known = stored_text(await self._ask(shard, _recorded, shard.stats))
            if known == CLOSED:
                raise TransportUnavailable(
                    f"namespace {self._keys.namespace!r} is being deleted: if `obliterate` was interrupted, run it again",
                    outcome_unknown=False,
                )
            self._known[shard.prefix] = known
        return known

    def known(self, shard: ShardKeys) -> str:
        """Return that of a shard if it has been read, else an empty text."""
        return self._known.get(shard.prefix, "")

    def forget(self) -> None:
        """Forget all, so that the next request begins afresh."""
        self._known.clear()

    def check(self, answer: object) -> None:
        """Forget all, so that the next request begins afresh, if a script has found another incarnation.

        Raises:
            TransportUnavailable: It has. Nothing was written.
        """
        if answer == b"gone":
            self.forget()
            raise TransportUnavailable(
                f"namespace {self._keys.namespace!r} was deleted, or its server has lost data, since this process read it: nothing was "
                "written, and it reads everything again",
                outcome_unknown=False,
            )


async def _recorded(client: Redis, stats: str) -> bytes:
    found: Any = await client.hget(stats, INCARNATION)
    if found is None:  # a full server refuses writes, so it is read first
        await client.hsetnx(stats, INCARNATION, token(8).hex())
        found = await client.hget(stats, INCARNATION)
    elif not _WHOLE.fullmatch(found):  # compared as text, it would be of another time for ever
        pass_over("stats", INCARNATION, repr(found))
        await client.hset(stats, INCARNATION, token(8).hex())
        found = await client.hget(stats, INCARNATION)
    return found or CLOSED.encode()
