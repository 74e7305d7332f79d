"""The parts of a producer's side, opened and closed together."""

from __future__ import annotations

from typing import Self

from command_bus.clock import mono
from command_bus.settings import BusSettings
from command_bus.transport.interfaces import Producer
from command_bus.transport.redis.admin.events import EventStreams
from command_bus.transport.redis.admin.holds import Holds
from command_bus.transport.redis.admin.statistics import Operations
from command_bus.transport.redis.bulk.dispatches import RedisBulkDispatches
from command_bus.transport.redis.connection.clients import clients_of
from command_bus.transport.redis.connection.connections import ClientFactory, Connections, Replicas
from command_bus.transport.redis.connection.credentials import connection_options
from command_bus.transport.redis.connection.tasks import all_of
from command_bus.transport.redis.connection.tls_probe import telling_tls
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.namespace import Namespace, ServerFacts, open_namespace
from command_bus.transport.redis.sending.producer import StreamProducer
from command_bus.transport.redis.sending.rpc import RpcHandler

__all__ = ["RedisTransport"]


class RedisTransport:
    """Connections, producer, replies and operations of one open bus."""

    def __init__(
        self, connections: Connections, keys: KeySpace, settings: BusSettings, facts: ServerFacts, namespace: Namespace
    ) -> None:
        self.connections = connections
        self.keys = keys
        self.facts = facts
        self.namespace = namespace
        self._stream = StreamProducer(
            connections, keys, max_total_depth=settings.max_total_depth, max_pending=settings.max_pending
        )
        self.producer: Producer = self._stream  # an observer may stand before it
        self.replies = RpcHandler(connections, keys, bites=facts.bites)
        self.bulk = RedisBulkDispatches(
            connections,
            keys,
            max_depth=settings.max_depth,
            max_total_depth=settings.max_total_depth,
            patience=settings.dispatch_timeout,
        )
        self.operations = Operations(connections, keys, reply_ttl=settings.reply_ttl)
        self.holds = Holds(connections, keys, patience=settings.dispatch_timeout)
        self.events = EventStreams(connections, keys, patience=settings.dispatch_timeout)

    @classmethod
    async def open(cls, server: ClientFactory | str, settings: BusSettings) -> Self:
        """Connect, check the server, agree on the namespace.

        Raises:
            CommandBusError: As `open_namespace`.
        """
        replicas = Replicas(settings.wait_replicas, settings.wait_timeout) if settings.durability == "replicated" else None
        connections = Connections(
            clients_of(server, connection_options(settings)) if isinstance(server, str) else server, replicas
        )
        keys = KeySpace(settings.namespace, settings.shards)
        try:
            deadline = mono() + settings.dispatch_timeout  # a server that restarts just now is waited for
            async with telling_tls(server if isinstance(server, str) else ""):
                facts, namespace = await connections.insist(lambda: open_namespace(connections, keys, settings), deadline)
        except BaseException:
            await connections.close()
            raise
        return cls(connections, keys, settings, facts, namespace)

    async def close(self) -> None:
        """Let accepted work leave, tell whoever waits for a reply, then close the connections: each part, whatever another raises."""
        try:
            await all_of(self._stream.close(), self.replies.close(), self.events.close())
        finally:
            await self.connections.close()
