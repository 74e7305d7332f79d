"""The ground under the bus: its clocks and its renewing thread, put into somebody else's time.

`mono` is `time.monotonic` bound by name in every module that uses it, because a call through another function would be paid for by
every command. So each binding is replaced while a test needs it, and put back.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from command_bus.transport.redis.connection.errors import CONNECTION_ERRORS
from command_bus.transport.redis.worker.lease_keeper import LeaseKeeper

__all__ = ["TaskKeeper", "Wake", "rebind"]


def rebind(name: str, old: Any, new: Any) -> Callable[[], None]:
    """Replace a value wherever the package has bound it; gives what puts the old one back, also where it was bound meanwhile."""

    def exchange(present: Any, wanted: Any) -> None:
        for path, module in list(sys.modules.items()):
            if path.partition(".")[0] == "command_bus" and vars(module).get(name) is present:
                setattr(module, name, wanted)

    exchange(old, new)
    return lambda: exchange(new, old)


class Wake:
    """A `threading.Event` for a thread that is a task."""

    def __init__(self) -> None:
        self._set = asyncio.Event()
        self.set = self._set.set
        self.clear = self._set.clear

    async def wait(self, seconds: float) -> None:
        """Until it is set, at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._set.wait()
        except TimeoutError:
            pass


class TaskKeeper(LeaseKeeper):
    """The lease keeper with a task for its thread: in the loop's time, and without renewals while a handler blocks the loop."""

    _task: asyncio.Task[None]

    def start(self) -> None:
        """As the thread's."""
        self._wake: Any = Wake()
        self._loop, self._task = self.begin()

    def begin(self) -> tuple[Any, asyncio.Task[None]]:
        """The loop that runs the handlers, and the task."""
        loop = asyncio.get_running_loop()
        return loop, loop.create_task(self.renewing(), name="command_bus.leases")

    async def stop(self) -> None:
        """As the thread's."""
        self._stopping = True
        self._wake.set()
        await asyncio.wait([self._task], timeout=10.0)

    async def renewing(self) -> None:
        """What the thread does."""
        client: Any = self._factory.thread(self.patience)
        try:
            while not self._stopping:
                await self._wake.wait(await self._turn_in_time(client))
                self._wake.clear()
        finally:
            await client.aclose()

    async def _turn_in_time(self, client: Any) -> float:
        turn, answers = self.turn(), None
        while True:
            try:
                page = turn.send(answers)
            except StopIteration as end:
                return float(end.value)
            try:
                answers = await self.request(client, page).execute(raise_on_error=False)
            except CONNECTION_ERRORS as error:
                answers = error
