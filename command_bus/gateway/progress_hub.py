"""`ProgressHub`: one reader of a command's progress for all who follow it, so that many clients cost the server what one does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from command_bus.bus import CommandBus
from command_bus.errors import CommandBusError
from command_bus.messages.reports import ProgressInfo
from command_bus.tasks import end_tasks


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
    """

    def __init__(self, bus: CommandBus) -> None:
        self._bus = bus
        self._courses: dict[str, _Course] = {}

    @property
    def commands(self) -> int:
        """The number of commands that are followed."""
        return len(self._courses)

    @asynccontextmanager
    async def following(self, command_id: str) -> AsyncGenerator[Follower]:
        """Follow a command for as long as the block runs."""
        course = self._courses.get(command_id)
        if course is None or course.ended:
            course = self._courses[command_id] = _Course(self._bus.commands.progress(command_id))
        course.followers += 1
        try:
            yield Follower(course)
        finally:
            course.followers -= 1
            if not course.followers:
                if self._courses.get(command_id) is course:
                    del self._courses[command_id]
                await end_tasks((course.reader,))
