"""`Notifications`: what a bus sends, and who listens in this process; reached as `bus.notifier`.

    bus = CommandBus(url, notifier=RedisNotifier())
    async with bus.notifier.listen("work", types={"order"}) as woken:
        async for entity_type in woken:
            if await bus.notifier.consume_hint(entity_type):
                await start_a_worker()

Fire and forget: the bus never waits for it and never depends on it. Without a notifier nothing of it is in the way of a command.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, overload

from command_bus.errors import BusClosed, CommandBusError, InvalidSettings
from command_bus.messages.message import check_entity_type
from command_bus.notifications.delivery import Announcer, Listener, Listeners, Notices, WokenTypes
from command_bus.notifications.notices import ALL_TYPES, Notice, NoticeKind, Topic, checked_kinds, unpack_notice
from command_bus.notifications.notifier import Ground, Notifier, NotifierLink
from command_bus.transport.ports.transport import Transport


@dataclass(frozen=True, slots=True)
class NotificationFigures:
    """The counters of a bus since it was opened.

    Attributes:
        sent: Notices that were sent.
        failed: Sends that failed, of one or more notices each.
        left_out: Notices that were left out, because nothing could be sent or there were too many.
        unreadable: Messages that came and are no notices.
        reconnects: Cut connections of listeners that were made again.
    """

    sent: int = 0
    failed: int = 0
    left_out: int = 0
    unreadable: int = 0
    reconnects: int = 0


class OpenNotifications:
    """The notifications of one open bus.

    Args:
        notifier: How they travel.
        namespace: What the bus is called on the server.
        transport: Reaches the bus's server.
    """

    def __init__(self, notifier: Notifier, namespace: str, transport: Transport) -> None:
        self.kinds = notifier.kinds
        self.unreadable = self.reconnects = 0
        self.link: NotifierLink = notifier.link(Ground(namespace, lambda: transport.channels, self._receive, self._missed))
        self.announcer = Announcer(self.link.publish, notifier.settled)
        self.listeners = Listeners(self.link.subscribe, self.link.unsubscribe)

    @property
    def figures(self) -> NotificationFigures:
        """The counters so far."""
        told = self.announcer
        return NotificationFigures(told.sent, told.failed, told.left_out, self.unreadable, self.reconnects)

    async def close(self) -> None:
        """Send what is left, and end what listens."""
        self.listeners.end()
        try:
            await self.announcer.close()
        finally:
            await self.link.close()

    def _receive(self, topic: Topic, message: bytes) -> None:
        notice = unpack_notice(message)
        if notice is None or notice.kind != topic.kind or topic.entity_type not in (ALL_TYPES, notice.entity_type):
            self.unreadable += 1
            return
        self.listeners.receive(topic, notice)

    def _missed(self) -> None:
        self.reconnects += 1
        self.listeners.wake()


class Notifications:
    """Notices that this bus sends and hears, as a `SessionPart`: see the head of this module.

    Args:
        notifier: How notices travel; None: nothing is sent, and there is nothing to listen to.
        namespace: What the bus is called on the server.
        check: Raises where the bus may not be used.
    """

    def __init__(self, notifier: Notifier | None, namespace: str, check: Callable[[], object]) -> None:
        self._notifier = notifier
        self._namespace = namespace
        self._check = check
        self._open: OpenNotifications | None = None
        self._last = NotificationFigures()

    @overload
    def listen(
        self, kind: Literal["work"], *, types: Collection[str | None] = ()
    ) -> AbstractAsyncContextManager[AsyncIterator[str | None]]: ...
    @overload
    def listen(
        self, kind: Literal["settled", "lease_lost", "published"], *, types: Collection[str | None] = ()
    ) -> AbstractAsyncContextManager[AsyncIterator[Notice]]: ...
    def listen(self, kind: NoticeKind, *, types: Collection[str | None] = ()) -> Any:
        """Listen, while the `async with` is open, to what buses of this namespace tell; entering it subscribes, or joins who is subscribed.

        `work` yields entity types: each waits once, however often it is told. The others yield `Notice`s. A cut connection is made again; what
        was told in between is lost, so each type that was asked for by name is yielded once more then. The iteration ends with the bus.

        Args:
            kind: What to listen to.
            types: Entity types, None is what has no entity; by default all.

        Raises:
            InvalidSettings: This bus has no notifier, or it is no kind.
            InvalidCommand: One is no entity type.
            BusClosed: The bus is not open.
        """
        (checked,) = checked_kinds([kind])
        named = {types} if isinstance(types, str) else set(types)
        topics = [Topic(checked, None if each is None else check_entity_type(each)) for each in named] or [
            Topic(checked, ALL_TYPES)
        ]
        return self._listening(WokenTypes(topics) if kind == "work" else Notices(topics))

    async def consume_hint(self, entity_type: str | None) -> bool:
        """Take one from the hint of an entity type; return whether to wake for it.

        `n` new commands add `n` to the hint of their type. So of any number of processes that were told of them at most `n` wake. It is true
        as well where that is not known: there is no hint (any more), no bucket, or no answer.

        Raises:
            InvalidSettings: This bus has no notifier.
            InvalidCommand: It is no entity type.
            BusClosed: The bus is not open.
        """
        if entity_type is not None:
            check_entity_type(entity_type)
        link = self._opened().link
        try:
            return await link.consume_hint(entity_type)
        except BusClosed:
            raise
        except CommandBusError:
            return True

    @property
    def figures(self) -> NotificationFigures:
        """The counters since the bus was opened; of a closed bus the last ones."""
        return self._last if self._open is None else self._open.figures

    def begin(self, transport: Transport) -> OpenNotifications | None:
        """Begin to tell, as the bus opens; return None if it has no notifier."""
        if self._notifier is not None:
            self._open = OpenNotifications(self._notifier, self._namespace, transport)
        return self._open

    @property
    def open(self) -> OpenNotifications | None:
        """What tells now; None if the bus is closed or has no notifier."""
        return self._open

    async def close(self) -> None:
        if self._open is not None:
            await self._open.close()
            self._last, self._open = self.figures, None

    def renew(self) -> None:
        self._open = None

    @asynccontextmanager
    async def _listening(self, listener: Listener[Any]) -> AsyncGenerator[Listener[Any]]:
        listeners = self._opened().listeners
        try:
            await listeners.enter(listener)
            yield listener
        finally:
            await listeners.leave(listener)

    def _opened(self) -> OpenNotifications:
        if self._notifier is None:
            raise InvalidSettings("this bus has no notifier: make it with CommandBus(…, notifier=RedisNotifier())")
        self._check()
        if self._open is None:
            raise InvalidSettings("this bus tells nothing and hears nothing: a test kit has taken it over")
        return self._open
