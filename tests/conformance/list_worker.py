"""The worker's side of the transport in lists and dictionaries."""

from __future__ import annotations

import asyncio
import itertools
import time

from command_bus.transport.interfaces import Decide, Run, WorkerSideOptions
from command_bus.transport.slots import Slots
from command_bus.transport.steps import (
    Answer,
    Cancellation,
    DeadLetterStep,
    Done,
    GiveBack,
    Lease,
    LeaseLost,
    Park,
    Released,
    Retry,
    Step,
    Take,
)
from tests.conformance.list_server import Box, ListServer, wall_ms

__all__ = ["ListWorkerSide"]


_TICK = 0.02  # seconds between looks at what is due and whose lease is over


_COUNTED = {"done": None, "deny": "rejected", "lapse": "expired"}


class ListSteps:
    """Implements `Steps`."""

    def __init__(self, server: ListServer) -> None:
        self._server = server

    async def advance(self, lease: Lease, step: Step) -> Answer:
        server, box = self._server, self._server.boxes.get(lease.mailbox)
        if box is None or box.activation != lease.activation:
            return LeaseLost()
        if isinstance(step, Take):
            return server.start(lease)
        if isinstance(step, GiveBack) and not lease.attempt_id:
            server.wake(lease.mailbox)
            return Released("yield")
        if box.holder != lease.holder or box.attempt_id != lease.attempt_id:
            return LeaseLost()
        return self._carry_out(lease, box, step)

    def _carry_out(self, lease: Lease, box: Box, step: Step) -> Answer:
        server = self._server
        match step:
            case Done(left, follow, verb):
                if (counted := _COUNTED[verb]) is not None:
                    server.counters[counted] += 1
                return server.settled(lease, left, follow)
            case DeadLetterStep(left, record, raw, follow):
                server.bury(lease.mailbox, record, raw, parked=False)
                server.counters["buried"] += 1
                return server.settled(lease, left, follow)
            case Park(left, record, raw):
                box.letter = server.bury(lease.mailbox, record, raw, parked=True)
                server.leave(left)
                server.wake(lease.mailbox)
                return Released("stop")
            case Retry(delay_ms, counts):
                server.counters["retried"] += counts
                box.attempt -= not counts
                box.state, box.activation, box.due = "waiting", "", time.monotonic() + delay_ms / 1000
                return Released("wait")
            case GiveBack(counts):
                box.attempt -= not counts
                server.wake(lease.mailbox)
                return Released("yield")
        raise AssertionError(step)


class ListLeases:
    """Implements `Leases`. All live in one process, so nothing has to be renewed: a lease ends with its worker."""

    lost, longest, overdue = 0, 0.0, 0.0

    def __init__(self) -> None:
        self.held: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self.held)


class ListConsumer:
    """Implements `Consumer`."""

    silent_for = 0.0

    def __init__(self, side: ListWorkerSide, run: Run) -> None:
        self._side = side
        self._run = run
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._reader: asyncio.Task[None] | None = None
        self.reads = True

    @property
    def running(self) -> dict[asyncio.Task[None], str]:
        return dict(self._tasks)

    async def start(self) -> None:
        self._reader = asyncio.create_task(self._read(), name="lists.read")

    async def stop_reading(self) -> None:
        self.reads = False
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        places, server = self._side.places, self._side.server
        while True:
            ask = await places.ask(0, 1)
            try:
                while not server.ready:
                    server.work.clear()
                    await server.work.wait()
            except asyncio.CancelledError:
                places.answered(0, ask, 0, 0)
                raise
            activation, mailbox = server.ready.popitem(last=False)
            places.answered(0, ask, 1, 1)
            lease = self._side.lease(mailbox, activation)
            task = asyncio.create_task(self._hold(lease), name=f"lists.run {mailbox}")
            self._tasks[task] = mailbox
            task.add_done_callback(self._tasks.pop)

    async def _hold(self, lease: Lease) -> None:
        try:
            await self._run(lease)
        finally:
            self._side.leases.held.pop(lease.activation, None)
            self._side.places.give()


class ListWorkerSide:
    """Implements `WorkerSide`."""

    consumer: ListConsumer
    recovered = 0

    def __init__(self, server: ListServer, options: WorkerSideOptions) -> None:
        self.server = server
        self.options = options
        self.places = Slots(options.places, 1, options.max_lent, is_stuck=options.is_stuck)
        self.steps = ListSteps(server)
        self.leases = ListLeases()
        self._numbers = itertools.count(1)
        self._clock: asyncio.Task[None] | None = None

    def lease(self, mailbox: str, activation: str) -> Lease:
        """Hold a mailbox whose activation was taken."""
        box = self.server.boxes[mailbox]
        box.state, box.holder = "held", f"{self.options.name}#{next(self._numbers)}"
        lease = Lease(0, mailbox, activation, time.monotonic() + 3600.0, box.holder)
        self.leases.held[activation] = lease
        return lease

    def begin(self, run: Run, decide: Decide) -> None:
        self.consumer = ListConsumer(self, run)

    async def start(self) -> None:
        self._clock = asyncio.create_task(self._tick(), name="lists.clock")
        await self.consumer.start()

    def cancel_all(self, why: Cancellation) -> None:
        for lease in self.leases.held.values():
            if lease.cancel is not None:
                lease.cancel(why)

    async def stop(self, patience: float) -> None:
        if self._clock is not None:
            self._clock.cancel()
        for task in self.consumer.running:
            task.cancel()
        self.server.workers.pop(self.options.name, None)

    async def _tick(self) -> None:
        """Wake what has become due, and show that this worker lives."""
        server = self.server
        while True:
            server.workers[self.options.name] = self.options.heartbeat(wall_ms())
            for each in [each for each in server.delayed.values() if each.due_ms <= wall_ms()]:
                del server.delayed[each.command_id]
                server.put(each.mailbox, each.command_id, each.envelope)
            for name, box in list(server.boxes.items()):
                if box.state == "waiting" and box.due <= time.monotonic():
                    server.wake(name)
            await asyncio.sleep(_TICK)
