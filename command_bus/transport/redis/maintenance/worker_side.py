"""`RedisWorkerSide`: the parts of one worker, made and ended together."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from command_bus.errors import CommandBusError
from command_bus.transport.ports.worker import Decide, Run, WorkerSideOptions
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.durable.side_records import RedisSideRecords
from command_bus.transport.redis.incarnations import Incarnations
from command_bus.transport.redis.keys import GROUP, KeySpace
from command_bus.transport.redis.limits.asking import LimitAsks
from command_bus.transport.redis.maintenance.letter_pruning import LetterLimits
from command_bus.transport.redis.maintenance.recovery import PendingRecovery
from command_bus.transport.redis.maintenance.waking import LimitWork
from command_bus.transport.redis.scripts import REMOVE_WORKER
from command_bus.transport.redis.worker.consumer import ConsumerLoop
from command_bus.transport.redis.worker.lease_keeper import LeaseKeeper
from command_bus.transport.redis.worker.step_batcher import KnownLimits, LineUse, StepBatcher
from command_bus.transport.slots import Slots
from command_bus.transport.steps import Answer, Cancellation, GiveBack, Lease, LimitQuestion, Refused, Take

_log = logging.getLogger("command_bus.worker")
_SIGN_OFF = 1.0  # seconds
_PATIENCE = 2.0  # seconds, for what is read once


class RedisWorkerSide:
    """Implements `WorkerSide`.

    Args:
        connections: The connections of this process. Clients with an attribute `lease_keeper` bring the class that keeps their leases: their time is
            not this process's.
        keys: The shards.
        options: The options of the worker.
    """

    consumer: ConsumerLoop

    def __init__(self, connections: Connections, keys: KeySpace, options: WorkerSideOptions) -> None:
        self._connections = connections
        self._keys = keys
        self._options, settings = options, options.settings
        self._line, self._known_limits = LineUse(), KnownLimits(keys.shards[0])
        self.slots = Slots(options.slots, keys.count, settings.max_waiting, is_stuck=options.is_stuck)
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
        incarnations = Incarnations(connections, keys, patience=_PATIENCE)
        self._asks = LimitAsks(connections, keys, incarnations)
        self._limit_work = LimitWork(connections, keys, incarnations, lease=settings.lease)
        keeper: type[LeaseKeeper] = getattr(connections.factory, "lease_keeper", LeaseKeeper)
        self.leases = keeper(
            connections.factory,
            keys,
            worker=options.name,
            lease=settings.lease,
            heartbeat=options.heartbeat,
            outages=[connections.at(shard.prefix).outage for shard in keys.shards],
            forgotten=options.forgotten,
        )

    @property
    def recovered(self) -> int:
        return self._recovery.recovered

    def start(self, run: Run, decide: Decide) -> None:
        options, settings = self._options, self._options.settings
        self._recovery = PendingRecovery(
            self._connections,
            self._keys,
            worker=options.name,
            lease=settings.lease,
            steps=self.steps,
            decide=decide,
            leases=self.leases,
            line=self._line,
            letters=_letter_limits(options, self._keys.count),
            schedules=options.schedules,
            limits=self._limit_work,
            ended=self.over,
        )
        self.consumer = ConsumerLoop(
            self._connections,
            self._keys,
            worker=options.name,
            slots=self.slots,
            leases=self.leases,
            steps=self.steps,
            run=run,
            line=self._line,
            limits=self._known_limits,
            wake=self._recovery.wake,
            settle=partial(self._recovery.settle, ours=True),
        )
        self.leases.start()
        self._recovery.start()
        self.consumer.start()

    def cancel_all(self, why: Cancellation) -> None:
        self.leases.cancel_all(why)

    async def stop(self, patience: float) -> None:
        await self._recovery.stop()
        self.consumer.cancel()
        await self.side_records.close(patience)
        await self.steps.close(patience)
        await self._asks.close(patience)
        await self.leases.stop()
        await self._sign_off()

    async def admit(self, lease: Lease, asked: LimitQuestion, keyed: str, *, must_yield: bool) -> Answer:
        lease.is_limited = True
        may_start = await self._asks.ask(lease, asked.message, keyed, must_yield=must_yield)
        if may_start is None:  # the first shard has lost its data: it is read again, and asked for again
            return await self.steps.advance(lease, GiveBack(counts=False))
        return await self.steps.advance(lease, Take(asked.message) if may_start else Refused())

    def over(self, lease: Lease, *, stuck: bool = False) -> None:
        """Notify it once: if this is lost, a comparison finds it."""
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


def _letter_limits(options: WorkerSideOptions, shards: int) -> LetterLimits:
    """Return the limits of a shard's dead letters: its part of their number, rounded up."""
    ttl, most = options.settings.dead_letter_ttl, options.settings.max_dead_letters
    return LetterLimits(None if ttl is None else max(1, int(ttl * 1000)), None if most is None else -(-most // shards))
