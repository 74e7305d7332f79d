"""The transport without bus, worker or clock: single steps, for tests of what each does to Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from redis.asyncio import Redis

from command_bus.clock import mono
from command_bus.transport import records
from command_bus.transport.redis.admin.dead_letters import RedisDeadLetters
from command_bus.transport.redis.admin.entities import RedisEntities
from command_bus.transport.redis.admin.holds import RedisHolds
from command_bus.transport.redis.admin.mailboxes import RedisMailboxes
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.factory import ClientFactory
from command_bus.transport.redis.keys import GROUP, KeySpace
from command_bus.transport.redis.maintenance.waking import LimitWork
from command_bus.transport.redis.maintenance.worker_side import Maintenance
from command_bus.transport.redis.ready_stream import ensure_ready
from command_bus.transport.redis.scripts import ENQUEUE_ONE
from command_bus.transport.redis.sending.enqueue_line import QueuedCommands
from command_bus.transport.redis.sending.producer import StreamProducer
from command_bus.transport.redis.worker.lease_keeper import LeaseKeeper
from command_bus.transport.redis.worker.step_batcher import LineUse, StepBatcher
from command_bus.transport.retention import Retention
from command_bus.transport.steps import (
    Answer,
    DeadLetterStep,
    Done,
    GiveBack,
    Lease,
    Park,
    Removal,
    Retry,
    Settlement,
    Started,
    Step,
    Take,
)
from command_bus.transport.submissions import NO_DIGEST, Submission
from command_bus.worker.worker import Worker

__all__ = ["TAKE", "ManualWorker", "Record", "TransportHarness", "bury", "done", "left", "park", "removal", "transport_harness"]

TAKE = Take()
_FOREVER = mono() + 1e6


def removal(command: records.WaitingEntry, settlement: Settlement) -> Removal:
    """Return the removal of a command, which leaves the same whether it had started or not."""
    return Removal(command, settlement, settlement)


def left(command_id: str, *, inbox: str = "", mark_ms: int = 60_000) -> Settlement:
    """Return what settling a command stores."""
    return Settlement(
        command_id, b"d" + NO_DIGEST + b"outcome", mark_ms, inbox, b"reply of " + command_id.encode() if inbox else b""
    )


def done(command_id: str, follow: Any = "stay", **options: Any) -> Done:
    return Done(left(command_id, **options), follow)


def bury(command_id: str, follow: Any = "stay", **options: Any) -> DeadLetterStep:
    return DeadLetterStep(left(command_id, **options), b"why", command_id.encode(), follow)


def park(command_id: str, **options: Any) -> Park:
    return Park(left(command_id, **options), b"why", command_id.encode())


@dataclass(frozen=True)
class Record:
    """A mailbox's field in `active`."""

    state: str
    activation: str
    fence: str
    message: str
    attempt: int
    first_ms: int
    holder: str
    parts: tuple[str, ...] = ()


def side_of(worker: Worker) -> Any:
    """Return the transport's part of a running worker, for tests that make its faults happen."""
    assert worker._parts is not None
    return worker._parts.side


def held_by(worker: Worker) -> dict[str, Lease]:
    """Return the leases that a running worker holds in its first shard, by activation."""
    leases: dict[str, Lease] = side_of(worker).leases._held[0]
    return leases


def lose_lease(worker: Worker) -> None:
    """Take its only lease away from a running worker."""
    (lease,) = held_by(worker).values()
    side_of(worker).leases._lose(lease, "it is taken away")


def reader_of(worker: Worker) -> Any:
    """Return what reads the first shard of a running worker."""
    return side_of(worker).consumer._readers[0]


