"""`RedisWorkerSide`: the parts of one worker, made and ended together; `Maintenance`: what it does besides running commands."""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future
from collections.abc import Callable
from functools import partial

from command_bus.errors import CommandBusError
from command_bus.tasks import all_of, end_tasks
from command_bus.transport.ports.schedules import DueSchedules
from command_bus.transport.ports.worker import Begin, Decide, Run, Steps, WorkerSideOptions
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.durable.side_records import RedisSideRecords
from command_bus.transport.redis.incarnations import Incarnations
from command_bus.transport.redis.keys import GROUP, KeySpace
from command_bus.transport.redis.limits.asking import LimitAsks
from command_bus.transport.redis.maintenance.due_work import DueJob, DueWork, PauseJob, ScheduleSweep, fire_schedules
from command_bus.transport.redis.maintenance.periodic import Beat, Periodic
from command_bus.transport.redis.maintenance.recovery import PendingRecovery
from command_bus.transport.redis.maintenance.relay import RelayJob
from command_bus.transport.redis.maintenance.suspended_work import SuspendedWork
from command_bus.transport.redis.maintenance.upkeep import ALL_LETTERS, LetterLimits, Upkeep
from command_bus.transport.redis.maintenance.waking import LimitWork
from command_bus.transport.redis.scripts import REMOVE_WORKER
from command_bus.transport.redis.worker.consumer import ConsumerLoop
from command_bus.transport.redis.worker.lease_keeper import LeaseKeeper
from command_bus.transport.redis.worker.reads import StateReads
from command_bus.transport.redis.worker.step_batcher import KnownLimits, LineUse, StepBatcher
from command_bus.transport.slots import Slots
from command_bus.transport.steps import GIVE_BACK_UNCOUNTED, Answer, Cancellation, Lease, LimitQuestion, Refused, Take

_log = logging.getLogger("command_bus.worker")
_CHECK, _CHECKS = 1.0, 4
"""How often expired leases are looked for: at most so many seconds apart, and so many times per lease, so that a short one is taken over
at most a third of its length late."""
_LOOKS = 64
"""Shards that are checked in a second, for expired leases and for due work. With more shards each is checked less often, because checks
cost an idle worker time; but four times per lease at least."""
_SIGN_OFF = 1.0  # seconds
_PATIENCE = 2.0  # seconds, for what is read once


