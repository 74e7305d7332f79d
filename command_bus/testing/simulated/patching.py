"""Patches that put the bus's clocks and its lease-renewing thread on a virtual clock.

Every module that uses `mono` binds `time.monotonic` by name, because a call through another function would cost every command. So each
binding is replaced during a test, and restored.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from command_bus.transport.redis.connection.errors import CONNECTION_ERRORS
from command_bus.transport.redis.worker.lease_keeper import LeaseKeeper


def rebind(name: str, old: Any, new: Any) -> Callable[[], None]:
    """Replace a value wherever the package has bound it. Return a function that restores it, also where it was bound in between."""

    def exchange(present: Any, wanted: Any) -> None:
        for path, module in list(sys.modules.items()):
            if path.partition(".")[0] == "command_bus" and vars(module).get(name) is present:
                setattr(module, name, wanted)

    exchange(old, new)
    return lambda: exchange(new, old)


class AsyncWake:
    """An event like `threading.Event`, for a thread that is replaced by a task."""

    def __init__(self) -> None:
        self._set = asyncio.Event()
        self.set = self._set.set
        self.clear = self._set.clear

    async def wait(self, seconds: float) -> None:
        """Wait until it is set, at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._set.wait()
        except TimeoutError:
            pass


class TaskLeaseKeeper(LeaseKeeper):
    """A lease keeper with a task instead of a thread. It runs on the loop's time, and renews nothing while a handler blocks the loop."""

    _task: asyncio.Task[None]

    def start(self) -> None:
        self._wake: Any = AsyncWake()
        self._loop, self._task = self.begin()

    def begin(self) -> tuple[Any, asyncio.Task[None]]:
        """Start the task; return the loop that runs the handlers, and the task."""
        loop = asyncio.get_running_loop()
        return loop, loop.create_task(self.renewing(), name="command_bus.leases")

    async def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        await asyncio.wait([self._task], timeout=10.0)

    async def renewing(self) -> None:
        """Renew leases until stopped, as the thread does."""
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
