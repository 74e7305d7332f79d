"""One reader of events, and one of each command's progress, for all who follow: a thousand clients cost the server what one does.

`EventHub` reads while somebody listens. Each listener has a queue of its own; one that is too slow loses what does not fit, and is told so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from command_bus.admin.events import CommandEvent
from command_bus.bus import CommandBus
from command_bus.errors import CommandBusError
from command_bus.messages.reports import ProgressInfo
from command_bus.tasks import end_tasks

_MOST = 1000
"""Events that wait for one listener."""


class StreamedEvent(NamedTuple):
    """An event, and where it stands: which id of the cursor it moves, and to what.

    Ids are compared as the cursor has them: two numbers.
    """

    event: CommandEvent
    feed: int
    id: str


class Listener:
    """Somebody who listens.

    Args:
        wants: Whether it wants an event.

    Attributes:
        missed: How many events it was too slow for, since it was last told so.
    """

    def __init__(self, wants: Callable[[CommandEvent], bool]) -> None:
        self._wants = wants
        self._queue: deque[StreamedEvent] = deque()
        self._has_some = asyncio.Event()
        self._ended = False
        self.missed = 0

    def hear(self, heard: StreamedEvent) -> None:
        """Take an event; the oldest gives way if there is no room."""
        if not self._wants(heard.event):
            return
        if len(self._queue) >= _MOST:
            self._queue.popleft()
            self.missed += 1
        self._queue.append(heard)
        self._has_some.set()

    def end(self) -> None:
        """Let it finish what it has, and then end: nothing more is read."""
        self._ended = True
        self._has_some.set()

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        return self._ended and not self._queue

    async def next(self, quiet: float) -> StreamedEvent | None:
        """Return the next event; None after so many seconds without one, and at the end."""
        if not self._queue and not self._ended:
            self._has_some.clear()
            try:
                async with asyncio.timeout(quiet):
                    await self._has_some.wait()
            except TimeoutError:
                return None
        return self._queue.popleft() if self._queue else None


class EventHub:
    """Reads events for all listeners of a gateway.

    Args:
        bus: Open, once somebody listens.

    Attributes:
        listeners: Those who listen.
    """

    def __init__(self, bus: CommandBus) -> None:
        self._bus = bus
        self.listeners: set[Listener] = set()
        self._reader: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._cursor = ""

    @asynccontextmanager
    async def listening(self, wants: Callable[[CommandEvent], bool]) -> AsyncGenerator[tuple[Listener, str]]:
        """Listen for as long as the block runs; yield the listener, and the cursor behind which it hears everything.

        Raises:
            TransportUnavailable: The server cannot be reached.
        """
        listener = Listener(wants)
        async with self._starting:
            if self._reader is None or self._reader.done():
                self._cursor = await self._bus.events.cursor()
                self._reader = asyncio.create_task(self._read(), name="command_bus.gateway.events")
            self.listeners.add(listener)  # no await since the cursor was read: nothing is between them
            cursor = self._cursor
        try:
            yield listener, cursor
        finally:
            self.listeners.discard(listener)
            if not self.listeners and self._reader is not None:
                reader, self._reader = self._reader, None
                await end_tasks((reader,))

    async def _read(self) -> None:
        """Hand events on until no one listens. If it fails or the bus closes, all listeners end: their clients ask again."""
        try:
            async for event in self._bus.events(after=self._cursor):
                if self._reader is not asyncio.current_task():
                    return  # another one has taken over
                feed, entry = _moved(self._cursor, event.cursor)
                self._cursor = event.cursor
                heard = StreamedEvent(event, feed, entry)
                for listener in self.listeners:
                    listener.hear(heard)
        except CommandBusError:
            pass
        finally:
            if self._reader is asyncio.current_task():
                for listener in self.listeners:
                    listener.end()


def _moved(before: str, after: str) -> tuple[int, str]:
    """Return which id of a cursor has moved, and to what."""
    pairs = zip(before.split(","), after.split(","), strict=True)
    return next(((feed, new) for feed, (old, new) in enumerate(pairs) if old != new), (0, after.partition(",")[0]))


class _Course:
    """The progress of one command while somebody follows it.

    Attributes:
        latest: What was told last.
        number: How many times something was told.
        ended: Whether nothing more comes.
        error: Why, if the server could not be read any more.
        news: Set once something has come, and then replaced.
        followers: How many follow.
        reader: Reads.
    """

    def __init__(self, source: AsyncIterator[ProgressInfo]) -> None:
        self.latest = ProgressInfo()
        self.number = 0
        self.ended = False
        self.error: CommandBusError | None = None
        self.news = asyncio.Event()
        self.followers = 0
        self.reader = asyncio.create_task(self._read(source), name="command_bus.gateway.progress")

    async def _read(self, source: AsyncIterator[ProgressInfo]) -> None:
        try:
            async for self.latest in source:
                self.number += 1
                self._wake()
        except CommandBusError as error:
            self.error = error
        finally:
            self.ended = True
            self._wake()

    def _wake(self) -> None:
        news, self.news = self.news, asyncio.Event()
        news.set()


class Follower:
    """Somebody who follows a command.

    Args:
        course: What is followed.
    """

    def __init__(self, course: _Course) -> None:
        self._course = course
        self._seen = 0

    @property
    def is_over(self) -> bool:
        """True once nothing more comes."""
        return self._course.ended and self._course.error is None and self._seen == self._course.number

    async def next(self, quiet: float) -> ProgressInfo | None:
        """Return how far the command is, once that is new; None after so many seconds without news, and at the end.

        Raises:
            CommandBusError: The server cannot be read any more, or the bus was closed.
        """
        course = self._course
        if self._seen == course.number and not course.ended:
            try:
                async with asyncio.timeout(quiet):
                    await course.news.wait()
            except TimeoutError:
                return None
        if self._seen == course.number:
            if course.error is not None:
                raise course.error
            return None
        self._seen = course.number
        return course.latest


class ProgressHub:
    """Reads the progress of commands for all who follow them.

    Args:
        bus: Open, once somebody follows.

    Attributes:
        courses: What is followed, by the command's id.
    """

    def __init__(self, bus: CommandBus) -> None:
        self._bus = bus
        self.courses: dict[str, _Course] = {}

    @asynccontextmanager
    async def following(self, command_id: str) -> AsyncGenerator[Follower]:
        """Follow a command for as long as the block runs."""
        course = self.courses.get(command_id)
        if course is None or course.ended:
            course = self.courses[command_id] = _Course(self._bus.commands.progress(command_id))
        course.followers += 1
        try:
            yield Follower(course)
        finally:
            course.followers -= 1
            if not course.followers:
                if self.courses.get(command_id) is course:
                    del self.courses[command_id]
                await end_tasks((course.reader,))
