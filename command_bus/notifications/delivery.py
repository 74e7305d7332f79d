"""Delivery of notices: `Announcer` sends them in the background, `Listeners` hand on what comes, all in bounded memory.

What sends commands only notes a notice here. All that is noted in one turn of the event loop, and while a send is under way, leaves
together; of `work` one notice for each type. While notices cannot be sent, those of `work` are kept, added up, and the others are left out
and counted: those who wait for work must be told once that is possible again, and what was settled long ago is in `history`.

All who listen to one topic share one subscription, which ends with the last of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, Generic, TypeVar

from command_bus.errors import BusClosed
from command_bus.notifications.notices import ALL_TYPES, Notice, Topic
from command_bus.serialization.limits import printable
from command_bus.tasks import end_tasks

_MOST_NOTED = 10_000
"""Notices that are kept, and types."""
_PATIENCE = 5.0
"""Seconds that one send may take."""
_FAREWELL = 1.0
"""Seconds for what is left when the bus closes."""
_PAUSES = (0.1, 5.0)
"""Seconds after the first failure, doubled up to these."""
_log = logging.getLogger("command_bus.notifications")


class Announcer:
    """Sends what it is told, and never fails for who tells it.

    Args:
        publish: Sends notices.
        settled: Wire names of the commands whose end the notice `settled` reports; None is all.

    Attributes:
        sent: Notices that were sent.
        failed: Sends that failed.
        left_out: Notices that were left out.
    """

    def __init__(self, publish: Callable[[Sequence[Notice]], Awaitable[None]], settled: Collection[str] | None = None) -> None:
        self.sent = self.failed = self.left_out = 0
        self._publish = publish
        self._settled = settled
        self._work: Counter[str | None] = Counter()
        self._others: list[Notice] = []
        self._there = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._is_failing = False

    def work(self, entity_type: str | None, commands: int = 1) -> None:
        """Tell that a type has new commands."""
        if entity_type not in self._work and len(self._work) >= _MOST_NOTED:
            self.left_out += 1
            return
        self._work[entity_type] += commands
        self._wake()

    def tell(self, notice: Notice) -> None:
        """Tell something else."""
        if notice.kind == "settled" and self._settled is not None and notice.name not in self._settled:
            return
        if len(self._others) >= _MOST_NOTED:
            self.left_out += 1
            return
        self._others.append(notice)
        self._wake()

    async def close(self) -> None:
        """Send what is left, for a second at most."""
        self._is_closed = True
        if self._task is not None:
            await end_tasks([self._task])
            if self._work or self._others:
                try:
                    async with asyncio.timeout(_FAREWELL):
                        await self._send()
                except Exception as error:  # noqa: BLE001 - whatever a notifier raises, the bus closes
                    self._note(error)
            self.left_out += len(self._work)

    def _wake(self) -> None:
        if self._is_closed:
            return
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="command_bus.notifications")
        self._there.set()

    async def _run(self) -> None:
        pause = _PAUSES[0]
        while True:
            await self._there.wait()
            self._there.clear()
            try:
                async with asyncio.timeout(_PATIENCE):
                    await self._send()
            except Exception as error:  # noqa: BLE001 - whatever a notifier raises, commands must not notice
                self._note(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _PAUSES[1])
                if self._work or self._others:
                    self._there.set()
            else:
                pause = _PAUSES[0]
                if self._is_failing:
                    self._is_failing = False
                    _log.warning("notices are sent again; %d were left out so far", self.left_out)

    async def _send(self) -> None:
        """Send everything that is noted; if that fails, `work` is noted again."""
        work, others = self._work, self._others
        self._work, self._others = Counter(), []
        notices = [*(Notice("work", entity_type, commands=count) for entity_type, count in work.items()), *others]
        try:
            await self._publish(notices)
        except BaseException:
            self._work.update(work)
            self.left_out += len(others)
            raise
        self.sent += len(notices)

    def _note(self, error: Exception) -> None:
        self.failed += 1
        if not self._is_failing:
            self._is_failing = True
            _log.warning(
                "notices cannot be sent, and are tried again; commands go on without them: %s",
                printable(str(error) or type(error).__name__),
            )


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

    def wake(self) -> None:
        """Yield a notice that others may have been missed, to who listens to what was published: of the rest there are records."""
        for topic in self.topics:
            if topic.kind == "published":
                self.offer(Notice(topic.kind, None if topic.entity_type == ALL_TYPES else topic.entity_type, missed=True))

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
