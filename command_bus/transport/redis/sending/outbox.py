"""`RedisOutboxes`: accepts commands that a database's transactions have left in its table, each once (see `lua/outbox.lua`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from command_bus.transport.ports.sender import Outboxes, Placed, Taken
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.scripts import OUTBOX
from command_bus.transport.redis.sending.enqueue_arguments import enqueue_arguments
from command_bus.transport.retention import Retention
from command_bus.transport.submissions import Admission, Submission

_LOOK = "?"
_ADMISSIONS = {admission.value: admission for admission in Admission}


class RedisOutboxes(Outboxes):
    """Implements `Outboxes`.

    Args:
        connections: Clients that this process shares.
        keys: The shards.
        limit: How many commands and mailboxes a shard takes, as `KeySpace.limits` gives it.
        retention: For the arguments of the script.
    """

    def __init__(self, connections: Connections, keys: KeySpace, limit: int | str, retention: Retention) -> None:
        self._connections, self._keys = connections, keys
        self._limit, self._retention = limit, retention

    async def look(self, name: str, shard: int) -> Taken:
        answer, _ = await self._run(name, shard, [_LOOK, "", "|", self._limit, 0, "", b"", b""], [])
        return _taken(answer)

    async def place(
        self, name: str, shard: int, expected: str, token: str, rows: Sequence[tuple[str, Submission]], deleted: Sequence[str]
    ) -> Placed | Taken:
        ids = "".join(f"{row} " for row, _ in rows) + "|" + "".join(f"{row} " for row in deleted)
        head = [expected, token, ids, self._limit]
        names: list[str] = []
        args: list[Any] = [*head, 0, "", b"", b""]
        if rows:
            names, args = enqueue_arguments(self._keys.shards[shard], [], head, [each for _, each in rows], self._retention)
        answer, confirmed = await self._run(name, shard, args, names)
        if isinstance(answer, list):
            return _taken(answer)
        return placed(answer.decode(), f"{token}|{answer.decode()}", is_confirmed=confirmed)

    async def _run(self, name: str, shard: int, args: list[Any], names: list[str]) -> tuple[Any, bool]:
        keys = self._keys.shards[shard]
        head = [
            keys.ready, keys.active, keys.stats, keys.due, keys.delayed, keys.delayed_counts, keys.paused, keys.outboxes + name,
            keys.watched, keys.arrivals, keys.lone, *keys.fair,
        ]  # fmt: skip
        return await self._connections.at(keys.prefix).run_confirmed(OUTBOX, [*head, *names], args, keys.stats)


def placed(letters: str, value: str, *, is_confirmed: bool) -> Placed:
    """Return what became of a request, by the letters of its answer."""
    return Placed([_ADMISSIONS[letter] for letter in letters], value, is_confirmed)


def _taken(answer: list[bytes]) -> Taken:
    value, *rows = answer
    return Taken(value.decode(), frozenset(row.decode() for row in rows))