class ManualWorker:
    """A worker without a loop: reads activations and advances them when a test calls it."""

    def __init__(self, harness: TransportHarness, owner: str, connections: Connections | None = None) -> None:
        self.owner = owner
        self.steps = StepBatcher(connections or harness.connections, harness.keys, worker=owner, reply_ttl=60)
        self._harness = harness
        self._leases = 0

    @property
    def batches(self) -> Any:
        """What sends the steps of its shard."""
        return self.steps._shards[0]

    def lease(self, mailbox: str, activation: str) -> Lease:
        """Return a new lease for an activation."""
        self._leases += 1
        return Lease(0, mailbox, activation, _FOREVER, f"{self.owner}#{self._leases}")

    async def read(self, count: int = 100) -> list[Lease]:
        """Read activations that are delivered now; drop ticks."""
        client, shard = self._harness.client, self._harness.shard
        answer: Any = await client.xreadgroup(GROUP, self.owner, {shard.ready: ">"}, count=count)
        leases = []
        for entry, fields in answer[0][1] if answer else []:
            if b"e" in fields:
                leases.append(self.lease(fields[b"e"].decode(), entry.decode()))
            else:
                await client.xack(shard.ready, GROUP, entry)
                await client.xdel(shard.ready, entry)
        return leases

    async def read_one(self) -> Lease:
        (lease,) = await self.read()
        return lease

    async def start(self) -> tuple[Lease, Started]:
        """Read the only activation, and take it."""
        lease = await self.read_one()
        started = await self.do(lease, TAKE)
        assert isinstance(started, Started)
        return lease, started

    async def do(self, lease: Lease, step: Step) -> Answer:
        return await self.steps.advance(lease, step)

    async def again(self, lease: Lease, step: Step) -> tuple[Answer, Answer]:
        """Send the same step twice, as after a lost reply; return both answers."""
        copy = replace(lease, ahead=lease.ahead and [*lease.ahead])
        first = await self.steps.advance(copy, step)
        return first, await self.steps.advance(lease, step)

    async def claim(self, *activations: str) -> None:
        """Take over pending entries from any worker."""
        ids: list[Any] = list(activations)
        await self._harness.client.xclaim(self._harness.shard.ready, GROUP, self.owner, 0, ids)


