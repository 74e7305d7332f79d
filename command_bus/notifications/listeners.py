"""`Listeners`: who listens in this process. All who listen to one topic share one subscription, which ends with the last of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar

from command_bus.errors import BusClosed
from command_bus.notifications.notices import ALL_TYPES, Notice, Topic

_MOST = 1_000
"""Notices that wait for a slow listener, and types."""

T = TypeVar("T")


class Listener(Generic[T]):
    """Something to iterate over: what has come, in its order, then what comes. It ends with the bus.

    Args:
        topics: What it listens to.

    Attributes:
        missed: Notices that were left out, because it took the others too slowly.
    """

    def __init__(self, topics: Iterable[Topic]) -> None:
        self.topics = tuple(topics)
        self.missed = 0
        self._come = asyncio.Event()
        self._ended = False

    def __aiter__(self) -> Listener[T]:
        return self

    async def __anext__(self) -> T:
        while not self._waiting():
            if self._ended:
                raise StopAsyncIteration
            self._come.clear()
            await self._come.wait()
        return self._first()

    def offer(self, notice: Notice) -> None:
        """Take a notice of one of its topics."""
        raise NotImplementedError

    def wake(self) -> None:
        """Learn that notices may have been missed."""

    def end(self) -> None:
        """End after what has come."""
        self._ended = True
        self._come.set()

    def _waiting(self) -> int:
        raise NotImplementedError

    def _first(self) -> T:
        raise NotImplementedError


class WokenTypes(Listener[str | None]):
    """Yields entity types that have new work. A type waits once, however often it is told."""

    def __init__(self, topics: Iterable[Topic]) -> None:
        super().__init__(topics)
        self._types: dict[str | None, None] = {}

    def offer(self, notice: Notice) -> None:
        if notice.entity_type not in self._types and len(self._types) >= _MOST:
            self.missed += 1
            return
        self._types[notice.entity_type] = None
        self._come.set()

    def wake(self) -> None:
        """Yield each type that it was asked for by name: it may have work by now."""
        for topic in self.topics:
            if topic.entity_type != ALL_TYPES:
                self.offer(Notice("work", topic.entity_type))

    def _waiting(self) -> int:
        return len(self._types)

    def _first(self) -> str | None:
        first = next(iter(self._types))
        del self._types[first]
        return first


class Notices(Listener[Notice]):
    """Yields notices; of too many the oldest are left out."""

    def __init__(self, topics: Iterable[Topic]) -> None:
        super().__init__(topics)
        self._notices: deque[Notice] = deque()

    def offer(self, notice: Notice) -> None:
        if len(self._notices) >= _MOST:
            self._notices.popleft()
            self.missed += 1
        self._notices.append(notice)
        self._come.set()

    def _waiting(self) -> int:
        return len(self._notices)

    def _first(self) -> Notice:
        return self._notices.popleft()


class Listeners:
    """Subscribes to a topic for its first listener, and takes that back after its last.

    Args:
        subscribe: Begins to receive a topic.
        unsubscribe: Ends that.
    """

    def __init__(self, subscribe: Callable[[Topic], Awaitable[None]], unsubscribe: Callable[[Topic], Awaitable[None]]) -> None:
        self._subscribe = subscribe
        self._unsubscribe = unsubscribe
        self._by_topic: dict[Topic, list[Listener[Any]]] = {}
        self._changing = asyncio.Lock()
        self._closed = False

    async def enter(self, listener: Listener[T]) -> None:
        """Let a listener receive its topics from now on."""
        async with self._changing:
            if self._closed:
                raise BusClosed("the bus is closed")
            for topic in listener.topics:
                sharing = self._by_topic.setdefault(topic, [])
                sharing.append(listener)
                if len(sharing) == 1:
                    await self._subscribe(topic)

    async def leave(self, listener: Listener[T]) -> None:
        """Let it receive nothing more, also where it did not enter altogether."""
        async with self._changing:
            for topic in listener.topics:
                sharing = self._by_topic.get(topic, [])
                if listener in sharing:
                    sharing.remove(listener)
                    if not sharing:
                        del self._by_topic[topic]
                        await self._unsubscribe(topic)

    def receive(self, topic: Topic, notice: Notice) -> None:
        """Hand a notice to all who listen to this topic."""
        for listener in self._by_topic.get(topic, ()):
            listener.offer(notice)

    def wake(self) -> None:
        """Tell all that notices may have been missed."""
        for listener in self._everyone():
            listener.wake()

    def end(self) -> None:
        """End every listener."""
        self._closed = True
        for listener in self._everyone():
            listener.end()

    def _everyone(self) -> list[Listener[Any]]:
        return list({id(each): each for sharing in self._by_topic.values() for each in sharing}.values())
