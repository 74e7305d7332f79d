"""`SuspendedReading`: reads what suspended commands wait for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from command_bus.serialization.odd_values import pass_over, stored_text
from command_bus.transport.ports.durable import CalledCommand
from command_bus.transport.records import called_in
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.errors import is_of_a_value
from command_bus.transport.redis.durable.side_records import read_fields
from command_bus.transport.redis.keys import KeySpace

_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class SuspendedCommand:
    """A command that waits."""

    mailbox: str
    command_id: str
    since_ms: int
    awaited: tuple[CalledCommand, ...]
    only_calls: bool
    """Whether it waits for all of these calls, and for nothing else."""


@dataclass(eq=False)
class SuspendedReading:
    """Reads the suspended commands of all shards.

    Attributes:
        connections: Clients that this process shares.
        space: All shards.
    """

    connections: Connections
    space: KeySpace

    async def holders(self, mailboxes: Sequence[str]) -> dict[str, SuspendedCommand]:
        """Return the commands that are suspended in these mailboxes, where one is."""
        by_shard: dict[int, list[str]] = defaultdict(list)
        for mailbox in mailboxes:
            by_shard[self.space.shard_of(mailbox)].append(mailbox)
        found: dict[str, SuspendedCommand] = {}
        for number, names in by_shard.items():
            keys = self.space.shards[number]
            values = await self._fields(keys.prefix, keys.suspended, names)
            for mailbox, value in zip(names, values, strict=True):
                suspended = None if value is None else await self.read(mailbox, value)
                if suspended is not None:
                    found[mailbox] = suspended
        return found

    async def read(self, mailbox: str, value: bytes) -> SuspendedCommand | None:
        """Return a suspended command by what the hash `suspended` has for its mailbox; None if that cannot be read."""
        since, _, command_id = value.decode(errors="replace").partition("|")
        if not since.isdecimal():
            pass_over("suspended", mailbox, f"is none: {value!r}")
            return None
        try:
            return await self._suspended(mailbox, command_id, int(since))
        except Exception as error:
            if not is_of_a_value(error):
                raise
            pass_over("x", command_id, error)
            return None

    async def _suspended(self, mailbox: str, command_id: str, since_ms: int) -> SuspendedCommand:
        keys = self.space.of(mailbox)
        side = keys.side(command_id)
        awaiting = await self._awaiting(keys.prefix, side)
        calls = [field[2:] for field in awaiting if field.startswith("o:")]
        waits, *known = await self._fields(keys.prefix, side, ["w", *(f"c:{call}" for call in calls)])
        fence, _, left = stored_text(waits or b"").partition("|")
        awaited = {field for field, of in awaiting.items() if of == fence}
        children = tuple(
            CalledCommand(call, *called_in(value))
            for call, value in zip(calls, known, strict=True)
            if value is not None and f"o:{call}" in awaited
        )
        is_all = len(children) == len(awaited) == int(left or 0) > 0
        if is_all:  # else what is followed ends here
            is_all = await self.connections.at(keys.prefix).ask(lambda client: client.zscore(keys.due, f"r:{mailbox}")) is None
        return SuspendedCommand(mailbox, command_id, since_ms, children, is_all)

    async def _awaiting(self, prefix: str, side: str) -> dict[str, str]:
        """Return the fields that a side record says are awaited, each with the fence of who awaits it."""
        found: dict[str, str] = {}
        cursor = 0
        while True:
            answer: Any = await self.connections.at(prefix).ask(
                lambda client, cursor: client.hscan(side, cursor, match="a:*", count=_PAGE), cursor
            )
            cursor = int(answer[0])
            found |= {stored_text(name)[2:]: stored_text(value) for name, value in answer[1].items()}
            if cursor == 0:
                return found

    async def _fields(self, prefix: str, key: str, names: Sequence[str]) -> list[bytes | None]:
        return await read_fields(self.connections.at(prefix), key, names)
