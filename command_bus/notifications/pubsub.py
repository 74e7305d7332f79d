"""`RedisNotifier`: notices by pub/sub of the bus's own server. It needs nothing else."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, cast

from command_bus.clock import duration_fault
from command_bus.errors import InvalidSettings
from command_bus.notifications.notices import Notice, NoticeKind, Topic, checked_kinds, checked_names, pack_notice
from command_bus.notifications.notifier import Ground, NotifierLink
from command_bus.transport.ports.extensions import Subscriptions

_NO_TYPE: Final = "~"


class RedisNotifier:
    """A `Notifier` by pub/sub of the bus's server: one server, a primary behind Sentinels, or a Redis Cluster.

    Args:
        kinds: Notices that are sent; `settled` and `published` cost a message for each, so they are sent only if they are named.
        settled: Wire names of the commands whose end the notice `settled` reports; None is all.
        hint_ttl: Seconds after which a hint to which nothing was added is forgotten.

    Raises:
        InvalidSettings: A kind or a name is none, or `hint_ttl` is below a second.
    """

    def __init__(
        self,
        *,
        kinds: Collection[NoticeKind] = ("work", "lease_lost"),
        settled: Collection[str] | None = None,
        hint_ttl: float = 60.0,
    ) -> None:
        self.kinds = checked_kinds(kinds)
        self.settled = checked_names(settled, self.kinds)
        if fault := duration_fault(hint_ttl) or ("is at least a second" if hint_ttl < 1 else None):
            raise InvalidSettings(f"hint_ttl {fault}")
        self.hint_ttl = hint_ttl

    def link(self, ground: Ground) -> _Link:
        return _Link(ground, self.hint_ttl)


class _Link(NotifierLink):
    """Implements `NotifierLink` over the channels of the bus's server."""

    def __init__(self, ground: Ground, hint_ttl: float) -> None:
        self._ground = ground
        self._hint_ttl = hint_ttl
        self._subscriptions: Subscriptions | None = None

    async def publish(self, notices: Sequence[Notice]) -> None:
        hints = {_named(each.entity_type): each.commands for each in notices if each.kind == "work"}
        messages = [(f"{each.kind}:{_named(each.entity_type)}", pack_notice(each)) for each in notices]
        await self._ground.channels().publish(messages, hints, self._hint_ttl)

    async def consume_hint(self, entity_type: str | None) -> bool:
        return await self._ground.channels().take(_named(entity_type)) is not False

    async def subscribe(self, topic: Topic) -> None:
        if self._subscriptions is None:
            self._subscriptions = self._ground.channels().subscriptions(self._receive, self._ground.missed)
        await self._subscriptions.add(_channel(topic))

    async def unsubscribe(self, topic: Topic) -> None:
        if self._subscriptions is not None:
            await self._subscriptions.remove(_channel(topic))

    async def close(self) -> None:
        if self._subscriptions is not None:
            await self._subscriptions.close()

    def _receive(self, channel: str, message: bytes) -> None:
        kind, _, named = channel.partition(":")
        self._ground.receive(Topic(cast("NoticeKind", kind), None if named == _NO_TYPE else named), message)


def _channel(topic: Topic) -> str:
    return f"{topic.kind}:{_named(topic.entity_type)}"


def _named(entity_type: str | None) -> str:
    return _NO_TYPE if entity_type is None else entity_type
