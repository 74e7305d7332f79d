"""`NatsNotifier`: notices over NATS (extra `nats`), and hints in a JetStream key-value bucket, if there is one.

NATS delivers a message to who is subscribed at that moment, as pub/sub of Redis does. A hint is changed by compare-and-set. Consumers of
one process take turns, so only processes race, and five tries with a short random pause are enough for a few of them. Where five were not,
a consumer is woken: one wake too many does no harm, one too few would.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from command_bus.errors import InvalidSettings, TransportUnavailable
from command_bus.notifications.notices import ALL_TYPES, Notice, NoticeKind, Topic, checked_kinds, checked_names, pack_notice
from command_bus.notifications.notifier import Ground, NotifierLink
from command_bus.randomness import JITTER
from command_bus.tasks import end_tasks

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.subscription import Subscription
    from nats.js.kv import KeyValue

_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_LONGEST_PREFIX: Final = 100
_TRIES: Final = 5
_PATIENCE: Final = 5.0
"""Seconds that the server may take for one answer."""
_LOOK: Final = 0.5
"""Seconds between looks at whether the connection was made again."""
_NO_TYPE: Final = "/"
_log = logging.getLogger("command_bus.notifications")


class NatsNotifier:
    """A `Notifier` over NATS.

    Args:
        client: A connected client of nats-py, which stays yours to close; or a function that connects one, which a link calls when it first
            has something to do, and whose client it closes.
        kv: A bucket for hints, or the name of one; None: there are no hints, and `consume_hint` always says to wake. Give it a `ttl`.
        prefix: What all subjects and keys begin with; by default `command_bus.` and the namespace.
        kinds: As for `RedisNotifier`.
        settled: As for `RedisNotifier`.

    Raises:
        InvalidSettings: It is no prefix, no kind, or no client.
    """

    def __init__(
        self,
        client: Client | Callable[[], Awaitable[Client]],
        *,
        kv: KeyValue | str | None = None,
        prefix: str | None = None,
        kinds: Collection[NoticeKind] = ("work", "lease_lost"),
        settled: Collection[str] | None = None,
    ) -> None:
        if prefix is not None and (len(prefix) > _LONGEST_PREFIX or not _PREFIX.fullmatch(prefix)):
            raise InvalidSettings(
                f"prefix {prefix!r}: up to {_LONGEST_PREFIX} letters, digits, '_', '-', and single dots between them, as 'shop' or 'shop.eu'"
            )
        if not callable(client) and not hasattr(client, "publish"):
            raise InvalidSettings(
                "client: a connected client of nats-py (`await nats.connect(…)`), or an async function that connects one"
            )
        self.kinds = checked_kinds(kinds)
        self.settled = checked_names(settled, self.kinds)
        self._client = client
        self._kv = kv
        self._prefix = prefix

    def link(self, ground: Ground) -> _Link:
        return _Link(ground, _Server(self._client, self._kv), self._prefix or f"command_bus.{ground.namespace}")


class _Server:
    """The client and its bucket, made when first asked for.

    Args:
        client: See `NatsNotifier`.
        kv: See `NatsNotifier`.
    """

    def __init__(self, client: Client | Callable[[], Awaitable[Client]], kv: KeyValue | str | None) -> None:
        is_client = hasattr(client, "publish")
        self._client = cast("Client", client) if is_client else None
        self._connect = None if is_client else cast("Callable[[], Awaitable[Client]]", client)
        self._bucket: KeyValue | None = None
        self._kv = kv
        self._is_checked = False
        self._making = asyncio.Lock()

    async def client(self) -> Client:
        """Return the client."""
        async with self._making:
            if self._client is None and self._connect is not None:
                self._client = await self._connect()
        return cast("Client", self._client)

    async def bucket(self) -> KeyValue | None:
        """Return the bucket; None if none was named. One without a time to live is warned of, once."""
        if self._kv is None:
            return None
        client = await self.client()
        async with self._making:
            if self._bucket is None:
                self._bucket = await client.jetstream().key_value(self._kv) if isinstance(self._kv, str) else self._kv
            if not self._is_checked:
                status = await self._bucket.status()
                self._is_checked = True
                if not status.ttl:
                    _log.warning(
                        "the NATS bucket %s has no ttl: a hint that is not consumed keeps its count for ever, and a woken process may find "
                        "nothing to do. Make it with KeyValueConfig(…, ttl=60)",
                        status.bucket,
                    )
        return self._bucket

    async def close(self) -> None:
        """Close the client, if it was made here."""
        if self._client is not None and self._connect is not None:
            with suppress(Exception):
                await self._client.close()


class _Link(NotifierLink):
    """Implements `NotifierLink` over NATS.

    Args:
        ground: The bus.
        server: The place where to publish.
        prefix: What subjects and keys begin with.
    """

    def __init__(self, ground: Ground, server: _Server, prefix: str) -> None:
        self._ground = ground
        self._server = server
        self._prefix = prefix
        self._turns: dict[str | None, asyncio.Lock] = {}
        self._subscribed: dict[Topic, Subscription | None] = {}
        self._watch: asyncio.Task[None] | None = None

    async def publish(self, notices: Sequence[Notice]) -> None:
        client = await self._server.client()
        if not client.is_connected:
            raise TransportUnavailable("NATS cannot be reached: its client is not connected")
        for notice in notices:
            if notice.kind == "work":
                await self._add_hint(notice.entity_type, notice.commands)
            await client.publish(self._subject(Topic(notice.kind, notice.entity_type)), pack_notice(notice))
        await client.flush(timeout=int(_PATIENCE))

    async def consume_hint(self, entity_type: str | None) -> bool:
        return await self._changed(entity_type, lambda left: None if left is None or left < 1 else left - 1) is not False

    async def _add_hint(self, entity_type: str | None, commands: int) -> None:
        await self._changed(entity_type, lambda left: (left or 0) + commands)

    async def _changed(self, entity_type: str | None, change: Callable[[int | None], int | None]) -> bool | None:
        """Change a hint by compare-and-set. Return whether that was done; None if it is not known: no hint, no bucket, or too many racers.

        Args:
            entity_type: Type of the hint.
            change: Returns the new count, or None for no change; gets None if there is no hint.
        """
        from nats.errors import Error
        from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError

        key = f"{self._prefix}.{_token(entity_type)}"
        async with self._turns.setdefault(entity_type, asyncio.Lock()):
            try:
                bucket = await self._server.bucket()
                if bucket is None:
                    return None
                for tried in range(_TRIES):
                    with suppress(KeyWrongLastSequenceError):
                        try:
                            entry = await bucket.get(key)
                        except KeyNotFoundError:
                            left, revision = None, 0
                        else:
                            left, revision = _count(entry.value), entry.revision or 0
                        changed = change(left)
                        if changed is None:
                            return None if left is None else False
                        value = str(changed).encode()
                        await (bucket.update(key, value, last=revision) if revision else bucket.create(key, value))
                        return True
                    await asyncio.sleep(JITTER.uniform(0.0, 0.01 * 2**tried))
            except (
                Error,
                OSError,
                TimeoutError,
            ) as error:  # no bucket, no JetStream, no server: hints help, and nothing depends on them
                _log.debug("a hint could not be read or written: %r", error)
        return None

    async def subscribe(self, topic: Topic) -> None:
        self._subscribed[topic] = None
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._look(), name="command_bus.nats")
        with suppress(Exception):  # `_look` goes on trying
            async with asyncio.timeout(_PATIENCE):
                await self._subscribe(topic)

    async def unsubscribe(self, topic: Topic) -> None:
        subscription = self._subscribed.pop(topic, None)
        if not self._subscribed and self._watch is not None:
            watch, self._watch = self._watch, None
            await end_tasks([watch])
        if subscription is not None:
            with suppress(Exception):  # the client is closed or away: then there is none at the server
                await subscription.unsubscribe()

    async def close(self) -> None:
        for topic in list(self._subscribed):
            await self.unsubscribe(topic)
        await self._server.close()

    async def _subscribe(self, topic: Topic) -> None:
        client = await self._server.client()
        if self._subscribed.get(topic, self) is not None:  # it is subscribed meanwhile, or has no listener any more
            return
        found = self._subscribed[topic] = await client.subscribe(self._subject(topic), cb=partial(self._receive, topic))
        await client.flush(timeout=int(_PATIENCE))
        if topic not in self._subscribed:
            await found.unsubscribe()

    async def _look(self) -> None:
        """Subscribe what could not be, and tell of cuts: the client subscribes again by itself, but what came in between is lost."""
        seen: int | None = None
        while True:
            await asyncio.sleep(_LOOK)
            try:
                client = await self._server.client()
                late = [topic for topic, subscription in self._subscribed.items() if subscription is None]
                for topic in late:
                    await self._subscribe(topic)
                again = client.stats["reconnects"]
                if late or (seen is not None and again != seen and client.is_connected):
                    self._ground.missed()
                if client.is_connected:
                    seen = again
            except Exception as error:  # noqa: BLE001 - whatever the client raises, the next look may succeed
                _log.debug("NATS cannot be listened to: %r", error)

    async def _receive(self, topic: Topic, message: Any) -> None:
        self._ground.receive(topic, message.data)

    def _subject(self, topic: Topic) -> str:
        return f"{self._prefix}.{topic.kind}.{_token(topic.entity_type)}"


def _token(entity_type: str | None) -> str:
    """Return an entity type as one token of a subject, and of a key: a dot would divide it, and a `~` is not allowed there."""
    if entity_type is None:
        return _NO_TYPE
    return entity_type if entity_type == ALL_TYPES else entity_type.replace(".", "=")


def _count(value: bytes | None) -> int:
    """Return the count of a hint; 0 for what is no number."""
    return int(value) if value is not None and value.isdigit() and len(value) < 19 else 0
