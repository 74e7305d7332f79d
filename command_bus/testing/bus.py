"""`TestBus`: a bus for tests, with an in-memory server, virtual time, and workers that crash at chosen steps.

    async def test_a_deposit_survives_a_crash(command_bus):
        command_bus.crash_after("handled", Deposit)
        await command_bus.dispatch(Deposit(account_id="a-1", amount=5))
        await command_bus.run_until_idle()
        assert balances["a-1"] == 5

It runs the bus's own code: producer, scripts, worker, recovery. Only the server (`command_bus.testing.simulated`) and the clocks are
replaced. The worker starts with the first `run_until_idle`, `advance` or `call`. A crashed worker is replaced at once, as by a
supervisor. The new worker takes over when the lease expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Self, TypeVar, Unpack

from command_bus.bus import BusOptions, CommandBus
from command_bus.clock import mono
from command_bus.handlers.registry import HandlerRegistry
from command_bus.messages.context import running_command
from command_bus.messages.event import Published, PublishOptions
from command_bus.messages.message import Event, Message
from command_bus.messages.options import DispatchOptions, FollowedCallOptions
from command_bus.messages.outgoing import Envelope, OtherEntities, RawEnvelope
from command_bus.messages.receipts import BatchResult, Receipt
from command_bus.testing.assertions import Noted
from command_bus.testing.clock import VirtualClock
from command_bus.testing.crashes import Crash, CrashPoint
from command_bus.testing.processes import BusProcesses
from command_bus.testing.simulated.live import PROCESS

R = TypeVar("R")
_real = mono
_TURN = 0.001
_LONG = 120.0
"""Seconds without work that are passed at once, and not timer by timer."""


class TestBus(Noted):
    """A bus, an in-memory server and workers, in one event loop and in virtual time.

    `async with TestBus(registry) as bus: …`, or the fixture `command_bus`, which opens the bus at the first use.

    Args:
        registry: The handlers; by default those registered with `@handles`, or those of `bus`.
        bus: The application's own bus, not open yet. Its settings, middleware, lifespan and registry are used. Until the end of the
            test it talks to the in-memory server, so code that imports it needs no change.
        workers: Number of workers.
        **options: For `CommandBus`, if no `bus` is given.

    Attributes:
        bus: A `CommandBus` that talks to the in-memory server.
        clock: The virtual time.
    """

    __test__ = False  # despite its name, not a class of tests

    def __init__(
        self,
        registry: HandlerRegistry | None = None,
        *,
        bus: CommandBus | None = None,
        workers: int = 1,
        **options: Unpack[BusOptions],
    ) -> None:
        self.clock = VirtualClock()
        self._processes = BusProcesses(self.clock, registry, bus, workers, options)
        self.bus = self._processes.bus
        self.states = self.bus.states
        self._processes.recorder.serving = self._serve
        super().__init__(self._processes.recorder)

    async def __aenter__(self) -> Self:
        await self._processes.sender()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._drive(self._processes.close())
        self.release()

    def __repr__(self) -> str:
        return f"<TestBus of {self.bus!r}: {len(self.sent)} sent, {len(self.handled)} attempts>"

    def claim_all(self) -> None:
        """Connect every bus of this process that opens from now on to the in-memory server; those of `SyncCommandBus` too."""
        self._processes.claims.claim_all()

    @property
    def refused(self) -> list[str]:
        """Reasons why requests were refused: their bus was open before `claim_all`."""
        return self._processes.claims.refused

    def release(self) -> None:
        """Restore the clocks and the buses, without awaiting."""
        self._processes.release()
        self.clock.stop()

    # Sending.

    async def dispatch(self, command: Message[R], **options: Unpack[DispatchOptions]) -> Receipt[R]:
        """Dispatch a command; see `CommandBus.dispatch`."""
        bus = await self._processes.sender()
        return await bus.dispatch(command, **options)

    async def dispatch_raw(
        self,
        entity_type: str | None,
        entity_id: str | int | None,
        name: str,
        payload: Mapping[str, Any],
        *,
        version: int = 1,
        others: OtherEntities = (),
        **options: Unpack[DispatchOptions],
    ) -> Receipt[Any]:
        """Dispatch without the command's class, for example as an older version was sent; see `CommandBus.dispatch_raw`."""
        bus = await self._processes.sender()
        return await bus.dispatch_raw(entity_type, entity_id, name, payload, version=version, others=others, **options)

    async def dispatch_batch(self, commands: Iterable[Message[Any] | Envelope[Any] | RawEnvelope]) -> BatchResult:
        """Dispatch commands together; see `CommandBus.dispatch_batch`."""
        bus = await self._processes.sender()
        return await bus.dispatch_batch(commands)

    async def publish(self, *events: Event, **options: Unpack[PublishOptions]) -> Published:
        """Publish events to what the handlers of the test subscribe to; see `CommandBus.publish`."""
        bus = await self._processes.sender()
        return await bus.publish(*events, **options)

    async def call(self, command: Message[R], **options: Unpack[FollowedCallOptions]) -> R:
        """Call a command; see `CommandBus.call`. Retries, delays and leases pass in virtual time."""
        bus = await self._processes.sender()
        return await bus.call(command, **options)

    # Time.

    async def run_until_idle(self, *, timeout: float = 10.0, horizon: float = 7200.0) -> None:
        """Run until every accepted command is settled, delayed ones and retries too, or waits for somebody: paused, parked, or for a signal.

        Time leaps to the next timer of the bus. While a handler runs, time is real.

        Args:
            timeout: Real seconds.
            horizon: Virtual seconds.

        Raises:
            AssertionError: Not idle in time; the message says what still runs, or which entities wait, and for what.
        """
        await self._processes.start()
        end, far = _real() + timeout, self.clock.time() + horizon
        while True:
            await self._until_handlers_end(end)
            if not await self._processes.busy():
                return
            if _real() > end or self.clock.time() > far:
                late = f"not idle after {timeout:g} real or {horizon:g} virtual seconds"
                raise AssertionError(f"{late}: {await self._standing() or await (await self._processes.sender()).stats()}")
            await self._leap(far)

    def settle(self, *, timeout: float = 10.0, horizon: float = 7200.0) -> None:
        """Run until idle on a new event loop, for tests that are no coroutines; see `run_until_idle`.

        Raises:
            AssertionError: Not idle in time.
            RuntimeError: An event loop runs in this thread, because the test is a coroutine or for another reason.
        """

        async def work() -> None:
            try:
                await self.run_until_idle(timeout=timeout, horizon=horizon)
            finally:
                await self._drive(self._processes.close())

        if asyncio._get_running_loop() is not None:  # noqa: SLF001 - as `get_running_loop`, which raises
            raise RuntimeError("an event loop runs here: write `await command_bus.run_until_idle()`")
        asyncio.run(work())

    async def advance(self, seconds: float) -> None:
        """Advance virtual time by `seconds`. All timers due in between fire in order, those of handlers too."""
        await self._processes.start()
        target = self.clock.time() + seconds
        while self.clock.time() < target:
            await self._until_threads_end()
            await self._leap(target)
        await self._until_threads_end()

    # Crashes.

    def crash_after(
        self, point: CrashPoint | str, command: type[Message[Any]] | None = None, *, nth: int = 1, times: int = 1
    ) -> None:
        """Crash a worker at a step. Another worker replaces it, and recovers what it held.

        Args:
            point: `"claimed"`: the command is started, its handler has not run. `"handled"`: the handler has returned, the server does
                not know it yet. `"settled"`: the server has settled the command, the worker does not know it yet. In a durable handler also
                `"ran:charge"`: the function of the step `charge` has run, its result is not stored; `"step:charge"`: it is stored;
                `"call:Reserve"`: a call of `Reserve` is sent.
            command: Type of the command; by default any.
            nth: Number of the attempt, counted from now.
            times: Number of crashes in a row; an `at_least_once` command has `retry.attempts` attempts in all.
        """
        self._processes.crashes.append(Crash(point, command, nth, times))

    @property
    def crashed(self) -> int:
        """Number of workers that crashed."""
        return self._processes.crashed

    # Inside.

    async def _drive(self, work: Awaitable[R]) -> R:
        """Await an operation of the bus; time leaps over its waits."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await self._until_handlers_end(None, task.done)
                if not task.done():
                    await self._leap(None)
        except asyncio.CancelledError:
            task.cancel()
            raise
        return task.result()

    async def _standing(self) -> str:
        """Return which entities have work, and what each waits for."""
        page = await (await self._processes.sender()).entities.list()
        return "; ".join(f"{each.name} {each.suspension or f'is {each.state}'}" for each in page.entities)

    async def _leap(self, furthest: float | None) -> None:
        """Advance time to the next timer, at most to `furthest`."""
        due = self.clock.next_timer()
        next_ms = None if self._processes.recorder.running else self._processes.next_due_ms()
        if next_ms is not None and (ahead := (next_ms - self.clock.wall_ms()) / 1000) > _LONG:
            due = self.clock.time() + ahead - 1.0  # nothing happens until then: a month passes at once
        target = due if furthest is None or (due is not None and due < furthest) else furthest
        if target is not None:
            self.clock.leap(target)
        await asyncio.sleep(0)

    async def _serve(self, work: Awaitable[R]) -> R:
        """Await a call of the program: start workers, and let time leap over its waits."""
        await self._processes.start(stays=False)
        running = running_command()
        if running is None and PROCESS.get() is None:
            return await self._drive(work)
        if running is None:  # a worker compensates: what waits for that drives this, too
            return await work
        with self._processes.recorder.waiting(
            running.command_id
        ):  # a handler that calls: the test that waits for it drives this, too
            return await work

    async def _until_handlers_end(self, end: float | None, over: Callable[[], bool] = lambda: False) -> None:
        """Wait in real time until no task is ready and no handler runs."""
        await self.clock.quiet()
        while (running := self._processes.recorder.running) and not over():
            if end is not None and _real() > end:
                names = ", ".join(f"{note.context.name} of {note.context.entity}" for note in running)
                raise AssertionError(f"still running: {names}; a handler that sleeps is woken by `advance`")
            await asyncio.sleep(_TURN)
            await self.clock.quiet()

    async def _until_threads_end(self) -> None:
        """Wait until no task is ready and no handler runs in a thread. Handlers on the loop get a moment for work that is no timer."""
        await self.clock.quiet()
        while any(not self._processes.is_async(note.context.name) for note in self._processes.recorder.running):
            await asyncio.sleep(_TURN)
            await self.clock.quiet()
        if self._processes.recorder.running:
            await asyncio.sleep(_TURN)
            await self.clock.quiet()
