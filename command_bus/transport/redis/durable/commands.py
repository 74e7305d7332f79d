"""`RedisDurableCommands`: brings signals and wishes to durable commands, and reads what they have stored and wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from redis.asyncio import Redis

from command_bus.clock import mono
from command_bus.errors import TransportUnavailable, Unconfirmed
from command_bus.serialization.odd_values import stored_ms, stored_number
from command_bus.transport.ports.durable import CalledCommand, DurableCommands, SignalToBring, Told
from command_bus.transport.records import SuspensionInfo, awaited_info, wish_text
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.durable.lost_outcomes import LostOutcomes, Telling, told_and_confirmed
from command_bus.transport.redis.durable.side_records import read_side_record
from command_bus.transport.redis.keys import KeySpace, ShardKeys

_PAGE = 1000
_AT_ONCE = 50
_CANCEL = "cancel"
"""The field of the wish that a command ends."""
_FOR_EVER = -1
"""The time to live of what has none."""

_MESSAGE, _PLAIN = "m", "d"


class RedisDurableCommands(RetryingRequests, DurableCommands):
    """Implements `DurableCommands`.

    Args:
        connections: Clients that this process shares.
        keys: All shards.
        patience: Seconds for which a request is repeated.
    """

    def __init__(self, connections: Connections, keys: KeySpace, *, patience: float) -> None:
        super().__init__(connections, keys, patience=patience)
        self._lost = LostOutcomes(connections, keys)

    async def signal(self, mailbox: str, command_id: str, signal: SignalToBring) -> Told:
        telling = Telling("signal", signal.value, signal.name, signal.signal_id, "1" if signal.is_parked else "")
        return await self._tell(mailbox, command_id, telling)

    async def cancel(self, mailbox: str, command_id: str, wish: bytes) -> Told:
        return await self._tell(mailbox, command_id, Telling("cancel", wish))

    async def has_begun(self, mailbox: str, command_id: str) -> bool:
        of, is_plain = await self.fields(mailbox, command_id, [_MESSAGE, _PLAIN])
        return of is not None and is_plain is None

    async def record(self, mailbox: str, command_id: str) -> Mapping[str, bytes]:
        keys = self._keys_of(mailbox)
        connections = self._connections.at(keys.prefix)
        record = connections.retry_until(lambda: read_side_record(connections, keys.side(command_id)), mono() + self._patience)
        return await self._unless_odd("x", command_id, record, {})

    async def look_up(self, mailbox: str, command_id: str, called: CalledCommand) -> bool:
        return await self._lost.look_up(mailbox, command_id, called)

    async def _tell(self, mailbox: str, command_id: str, telling: Telling) -> Told:
        keys = self._keys_of(mailbox)
        connections = self._connections.at(keys.prefix)
        first: list[Told] = []
        unconfirmed = Unconfirmed(
            f"{connections.label} has it, but too few replicas confirmed it in time (wait_replicas): it may be lost if the primary fails now. "
            "Send it again, a signal with the same signal_id"
        )

        async def ask() -> Told:
            """Ask until replicas have it; the first answer holds: asked again, it was taken before, and its command may have ended."""
            told, confirmed = await told_and_confirmed(connections, keys, mailbox, command_id, telling)
            first.append(told)
            if not confirmed and told not in ("gone", "full"):
                raise unconfirmed
            return first[0]

        try:
            return await connections.retry_until(ask, mono() + self._patience)
        except TransportUnavailable:
            if first:
                raise unconfirmed from None
            raise

    async def suspended(self, mailboxes: Sequence[str]) -> dict[str, SuspensionInfo]:
        found: list[SuspensionInfo | None] = []
        for at in range(0, len(mailboxes), _AT_ONCE):
            found += await asyncio.gather(*(self._readable(mailbox) for mailbox in mailboxes[at : at + _AT_ONCE]))
        return {name: each for name, each in zip(mailboxes, found, strict=True) if each is not None}

    async def _readable(self, mailbox: str) -> SuspensionInfo | None:
        return await self._unless_odd("x", mailbox, self._read(mailbox), None)

    async def _read(self, mailbox: str) -> SuspensionInfo | None:
        keys = self._keys_of(mailbox)
        value, until = await self._ask(keys, _since_and_until, keys, mailbox)
        since, _, command_id = (value or b"").decode(errors="replace").partition("|")
        if not command_id:
            return None
        fields = await self._awaited(keys, command_id)
        fence, calls, ends, cancel = await self._ask(keys, _details, keys.side(command_id), fields)
        left = [awaited_info(name, call) for (name, of), call in zip(fields, calls, strict=True) if of == fence]
        at = None if until is None else stored_ms(until)
        waits, since_ms = tuple(sorted(left, key=str)), stored_number("suspended", since)
        return SuspensionInfo(command_id, since_ms, at, waits, compensating=ends is not None, cancelling=wish_text(cancel))

    async def fields(self, mailbox: str, command_id: str, names: Sequence[str]) -> list[bytes | None]:
        keys = self._keys_of(mailbox)
        asked = self._ask(keys, lambda client: client.hmget(keys.side(command_id), list(names)))
        found: list[bytes | None] = await self._unless_odd("x", command_id, asked, [None] * len(names))
        return found

    async def orphans(self, most: int) -> list[str]:
        found: list[str] = []
        for keys in self._keys.shards:
            cursor = 0
            for _ in range(-(-most // _PAGE)):
                cursor, page = await self._ask_once(keys, _side_records, keys, cursor)
                ids = [name.decode(errors="replace").removeprefix(keys.sides) for name in page]
                if ids:
                    marks, lives = await self._ask_once(keys, _marks_and_lives, keys, ids)
                    found += [
                        one for one, mark, life in zip(ids, marks, lives, strict=True) if mark is None and life == _FOR_EVER
                    ]
                if not cursor:
                    break
        return found

    async def _awaited(self, keys: ShardKeys, command_id: str) -> list[tuple[str, bytes]]:
        """Return the fields that were awaited, each with the fence of the run that did."""
        found: dict[bytes, bytes] = {}
        cursor = 0
        while True:
            cursor, page = await self._ask(keys, _page, keys.side(command_id), cursor)
            found |= page
            if not cursor:
                return [(name.decode(errors="replace")[2:], fence) for name, fence in found.items()]


async def _since_and_until(client: Redis, keys: ShardKeys, mailbox: str) -> Any:
    pipeline = client.pipeline(transaction=False)
    pipeline.hget(keys.suspended, mailbox)
    pipeline.zscore(keys.due, f"r:{mailbox}")
    return await pipeline.execute()


def _side_records(client: Redis, keys: ShardKeys, cursor: int) -> Any:
    return client.scan(cursor, match=f"{keys.sides}*", count=_PAGE)


async def _marks_and_lives(client: Redis, keys: ShardKeys, ids: Sequence[str]) -> Any:
    pipeline = client.pipeline(transaction=False)
    for one in ids:
        pipeline.get(keys.mark(one))
        pipeline.pttl(keys.side(one))
    answers = await pipeline.execute(raise_on_error=False)  # a mark of another type is a mark, too
    return answers[::2], answers[1::2]


def _page(client: Redis, key: str, cursor: int) -> Any:
    return client.hscan(key, cursor, match="a:*", count=_PAGE)


async def _details(client: Redis, key: str, fields: Sequence[tuple[str, bytes]]) -> Any:
    """Return the fence of the run that awaits, what the calls are that it awaits, and how it ends, and the wish that it does."""
    calls = [f"c:{name.removeprefix('o:')}" for name, _ in fields]
    values: list[bytes | None] = await client.hmget(key, ["w", "k", _CANCEL, *calls])  # type: ignore[assignment]
    waits, ends, cancel, *found = values
    return (waits or b"").partition(b"|")[0], found, ends, cancel
