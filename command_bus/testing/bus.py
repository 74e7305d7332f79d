"""`TestBus`: a bus for tests, with a server in memory, time that leaps, and workers that crash where they are told to.

    async def test_a_deposit_survives_a_crash(command_bus):
        command_bus.crash_after("handled", Deposit)
        await command_bus.dispatch(Deposit(account_id="a-1", amount=5))
        await command_bus.run_until_idle()
        assert balances["a-1"] == 5

It runs the bus's own code: producer, scripts, worker, recovery. Only the server is another (`command_bus.testing.simulated`), and the
clocks. The worker starts with the first `run_until_idle`, `advance` or `call`; one that crashed is replaced at once, as a supervisor
would, and its successor takes over when the lease is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Self, TypeVar, Unpack

from command_bus.admin.info import Stats
from command_bus.bus import BusOptions, CommandBus
from command_bus.clock import mono
from command_bus.handlers.registry import HandlerRegistry
from command_bus.messages.context import running_command
from command_bus.messages.message import Message
from command_bus.messages.options import CallOptions, DispatchOptions
from command_bus.messages.outgoing import Envelope
from command_bus.messages.receipts import BatchResult, Receipt
from command_bus.testing.assertions import Noted
from command_bus.testing.clock import VirtualClock
from command_bus.testing.crashes import Crash, CrashPoint
from command_bus.testing.processes import Fleet

__all__ = ["TestBus"]

R = TypeVar("R")
_real = mono
_TURN = 0.001


class TestBus(Noted):
    """A bus, a server in memory and workers, in one event loop and in virtual time.

    `async with TestBus(registry) as bus: …`, or the fixture `command_bus`, which opens at the first use.

    Args:
        registry: The handlers; by default those registered with `@handles`, or those of `bus`.
        bus: The application's own bus, not open yet: its settings, middleware, lifespan and registry are used, and until the end of the
            test it talks to the server in memory, whoever opens it, so that code that imports it needs no change.
        workers: How many work at a time.
        **options: For `CommandBus`, where no `bus` is given.

    Attributes:
        bus: The bus: all that a `CommandBus` can do, with the server in memory behind it.
        clock: The virtual time.
    """

    __test__ = False  # not a class of tests, whatever its name

    def __init__(
        self,
        registry: HandlerRegistry | None = None,
        *,
        bus: CommandBus | None = None,
        workers: int = 1,
        **options: Unpack[BusOptions],
    ) -> None:
        self.clock = VirtualClock()
        self._fleet = Fleet(self.clock, registry, bus, workers, options)
        self.bus = self._fleet.bus
        self._fleet.recorder.serving = self._serve
        super().__init__(self._fleet.recorder)

    async def __aenter__(self) -> Self:
        await self._fleet.sender()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._drive(self._fleet.close())
        self.release()

    def __repr__(self) -> str:
        return f"<TestBus of {self.bus!r}: {len(self.sent)} sent, {len(self.handled)} attempts>"

    def claim_all(self) -> None:
        """Let every bus of this process that is opened from now on, also by a `SyncCommandBus`, talk to the server in memory."""
        self._fleet.claims.all()

    @property
    def refused(self) -> list[str]:
        """Why something was not sent: by a bus that was open before `claim_all`."""
        return self._fleet.claims.refused

    def release(self) -> None:
        """Give back the clocks and the buses; for whoever cannot await."""
        self._fleet.release()
        self.clock.stop()

    # Sending.

    async def dispatch(self, command: Message[R], **options: Unpack[DispatchOptions]) -> Receipt[R]:
        """As `CommandBus.dispatch`."""
        bus = await self._fleet.sender()
        return await bus.dispatch(command, **options)

    async def dispatch_batch(self, commands: Iterable[Message[Any] | Envelope[Any]]) -> BatchResult:
        """As `CommandBus.dispatch_batch`."""
        bus = await self._fleet.sender()
        return await bus.dispatch_batch(commands)

    async def call(self, command: Message[R], **options: Unpack[CallOptions]) -> R:
        """As `CommandBus.call`; retries, delays and leases on the way pass without waiting."""
        bus = await self._fleet.sender()
        return await bus.call(command, **options)

    # Time.

    async def run_until_idle(self, *, timeout: float = 10.0, horizon: float = 7200.0) -> None:
        """Run until every accepted command is settled, delayed ones and retries too, or waits for an operator (paused, parked).

        Time leaps to whatever the bus waits for; while a handler runs it flows as always.

        Args:
            timeout: Real seconds.
            horizon: Virtual seconds.

        Raises:
            AssertionError: Not idle in time; it says what still runs.
        """
        await self._fleet.start()
        end, far = _real() + timeout, self.clock.time() + horizon
        while True:
            await self._handlers(end)
            if not await self._fleet.busy():
                return
            if _real() > end or self.clock.time() > far:
                raise AssertionError(f"not idle after {timeout:g} real or {horizon:g} virtual seconds: {await self._stats()}")
            await self._leap(far)

    def settle(self, *, timeout: float = 10.0, horizon: float = 7200.0) -> None:
        """As `run_until_idle`, for tests that are no coroutines: on an event loop of its own.

        Raises:
            AssertionError: As `run_until_idle`.
            RuntimeError: The test is a coroutine, or this thread runs an event loop for another reason.
        """

        async def work() -> None:
            try:
                await self.run_until_idle(timeout=timeout, horizon=horizon)
            finally:
                await self._drive(self._fleet.close())

        if asyncio._get_running_loop() is not None:  # noqa: SLF001 - as `get_running_loop`, which raises
            raise RuntimeError("an event loop runs here: write `await command_bus.run_until_idle()`")
        asyncio.run(work())

    async def advance(self, seconds: float) -> None:
        """Let so much virtual time pass: every timer on the way fires in its turn, those of handlers too."""
        await self._fleet.start()
        target = self.clock.time() + seconds
        while self.clock.time() < target:
            await self._threads()
            await self._leap(target)
        await self._threads()

    # Crashes.

    def crash_after(self, point: CrashPoint, command: type[Message[Any]] | None = None, *, nth: int = 1, times: int = 1) -> None:
        """Let a worker die at a step; another takes its place, and recovers what it held.

        Args:
            point: `"claimed"`: started, its handler not run. `"handled"`: its handler has returned, the server does not know.
                `"settled"`: the server knows, the worker does not know that it does.
            command: Of this type only.
            nth: At which attempt, counted from now.
            times: So many in a row; an `at_least_once` command has `retry.attempts` in all.
        """
        self._fleet.crashes.append(Crash(point, command, nth, times))

    @property
    def crashed(self) -> int:
        """Workers that died."""
        return self._fleet.crashed

    # Inside.

    async def _drive(self, work: Awaitable[R]) -> R:
        """Await something that the bus does, leaping over its waits."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await self._handlers(None, task.done)
                if not task.done():
                    await self._leap(None)
        except asyncio.CancelledError:
            task.cancel()
            raise
        return task.result()

    async def _stats(self) -> Stats:
        return await (await self._fleet.sender()).stats()

    async def _leap(self, furthest: float | None) -> None:
        """To the next timer, or as far as that."""
        due = self.clock.next_timer()
        target = due if furthest is None or (due is not None and due < furthest) else furthest
        if target is not None:
            self.clock.leap(target)
        await asyncio.sleep(0)

    async def _serve(self, work: Awaitable[R]) -> R:
        """Await a call of this program's: have workers for it, and leap over its waits."""
        await self._fleet.start(stays=False)
        running = running_command()
        if running is None:
            return await self._drive(work)
        with self._fleet.recorder.waiting(running.command_id):  # a handler that calls: whoever drives the test drives this, too
            return await work

    async def _handlers(self, end: float | None, over: Callable[[], bool] = lambda: False) -> None:
        """Let what is ready run, and handlers end, in real time."""
        await self.clock.quiet()
        while (running := self._fleet.recorder.running) and not over():
            if end is not None and _real() > end:
                names = ", ".join(f"{note.context.name} of {note.context.entity}" for note in running)
                raise AssertionError(f"still running: {names}; a handler that sleeps is woken by `advance`")
            await asyncio.sleep(_TURN)
            await self.clock.quiet()

    async def _threads(self) -> None:
        """Let what is ready run and threads end; handlers on the loop get a moment for what is no timer."""
        await self.clock.quiet()
        while any(not self._fleet.is_async(note.context.name) for note in self._fleet.recorder.running):
            await asyncio.sleep(_TURN)
            await self.clock.quiet()
        if self._fleet.recorder.running:
            await asyncio.sleep(_TURN)
            await self.clock.quiet()
