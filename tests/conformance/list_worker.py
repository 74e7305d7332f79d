"""The worker's side of the transport in lists and dictionaries."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

from command_bus.transport.ports.worker import Begin, Decide, Run, WorkerSideOptions
from command_bus.transport.slots import Slots
from command_bus.transport.steps import (
    Answer,
    Cancellation,
    DeadLetterStep,
    Done,
    GiveBack,
    Lease,
    LeaseLost,
    LimitQuestion,
    Park,
    Released,
    Retry,
    Step,
    Suspend,
    Take,
)
from tests.conformance.list_durable import ListSideRecords, resume, suspend
from tests.conformance.list_server import Box, ListLine, ListServer, wall_ms

__all__ = ["ListWorkerSide"]


_TICK = 0.02  # seconds between looks at what is due and whose lease is over


_COUNTED = {"completed": None, "cancelled": None, "rejected": "rejected", "expired": "expired"}


class ListSteps:
    """Implements `Steps`."""

    def __init__(self, server: ListServer, line: ListLine) -> None:
        self._server = server
        self._line = line

    async def behind(self, lease: Lease, message: str, count: int) -> list[tuple[str, bytes]]:
        return []  # so each command runs alone

    async def advance(self, lease: Lease, step: Step) -> Answer:
        await self._line.open.wait()  # repeated until there is an answer
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
            case Done(left, follow, status, state):
                if state is not None:
                    server.states[lease.mailbox] = state
                if (counted := _COUNTED[status]) is not None:
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
            case Suspend():
                return suspend(server, lease, step)
            case GiveBack(counts):
                box.attempt -= not counts
                server.wake(lease.mailbox)
                return Released("yield")
        raise AssertionError(step)


class ListLeases:
    """Implements `Leases`."""

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
        self._tasks: dict[asyncio.Future[Any], str] = {}
        self._reader: asyncio.Task[None] | None = None
        self.reads = True

    @property
    def running(self) -> dict[asyncio.Future[Any], str]:
        return dict(self._tasks)

    def start(self) -> None:
        self._reader = asyncio.create_task(self._read(), name="lists.read")

    async def stop_reading(self) -> None:
        self.reads = False
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        slots, server = self._side.slots, self._side.server
        while True:
            ask = await slots.ask(0, 1)
            try:
                while not server.ready or not self._side.line.open.is_set():
                    await self._side.line.open.wait()
                    if not server.ready:
                        server.work.clear()
                        await server.work.wait()
            except asyncio.CancelledError:
                slots.answered(0, ask, 0, 0)
                raise
            activation, mailbox = server.ready.popitem(last=False)
            slots.answered(0, ask, 1, 1)
            lease = self._side.lease(mailbox, activation)
            task = asyncio.create_task(self._hold(lease), name=f"lists.run {mailbox}")
            self._tasks[task] = mailbox
            task.add_done_callback(self._tasks.pop)

    async def _hold(self, lease: Lease) -> None:
        try:
            await self._run(lease)
        finally:
            self._side.leases.held.pop(lease.activation, None)
            self._side.slots.give()


class ListWorkerSide:
    """Implements `WorkerSide`."""

    consumer: ListConsumer
    recovered = 0

    def __init__(self, server: ListServer, options: WorkerSideOptions, line: ListLine) -> None:
        self.server = server
        self.line = line
        self.options = options
        self.slots = Slots(options.slots, 1, options.settings.max_waiting, is_stuck=options.is_stuck)
        self.steps = ListSteps(server, line)
        self.side_records = ListSideRecords(server, line)
        self.leases = ListLeases()
        self._numbers = itertools.count(1)
        self._clock: asyncio.Task[None] | None = None
        self._decide: Decide

    async def read_state(self, lease: Lease) -> bytes:
        return self.server.states.get(lease.mailbox, b"")

    def lease(self, mailbox: str, activation: str) -> Lease:
        """Hold a mailbox whose activation was taken."""
        box = self.server.boxes[mailbox]
        box.state, box.holder, box.renewed = "held", f"{self.options.name}#{next(self._numbers)}", time.monotonic()
        lease = Lease(0, mailbox, activation, box.renewed + self.options.settings.lease, box.holder)
        self.leases.held[activation] = lease
        return lease

    def start(self, run: Run, begin: Begin, decide: Decide) -> None:
        del begin  # it starts nothing with a delivery
        self.consumer = ListConsumer(self, run)
        self._decide = decide
        self._clock = asyncio.create_task(self._tick(), name="lists.clock")
        self.consumer.start()

    async def admit(self, lease: Lease, asked: LimitQuestion, keyed: str, *, must_yield: bool) -> Answer:
        raise AssertionError("nothing is asked for here")

    def over(self, lease: Lease, *, stuck: bool = False) -> None:
        pass

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

    def _renew(self) -> None:
        now = time.monotonic()
        for lease in self.leases.held.values():
            box = self.server.boxes.get(lease.mailbox)
            if box is not None and box.activation == lease.activation:
                box.renewed, lease.deadline = now, now + self.options.settings.lease
            elif lease.cancel is not None and not lease.lost:
                lease.lost = True
                self.leases.lost += 1
                lease.cancel("another worker took the lease over")

    async def _recover(self) -> None:
        """Settle what lost workers have started, and make untouched mailboxes ready for any worker."""
        expired = time.monotonic() - self.options.settings.lease
        for name, box in list(self.server.boxes.items()):
            if box.state != "held" or box.renewed > expired:
                continue
            lease = Lease(0, name, box.activation, time.monotonic() + self.options.settings.lease, box.holder, box.attempt_id)
            if not box.attempt_id:
                self.server.wake(name)
                continue
            step = self._decide(self.server.started(name), "its worker was lost")
            if step is not None:
                self.recovered += 1
                if isinstance(step, Done | DeadLetterStep):
                    step.follow = "leave"  # no task here would run the next command
                await self.steps.advance(lease, step)

    async def _tick(self) -> None:
        """Renew leases, take over those of lost workers, wake what has become due, and show that this worker lives."""
        server = self.server
        while True:
            await self.line.open.wait()
            self._renew()
            await self._recover()
            server.workers[self.options.name] = self.options.heartbeat(wall_ms())
            for each in sorted(
                [each for each in server.delayed.values() if each.due_ms <= wall_ms()], key=lambda each: each.due_ms
            ):
                del server.delayed[each.command_id]
                server.put(each.mailbox, each.command_id, each.envelope)
            for name, box in list(server.boxes.items()):
                if box.state == "waiting" and box.due <= time.monotonic():
                    server.wake(name)
                if box.state == "suspended" and box.due <= time.monotonic():
                    resume(server, name)
            await asyncio.sleep(_TICK)