class Maintenance:
    """All that a worker does besides running commands, as jobs for each shard.

    Args:
        connections: Clients that this process shares.
        keys: The shards.
        leases: What this worker holds.
        steps: Carries the decisions out.
        decide: Returns the step for an interrupted command, given the reason; None leaves it to another worker.
        line: Told which shards' lines are in use.
        limits: Wakes what waits for limits; None leaves that to others.
        letters: How long and how many dead letters are kept in a shard.
        schedules: Fires schedules; None: other workers do.
        ended: Called with a lease that was taken over, in case limits were asked under it.
        over: Returns whether a mailbox's state is kept no longer at a time; None: all are kept for ever.
    """

    def __init__(
        self,
        connections: Connections,
        keys: KeySpace,
        leases: LeaseKeeper,
        steps: Steps,
        decide: Decide,
        *,
        line: LineUse,
        limits: LimitWork | None = None,
        letters: LetterLimits = ALL_LETTERS,
        schedules: DueSchedules | None = None,
        ended: Callable[[Lease], None] = lambda _: None,
        over: Callable[[bytes, bytes, int], bool] | None = None,
    ) -> None:
        every = _CHECK * max(1.0, keys.count / _LOOKS)
        beat, often = Beat(every), Beat(min(every, leases.lease / _CHECKS))
        self.watches: list[PendingRecovery] = []
        self.due: list[DueWork] = []
        self.upkeep: list[Upkeep] = []
        self._others: list[Periodic] = [] if limits is None else [limits]
        for number, shard in enumerate(keys.shards):
            place = connections, keys, shard
            jobs: dict[str, DueJob] = {"o": RelayJob(*place).perform, "p": PauseJob(*place).perform}
            if schedules is not None:
                jobs["s"] = partial(fire_schedules, schedules)
                self._others.append(ScheduleSweep(*place, schedules))
            if limits is not None and number == 0:
                jobs["l"] = limits.perform
            limited = None if limits is None else partial(limits.wake_forgotten, number)
            self.watches.append(PendingRecovery(*place, number, often, leases, steps, decide, ended))
            self.due.append(DueWork(*place, beat, jobs, line))
            self.upkeep.append(Upkeep(*place, leases.worker, leases.lease, letters, limited, over))
            self._others.append(SuspendedWork(*place))
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin with all jobs; returns at once."""
        self._tasks = [job.start() for job in (*self.watches, *self.due, *self.upkeep, *self._others)]

    def wake(self, shard: int) -> None:
        """Check due times again now."""
        self.due[shard].wake()

    async def settle(self, shard: int, activations: list[tuple[str, str]], *, ours: bool = False) -> None:
        """Settle activations (id, mailbox) that no task holds; with `ours`, none whose holder was another worker, which may live."""
        watch = self.watches[shard]
        await asyncio.gather(*(watch.settle(activation, mailbox, ours=ours) for activation, mailbox in activations))

    @property
    def recovered(self) -> int:
        """Leases taken over so far."""
        return sum(watch.recovered for watch in self.watches)

    async def stop(self) -> None:
        """End all jobs."""
        await end_tasks(self._tasks)


class RedisWorkerSide:
    """Implements `WorkerSide`.

    Args:
        connections: Clients of this process. Those with an attribute `lease_keeper` bring the class that keeps their leases: their time is
            not this process's.
        keys: The shards.
        options: What the worker was given.
    """

    consumer: ConsumerLoop

    def __init__(self, connections: Connections, keys: KeySpace, options: WorkerSideOptions) -> None:
        self._connections = connections
        self._keys = keys
        self._options, settings = options, options.settings
        self._line, self._known_limits = LineUse(), KnownLimits(keys.shards[0])
        lent, told = settings.max_waiting, options.drained
        self.slots = Slots(options.slots, keys.count, lent, is_stuck=options.is_stuck, drained=told)
        self.steps = StepBatcher(
            connections,
            keys,
            worker=options.name,
            reply_ttl=settings.reply_ttl,
            line=self._line,
            limits=self._known_limits,
            max_depth=settings.depth_of,
        )
        self.side_records = RedisSideRecords(connections, keys)
        self._states = [StateReads(connections.at(shard.prefix), shard) for shard in keys.shards]
        self._incarnations = Incarnations(connections, keys, patience=_PATIENCE)
        self._asks = LimitAsks(connections, keys, self._incarnations)
        keeper: type[LeaseKeeper] = getattr(connections.factory, "lease_keeper", LeaseKeeper)
        self.leases = keeper(
            connections,
            keys,
            worker=options.name,
            lease=settings.lease,
            heartbeat=options.heartbeat,
            forgotten=options.forgotten,
        )

    @property
    def recovered(self) -> int:
        return self._maintenance.recovered

    def start(self, run: Run, begin: Begin, decide: Decide) -> None:
        connections, keys, settings = self._connections, self._keys, self._options.settings
        self._maintenance = Maintenance(
            connections,
            keys,
            self.leases,
            self.steps,
            decide,
            line=self._line,
            limits=LimitWork(connections, keys, keys.shards[0], self._incarnations, settings.lease),
            letters=LetterLimits.of(settings, keys.count),
            schedules=self._options.schedules,
            ended=self.over,
            over=self._options.state_over,
        )
        self.consumer = ConsumerLoop(
            connections,
            keys,
            self._options.name,
            self.slots,
            self.leases,
            self.steps,
            self._line,
            self._known_limits,
            run,
            begin,
            wake=self._maintenance.wake,
            settle=partial(self._maintenance.settle, ours=True),
        )
        self.leases.start()
        self._maintenance.start()
        self.consumer.start()

    def read_state(self, lease: Lease) -> Future[bytes]:
        return self._states[lease.shard].read(lease.mailbox)

    def cancel_all(self, why: Cancellation) -> None:
        self.leases.cancel_all(why)

    async def stop(self, patience: float) -> None:
        await self._maintenance.stop()
        self.consumer.cancel()
        await self.side_records.close(patience)
        await all_of(*(each.close(patience) for each in self._states))
        await self.steps.close(patience)
        await self._asks.close(patience)
        await self.leases.stop()
        await self._sign_off()

    async def admit(self, lease: Lease, asked: LimitQuestion, keyed: str, *, must_yield: bool) -> Answer:
        lease.is_limited = True
        may_start = await self._asks.ask(lease, asked.message, keyed, must_yield=must_yield)
        if may_start is None:  # the first shard has lost its data: it is read again, and asked for again
            return await self.steps.advance(lease, GIVE_BACK_UNCOUNTED)
        return await self.steps.advance(lease, Take(asked.message) if may_start else Refused())

    def over(self, lease: Lease, *, stuck: bool = False) -> None:
        self._asks.over(lease.mailbox, lease.activation)
        if stuck:
            self._asks.gone(lease.mailbox)

    async def _sign_off(self) -> None:
        """Remove this worker from the server; if something is still pending, the leases end by themselves."""
        worker = self._options.name
        try:
            async with asyncio.timeout(_SIGN_OFF):
                for shard in self._keys.shards:
                    await self._connections.at(shard.prefix).run(REMOVE_WORKER, [shard.ready, shard.workers], [GROUP, worker])
        except (CommandBusError, TimeoutError) as error:
            _log.warning("worker %s could not sign off: %s", worker, error)
