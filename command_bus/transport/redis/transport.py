"""`RedisTransport`: the parts of one open bus, opened and closed together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from command_bus.clock import mono
from command_bus.settings import BusSettings
from command_bus.tasks import all_of
from command_bus.transport.ports.sender import Producer
from command_bus.transport.ports.worker import WorkerSide, WorkerSideOptions
from command_bus.transport.redis.admin.locator import RedisLocator
from command_bus.transport.redis.admin.type_records import RedisAnnouncements
from command_bus.transport.redis.bulk.dispatches import RedisBulkDispatches
from command_bus.transport.redis.channels import RedisChannels, RedisNotes
from command_bus.transport.redis.connection.clients import clients_of
from command_bus.transport.redis.connection.connections import Connections, Replicas
from command_bus.transport.redis.connection.credentials import connection_options, with_tls_hint
from command_bus.transport.redis.connection.factory import ClientFactory
from command_bus.transport.redis.durable.commands import RedisDurableCommands
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.limits.rules import RedisLimits
from command_bus.transport.redis.namespace import Namespace, open_namespace
from command_bus.transport.redis.scheduling.store import RedisSchedules
from command_bus.transport.redis.sending.outbox import RedisOutboxes
from command_bus.transport.redis.sending.producer import StreamProducer
from command_bus.transport.redis.sending.rpc import RpcHandler
from command_bus.transport.redis.server_check import ServerFacts
from command_bus.transport.retention import Retention

if TYPE_CHECKING:
    from command_bus.transport.redis.admin.parts import RedisOperatorSide


class RedisTransport:
    """Implements `Transport`.

    Attributes:
        connections: Clients that this process shares.
        keys: The shards' key names.
        facts: What the server says of itself; of several, the one of the oldest version.
    """

    def __init__(
        self, connections: Connections, keys: KeySpace, settings: BusSettings, facts: ServerFacts, namespace: Namespace
    ) -> None:
        self.connections = connections
        self.keys = keys
        self.facts = facts
        self.label = connections.label
        self.availability = connections.availability
        self.shards = keys.count
        self.shard_of = keys.shard_of
        self.agreements = namespace
        bounds: dict[str, Any] = {"max_total_depth": settings.max_total_depth, "max_entities": settings.max_entities}
        limits: dict[str, Any] = {**bounds, "retention": Retention.of(settings)}
        self._stream = StreamProducer(connections, keys, max_pending=settings.max_pending, **limits)
        self.outboxes = RedisOutboxes(
            connections, keys, keys.limits(settings.max_total_depth, settings.max_entities), limits["retention"]
        )
        self.producer: Producer = self._stream  # an observer may stand before it
        self.replies = RpcHandler(connections, keys, has_blmpop=facts.has_blmpop)
        patience = settings.dispatch_timeout
        self.locations = RedisLocator(connections, keys, patience=patience)
        self.bulk = RedisBulkDispatches(connections, keys, max_depth=settings.max_depth, patience=patience, **limits)
        self.announcements = RedisAnnouncements(connections, keys, patience=patience)
        self._reply_ttl = settings.reply_ttl
        self._patience = patience
        self._operator: RedisOperatorSide | None = None
        self.durable = RedisDurableCommands(connections, keys, patience=patience)
        self.channels = RedisChannels(connections, keys)
        self.notes = RedisNotes(connections, keys, patience=patience)
        self.limits = RedisLimits(connections, keys, patience=patience)
        self.schedules = RedisSchedules(connections, keys, patience=patience, **bounds)

    @classmethod
    async def open(cls, server: ClientFactory | str, settings: BusSettings) -> Self:
        """Connect, check the server, agree on the namespace.

        Raises:
            CommandBusError: As `open_namespace`.
        """
        replicas = Replicas(settings.wait_replicas, settings.wait_timeout) if settings.durability == "replicated" else None
        connections = Connections(
            clients_of(server, connection_options(settings)) if isinstance(server, str) else server,
            replicas,
            fail_fast=settings.fail_fast,
        )
        try:
            deadline = mono() + settings.dispatch_timeout  # a server that restarts just now is waited for
            async with with_tls_hint(server if isinstance(server, str) else ""):
                facts, namespace, keys = await connections.retry_until(lambda: open_namespace(connections, settings), deadline)
        except BaseException:
            await connections.close()
            raise
        return cls(connections, keys, settings, facts, namespace)

    @property
    def reconnects(self) -> int:
        return self.connections.reconnects

    @property
    def operator(self) -> RedisOperatorSide:
        if self._operator is None:
            from command_bus.transport.redis.admin.parts import RedisOperatorSide  # a sender loads nothing of it

            self._operator = RedisOperatorSide(self.connections, self.keys, patience=self._patience, reply_ttl=self._reply_ttl)
        return self._operator

    def worker_side(self, options: WorkerSideOptions) -> WorkerSide:
        from command_bus.transport.redis.maintenance.worker_side import RedisWorkerSide  # a sender loads nothing of it

        return RedisWorkerSide(self.connections, self.keys, options)

    async def ping(self) -> None:
        await self.connections.ask(lambda client: client.ping())

    async def close(self) -> None:
        """Close each part, whatever another raises."""
        try:
            await all_of(self._stream.close(), self.replies.close(), self.channels.close(), self._close_operator())
        finally:
            await self.connections.close()

    async def _close_operator(self) -> None:
        if self._operator is not None:
            await self._operator.events.close()
