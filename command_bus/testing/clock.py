"""Virtual time on a test's event loop: real time, plus leaps over waits.

The loop's clock is replaced, so timers, `asyncio.sleep` and `asyncio.timeout` follow it. The bus's two clocks are replaced too. Between
leaps time is real, so waits for sockets and threads take as long as always. `time.time()` in a handler is not changed.

Every module that uses `mono` binds `time.monotonic` by name, because a call through another function would cost every command. So each
binding is replaced during a test, and restored.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

from command_bus.clock import wall_ms
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


_monotonic = time.monotonic
_wall = time.time
_MOST_TURNS = 10_000


class VirtualClock:
    """The clock of event loops, from `start` on each until `stop`. All started loops leap together."""

    def __init__(self) -> None:
        self._offset = 0.0
        self._loops: set[Any] = set()
        self._undo: list[Callable[[], None]] = []

    def time(self) -> float:
        """Return monotonic seconds, including all leaps."""
        return _monotonic() + self._offset

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch, including all leaps."""
        return int((_wall() + self._offset) * 1000)

    def start(self) -> None:
        """Replace the clock of the running loop; idempotent.

        Raises:
            RuntimeError: The loop is not asyncio's own.
        """
        loop: Any = asyncio.get_running_loop()
        if loop in self._loops:
            return
        if not isinstance(loop, asyncio.BaseEventLoop):
            raise RuntimeError(  # noqa: TRY004 - not a wrong argument: the wrong loop
                f"virtual time needs asyncio's own event loop, this is {type(loop).__module__}: use the default policy for this test"
            )
        own, wall = self.time, self.wall_ms
        before = loop.time
        loop.time = own  # type: ignore[method-assign]  # its one clock, read for every timer

        def give_back() -> None:
            if loop.time is own:
                loop.time = before  # type: ignore[method-assign]  # as it was

        if not self._loops:
            self._undo = [rebind("mono", _monotonic, own), rebind("wall_ms", wall_ms, wall)]
        self._undo.append(give_back)
        self._loops.add(loop)

    def stop(self) -> None:
        """Restore the clocks; idempotent."""
        undo, self._undo = self._undo, []
        self._loops.clear()
        for restore in undo:
            restore()

    async def quiet(self) -> None:
        """Run the loop until no task is ready: every task waits for a timer, a thread or a socket."""
        loop: Any = asyncio.get_running_loop()
        for _ in range(_MOST_TURNS):
            await asyncio.sleep(0)
            if not loop._ready:  # noqa: SLF001 - there is no public way
                return

    def next_timer(self) -> float | None:
        """Return when the next timer is due, or None."""
        loop: Any = asyncio.get_running_loop()
        return min((timer.when() for timer in loop._scheduled if not timer.cancelled()), default=None)  # noqa: SLF001 - as above

    def leap(self, until: float) -> None:
        """Advance to a time at once; never go back."""
        self._offset += max(0.0, until - self.time())