class TransportHarness:
    """One shard of a separate namespace, with the parts of the transport."""

    def __init__(self, clients: ClientFactory, namespace: str, connections: Connections | None = None) -> None:
        self.keys = KeySpace(namespace, 1)
        self.shard = self.keys.shards[0]
        self.connections = connections or Connections(clients).at(self.shard.prefix)
        self.producer = StreamProducer(
            self.connections, self.keys, max_total_depth=10_000, max_pending=10_000, retention=Retention(600_000, 60_000)
        )
        self.dead_letters = RedisDeadLetters(self.connections, self.keys, patience=5)
        entities = RedisEntities(self.connections, self.keys, patience=5)
        self.mailboxes = RedisMailboxes(self.connections, self.keys, patience=5, reply_ttl=60, entities=entities)
        self.scopes = RedisHolds(self.connections, self.keys, patience=5)

    @property
    def client(self) -> Redis:
        return self.connections.commands

    def worker(self, owner: str = "w1") -> ManualWorker:
        return ManualWorker(self, owner)

    def recovery(
        self, worker: ManualWorker, step: Step | None = None, lease: float = 30.0, limits: LimitWork | None = None
    ) -> Maintenance:
        """Return a recovery that decides the same for every interrupted command."""
        decision = step or GiveBack(counts=True)
        leases = LeaseKeeper(self.connections, self.keys, worker=worker.owner, lease=lease, heartbeat=lambda _: b"")
        return Maintenance(self.connections, self.keys, leases, worker.steps, lambda *_: decision, line=LineUse(), limits=limits)

    @property
    def producer_connections(self) -> Connections:
        """The connections of the producer's shard."""
        return self.producer._lines[0]._connections

    def enqueue_request(self, submissions: Sequence[Submission], number: int) -> tuple[list[str], list[Any]]:
        """Return keys and arguments of an enqueue step as the producer sends it, with a sequence number."""
        batch = self.producer._lines[0]._batch([QueuedCommands(submissions, asyncio.Future(), mono() + 5)])
        return batch.keys, [number, *batch.args[1:]]

    def single_request(self, submission: Submission, number: int) -> tuple[list[str], list[Any]]:
        """Return keys and arguments of the step for one command."""
        batch = self.producer._lines[0]._batch([QueuedCommands((submission,), asyncio.Future(), mono() + 5, alone=True)])
        assert batch.script is ENQUEUE_ONE
        return batch.keys, [number, *batch.args[1:]]

    async def put(self, mailbox: str, *command_ids: str, delay_ms: int = 0, max_depth: int = 1000) -> list[Any]:
        submissions = [Submission(mailbox, name, name.encode(), NO_DIGEST, max_depth, delay_ms) for name in command_ids]
        return list(await self.producer.enqueue_many(submissions, 5))

    async def promote(self, worker: ManualWorker) -> None:
        """Promote due entries."""
        await self.recovery(worker).due[0].promote()

    async def record(self, mailbox: str) -> Record | None:
        value: Any = await self.client.hget(self.shard.active, mailbox)  # type: ignore[misc]
        if value is None:
            return None
        state, activation, fence, message, attempt, first, holder, *parts = value.decode().split("|")
        further = tuple(part for part in parts if not part.startswith("started="))  # of its own tests: `test_unique_steps.py`
        return Record(state, activation, fence, message, int(attempt), int(first), holder, further)

    async def activations(self) -> list[str]:
        """Return the mailboxes in the ready stream, oldest first, without ticks."""
        entries: Any = await self.client.xrange(self.shard.ready)
        return [fields[b"e"].decode() for _, fields in entries if b"e" in fields]

    async def ticks(self) -> int:
        entries: Any = await self.client.xrange(self.shard.ready)
        return sum(b"tick" in fields for _, fields in entries)

    async def waiting(self, mailbox: str) -> list[bytes]:
        """Return the envelopes that stand in a mailbox."""
        alone: Any = await self.client.hget(self.shard.lone, mailbox)  # type: ignore[misc]
        entries: Any = await self.client.xrange(self.shard.mailbox(mailbox))
        return [fields.get(b"e", alone) for _, fields in entries] or [alone] * (alone is not None)

    async def counters(self) -> dict[str, int]:
        values: Any = await self.client.hgetall(self.shard.stats)  # type: ignore[misc]
        return {name.decode(): int(value) for name, value in values.items() if name != b"incarnation"}

    async def everything(self) -> dict[str, Any]:
        """Return all keys of the namespace with their contents, and pending entries with their consumers; without times."""
        found: dict[str, Any] = {}
        readers: dict[bytes, Any] = {
            b"string": self.client.get,
            b"hash": self.client.hgetall,
            b"stream": self.client.xrange,
            b"zset": lambda key: self.client.zrange(key, 0, -1, withscores=True),
            b"list": lambda key: self.client.lrange(key, 0, -1),
        }
        async for key in self.client.scan_iter(f"{{{self.keys.namespace}:*"):
            found[key.decode()] = await readers[await self.client.type(key)](key)
        pending: Any = await self.client.xpending_range(self.shard.ready, GROUP, min="-", max="+", count=1000)
        found["pending"] = [(item["message_id"], item["consumer"]) for item in pending]
        return found

    async def nothing_of(self, *mailboxes: str) -> bool:
        """Return whether no key and no field of these mailboxes is left."""
        for mailbox in mailboxes:
            if await self.client.exists(self.shard.mailbox(mailbox)) or await self.record(mailbox) is not None:
                return False
            if await self.client.hexists(self.shard.lone, mailbox):  # type: ignore[misc]
                return False
        return not set(mailboxes) & set(await self.activations())

    async def retry(self, worker: ManualWorker, lease: Lease, delay_ms: int = 0) -> Answer:
        return await worker.do(lease, Retry(delay_ms))


@asynccontextmanager
async def transport_harness(
    clients: ClientFactory, namespace: str, connections: Connections | None = None
) -> AsyncIterator[TransportHarness]:
    """Open a namespace with its group; close it at the end."""
    harness = TransportHarness(clients, namespace, connections)
    await ensure_ready(harness.connections, harness.shard)
    try:
        yield harness
    finally:
        await harness.producer.close()
        await harness.connections.close()
