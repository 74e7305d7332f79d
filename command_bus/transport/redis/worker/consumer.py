"""`ConsumerLoop`: reads activations, never more than there are free slots, and runs each in a task of its own.

One reader and one blocking connection per shard. XREADGROUP wakes exactly one worker per activation and needs no polling. While there is
more to read, fetch.lua reads without waiting and starts lone commands. The COUNT is
per stream, so every reader takes its slots before it asks; `Slots` decides how readers share them, and which may block. A read that
blocks without slots may return activations when all slots are taken; they are given back at once. Fetches start small and double while
full ones follow one another: a worker that always asked for all that it could run would starve the others when its handlers are short.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

from command_bus.clock import mono
from command_bus.serialization.limits import printable
from command_bus.transport.ports.worker import Consumer, Steps
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.worker.lease_keeper import LeaseKeeper
from command_bus.transport.redis.worker.reader import Delivery, Reader
from command_bus.transport.redis.worker.step_batcher import KnownLimits, LineUse
from command_bus.transport.slots import Ask, Slots
from command_bus.transport.steps import Answer, GiveBack, Lease, StepFailed

_BROKEN_PAUSE = 1.0  # seconds
_UNTOUCHED = GiveBack(counts=False)
_log = logging.getLogger("command_bus.worker")


class ConsumerLoop(Consumer):
    """Feeds activations to `run` while slots are free.

    Args:
        connections: The connections of this process.
        keys: The shards.
        worker: This worker's name, which is that of its consumer.
        slots: How many mailboxes may be held.
        leases: Holds what was read.
        steps: Gives back what exceeds the slots.
        line: The lines of shards that are in use.
        limits: Whether limits are.
        run: Runs one mailbox under its lease until it releases it.
        wake: Called when something is due earlier than was known (a tick arrived).
        settle: Settles activations that are assigned to this worker, but that it does not hold.
    """

    def __init__(
        self,
        connections: Connections,
        keys: KeySpace,
        *,
        worker: str,
        slots: Slots,
        leases: LeaseKeeper,
        steps: Steps,
        line: LineUse | None = None,
        limits: KnownLimits | None = None,
        run: Callable[[Lease], Awaitable[None]],
        wake: Callable[[int], None],
        settle: Callable[[int, list[tuple[str, str]]], Awaitable[None]],
    ) -> None:
        self._connections, self._keys = connections, keys
        self._worker, self._slots, self.leases = worker, slots, leases
        self._steps, self._run, self._kick = steps, run, wake
        self.settle, self.line, self.limits = settle, line or LineUse(), limits or KnownLimits(keys.shards[0])
        self._readers: list[Reader] = []
        self._running: dict[asyncio.Task[None], str] = {}  # mailboxes
        self._giving_back: set[asyncio.Task[None]] = set()
        self._returning: set[tuple[int, str]] = set()

    async def start(self) -> None:
        """Begin to read; returns at once."""
        for shard in range(self._keys.count):
            self._readers.append(Reader(self, self._connections, self._keys.shards[shard], shard, self._worker))
        for reader in self._readers:
            reader.start()

    async def stop_reading(self) -> None:
        """Stop reading; give back activations that are delivered until then."""
        await asyncio.gather(*(reader.stop() for reader in self._readers))

    @property
    def most(self) -> int:
        """Most activations that a single read may fetch."""
        return self._slots.total

    @property
    def running(self) -> dict[asyncio.Task[None], str]:
        return dict(self._running)

    def cancel(self) -> None:
        """Cancel what runs. A step that was asked for still leaves."""
        for task in (*self._running, *self._giving_back):
            task.cancel()

    @property
    def silent_for(self) -> float:
        return max((reader.silent_for for reader in self._readers), default=math.inf)

    @property
    def reads(self) -> bool:
        return all(reader.reads for reader in self._readers)

    async def turn(self, shard: int, wanted: int, *, may_block: bool) -> Ask:
        """Wait until a reader may read, and for how many; `may_block` is whether the read may wait for work."""
        return await self._slots.ask(shard, wanted, may_block=may_block)

    def arrived(self, shard: int, ask: Ask, deliveries: list[Delivery], read_at: float | None) -> list[str]:
        """Run what was read; return the ids of ticks, which name no mailbox.

        Args:
            shard: The shard of the reader.
            ask: What it was allowed.
            deliveries: What it got.
            read_at: When the server was asked; None if it waited for work.
        """
        ticks = [each.activation for each in deliveries if each.mailbox is None]
        # An activation that is held here already is delivered again if the group was deleted: it goes on.
        activations = [each for each in deliveries if each.mailbox is not None and not self.knows(shard, each.activation)]
        room = self._slots.answered(shard, ask, len(deliveries), len(activations))
        for each in activations[:room]:
            self._hold(shard, each, read_at)
        self.hand_back(shard, activations[room:])
        if ticks:
            self._kick(shard)
        return ticks

    def failed(self, shard: int, ask: Ask) -> None:
        """Return the slots of a read that failed."""
        self._slots.answered(shard, ask, 0, 0)

    def knows(self, shard: int, activation: str) -> bool:
        """Return whether this activation is held here, or being given back."""
        return self.leases.holds(shard, activation) or (shard, activation) in self._returning

    def hand_back(self, shard: int, deliveries: list[Delivery]) -> list[str]:
        """Give back delivered activations, also those whose command was started with the delivery; return the ids of ticks."""
        for each in deliveries:
            if each.mailbox is not None:
                lease = Lease(shard, each.mailbox, each.activation, mono(), each.holder, each.attempt_id)
                name = f"command_bus.give_back {each.mailbox}"
                answer = self._steps.advance(lease, _UNTOUCHED)
                task = asyncio.get_running_loop().create_task(self._give_back(lease, answer), name=name)
                self._returning.add((shard, each.activation))
                self._giving_back.add(task)
                task.add_done_callback(self._finished)
        return [each.activation for each in deliveries if each.mailbox is None]

    def _hold(self, shard: int, delivery: Delivery, read_at: float | None) -> None:
        mailbox = delivery.mailbox or ""
        lease = self.leases.add(shard, mailbox, delivery.activation, holder=delivery.holder, read_at=read_at)
        lease.attempt_id, lease.begun, lease.has_place = delivery.attempt_id, delivery.started, delivery.has_place
        task = asyncio.get_running_loop().create_task(self._run_held(lease), name=f"command_bus.run {mailbox}")
        self._running[task] = mailbox
        task.add_done_callback(self._finished)

    async def _give_back(self, lease: Lease, asked: Awaitable[Answer]) -> None:
        try:
            answer = await asked
            while type(answer) is StepFailed:  # until its key is repaired, as for a command that runs
                await asyncio.sleep(_BROKEN_PAUSE)
                answer = await self._steps.advance(lease, _UNTOUCHED)
        finally:
            self._returning.discard((lease.shard, lease.activation))

    async def _run_held(self, lease: Lease) -> None:
        try:
            await self._run(lease)
        finally:
            self.leases.drop(lease)
            self._slots.give()

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        self._giving_back.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error(
                "%s failed unexpectedly; its entity is taken over when its lease ends", printable(task.get_name()), exc_info=error
            )
