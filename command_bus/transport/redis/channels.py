"""`RedisChannels`: pub/sub of the server that has the first shard, and counters in it.

On a Redis Cluster a message is passed on to every node, and with replicas to each of them; so it does not matter where a listener is
connected. A reader has a connection of its own, which asks for a sign of life while it is quiet: a cut that was not told of would never show.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from command_bus.errors import UnsuitableServer
from command_bus.tasks import end_tasks
from command_bus.transport.ports.extensions import Channels, Notes, Subscriptions
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.errors import CONNECTION_ERRORS, is_not_permitted, translated
from command_bus.transport.redis.connection.outage_log import LoggedBackoff
from command_bus.transport.redis.connection.retrying import RetryingRequests, server_ms
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.scripts import CHANGE_NOTE, TAKE_HINT

_QUIET = 5.0
"""Seconds without a message after which the server is asked for a sign of life, and after which it must have come."""
_PATIENCE = 5.0
"""Seconds that a subscription may take before its caller goes on without it."""
_log = logging.getLogger("command_bus.transport")


class RedisChannels(Channels):
    """Implements `Channels`.

    Args:
        connections: Clients that this process shares.
        keys: The shards.
    """

    def __init__(self, connections: Connections, keys: KeySpace) -> None:
        self._connections = connections
        self._shard = keys.shards[0]
        self._prefix = f"command_bus:{keys.namespace}:"
        self._open: list[_Subscriptions] = []

    async def publish(self, messages: Sequence[tuple[str, bytes]], counters: Mapping[str, int], ttl: float) -> None:

        def requests(client: Redis) -> Any:
            pipeline = client.pipeline(transaction=False)
            for counter, count in counters.items():
                pipeline.incrby(self._shard.hints + counter, count)
                pipeline.pexpire(self._shard.hints + counter, int(ttl * 1000))
            for channel, message in messages:
                pipeline.publish(self._prefix + channel, message)
            return pipeline.execute()

        await self._server.ask(requests)

    async def take(self, counter: str) -> bool | None:
        answer: int = await self._server.run(TAKE_HINT, [self._shard.hints + counter], [])
        return None if answer < 0 else answer > 0

    def subscriptions(self, receive: Callable[[str, bytes], None], missed: Callable[[], None]) -> _Subscriptions:
        made = _Subscriptions(self._server, self._prefix, receive, missed)
        self._open.append(made)
        return made

    async def close(self) -> None:
        """End all subscriptions."""
        for each in self._open:
            await each.close()
        self._open.clear()

    @property
    def _server(self) -> Connections:
        return self._connections.at(self._shard.prefix)


@dataclass(eq=False)
class _Subscriptions(Subscriptions):
    """Implements `Subscriptions`: a task reads while there is a channel, and connects again after a cut."""

    server: Connections
    prefix: str
    receive: Callable[[str, bytes], None]
    missed: Callable[[], None]

    def __post_init__(self) -> None:
        self._agreed: dict[str, asyncio.Event] = {}
        self._pubsub: Any = None
        self._reader: asyncio.Task[None] | None = None

    async def add(self, channel: str) -> None:
        agreed = self._agreed[self.prefix + channel] = asyncio.Event()
        if self._reader is None:
            self._reader = asyncio.get_running_loop().create_task(self._read(), name="command_bus.channels")
        elif self._pubsub is not None:
            with suppress(*CONNECTION_ERRORS):  # the reader notices too, and connects again
                await _ask_for(self._pubsub, [self.prefix + channel])
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await agreed.wait()

    async def remove(self, channel: str) -> None:
        name = self.prefix + channel
        self._agreed.pop(name, None)
        if self._pubsub is not None:
            with suppress(*CONNECTION_ERRORS):
                await (self._pubsub.punsubscribe if name.endswith("*") else self._pubsub.unsubscribe)(name)
        if not self._agreed:
            await self.close()

    async def close(self) -> None:
        self._agreed.clear()
        reader, self._reader = self._reader, None
        if reader is not None:
            await end_tasks([reader])

    async def _read(self) -> None:
        attempts = LoggedBackoff(self.server.outage, "cannot listen to notices", _log)
        again = False
        while True:
            try:
                await self._follow(attempts, again=again)
            except CONNECTION_ERRORS as error:
                again = True
                await asyncio.sleep(attempts.failed(translated(error, self.server.label)))

    async def _follow(self, attempts: LoggedBackoff, *, again: bool) -> None:
        """Connect, listen to all that is wanted, and hand out messages until the connection breaks."""
        client = self.server.factory.commands()
        pubsub: Any = client.pubsub()
        for agreed in self._agreed.values():
            agreed.clear()
        try:
            begun = list(self._agreed)
            await _ask_for(pubsub, begun)
            self._pubsub = pubsub
            await _ask_for(pubsub, [each for each in self._agreed if each not in begun])  # added while it connected
            asked = False
            while True:
                message = await pubsub.get_message(timeout=_QUIET)
                if message is None:
                    if asked:
                        raise TimeoutError("no sign of life")
                    await pubsub.ping()
                asked = message is None
                if message is not None and self._take(message) and all(each.is_set() for each in self._agreed.values()):
                    attempts.worked()
                    if again:
                        again = False
                        self.missed()
        finally:
            self._pubsub = None
            with suppress(*CONNECTION_ERRORS):
                await pubsub.aclose()
            with suppress(*CONNECTION_ERRORS):
                await client.aclose()

    def _take(self, message: dict[str, Any]) -> bool:
        """Hand out a message. Return whether it was the server's word on a subscription instead."""
        kind = message["type"]
        if kind in ("subscribe", "psubscribe"):
            if (agreed := self._agreed.get(message["channel"].decode())) is not None:
                agreed.set()
            return True
        if kind in ("message", "pmessage"):
            asked_for = message["pattern" if kind == "pmessage" else "channel"].decode()
            if asked_for in self._agreed:
                self.receive(asked_for.removeprefix(self.prefix), message["data"])
        return False


async def _ask_for(pubsub: Any, channels: Sequence[str]) -> None:
    if plain := [each for each in channels if not each.endswith("*")]:
        await pubsub.subscribe(*plain)
    if patterns := [each for each in channels if each.endswith("*")]:
        await pubsub.psubscribe(*patterns)


class RedisNotes(RetryingRequests, Notes):
    """Implements `Notes`."""

    async def read(self, book: str, name: str) -> bytes | None:
        shard = self._keys.shards[0]
        found: bytes | None = await self._ask(shard, lambda client: client.hget(shard.notes + book, name))
        return found

    async def all(self, book: str) -> dict[str, bytes]:
        shard = self._keys.shards[0]
        try:
            found: dict[bytes, bytes] = await self._ask(shard, lambda client: client.hgetall(shard.notes + book))
        except UnsuitableServer as error:
            if is_not_permitted(error) and book == "subscriptions":
                raise UnsuitableServer(
                    "publishing needs the right to read which subscriptions there are, and this user has not got it: give it the line that "
                    "acl_lines(…, publishes=True) of command_bus.transport.redis.acl makes"
                ) from error
            raise
        return {name.decode(errors="backslashreplace"): record for name, record in sorted(found.items())}

    async def change(self, book: str, name: str, before: bytes | None, after: bytes | None) -> bool:
        shard = self._keys.shards[0]
        return bool(await self._run(shard, CHANGE_NOTE, [shard.notes + book], [name, before or b"", after or b""]))

    async def now_ms(self) -> int:
        return server_ms(await self._ask(self._keys.shards[0], lambda client: client.time()))
