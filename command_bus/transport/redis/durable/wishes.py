"""`RedisWishes`: brings signals and wishes to durable commands."""

from __future__ import annotations

from collections.abc import Mapping

from command_bus.clock import mono
from command_bus.errors import TransportUnavailable, Unconfirmed
from command_bus.transport.ports.durable import CalledCommand, SignalToBring, Told, Wishes
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.durable.lost_outcomes import LostOutcomes, Telling, told_and_confirmed
from command_bus.transport.redis.durable.side_records import read_side_record
from command_bus.transport.redis.keys import KeySpace

_MESSAGE, _PLAIN = "m", "d"


class RedisWishes(RetryingRequests, Wishes):
    """Implements `Wishes`.

    Args:
        connections: The connections of this process.
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
        keys = self._keys.shards[self._keys.shard_of(mailbox)]
        connections, side = self._connections.at(keys.prefix), keys.side(command_id)
        of, is_plain = await connections.retry_until(
            lambda: connections.ask(lambda client: client.hmget(side, [_MESSAGE, _PLAIN])), mono() + self._patience
        )
        return of is not None and is_plain is None

    async def read(self, mailbox: str, command_id: str) -> Mapping[str, bytes]:
        keys = self._keys.shards[self._keys.shard_of(mailbox)]
        connections = self._connections.at(keys.prefix)
        record = connections.retry_until(lambda: read_side_record(connections, keys.side(command_id)), mono() + self._patience)
        return await self._unless_odd("x", command_id, record, {})

    async def look_up(self, mailbox: str, command_id: str, called: CalledCommand) -> bool:
        return await self._lost.look_up(mailbox, command_id, called)

    async def _tell(self, mailbox: str, command_id: str, telling: Telling) -> Told:
        keys = self._keys.shards[self._keys.shard_of(mailbox)]
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
