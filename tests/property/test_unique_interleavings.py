"""Random interleavings of commands with unique keys, over a server in this process, beside a model of who holds each key.

Producers send with every mode, several at once, and requests and replies are lost. A worker starts, settles, retries, gives back, loses its
lease; an operator cancels, purges and replays. After every step: the line is that of the model, no two commands wait for one key, and the
keys that are stored are those of the model. At the end: after the last trigger of a key, one of its commands has run.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal
from unittest.mock import patch

import pytest

from command_bus.messages.unique import Unique
from command_bus.serialization.envelope import WireEnvelope, pack_envelope, unpack_envelope
from command_bus.transport.redis.connection.outage_log import Backoff
from command_bus.transport.redis.keys import delayed_id
from command_bus.transport.redis.maintenance.upkeep import sweep_page
from command_bus.transport.redis.memory import MemoryClients
from command_bus.transport.redis.ready_stream import ensure_ready
from command_bus.transport.steps import DeadLetterStep, Done, GiveBack, Lease, Retry, Settlement, Started, Step
from command_bus.transport.submissions import NO_DIGEST, Submission
from command_bus.transport.unique_keys import UniqueSubmission, stander_of, unique_key
from tests.conformance.harness import TAKE, TransportHarness, removal
from tests.property.lossy_connections import FATES, LossyConnections
from tests.selection import quick

BOX = "box:a"
MODES: dict[str, Unique] = {
    "first": Unique("x"),
    "until started": Unique("x", until="started"),
    "latest": Unique("x", wins="latest"),
}


@dataclass
class Trigger:
    """One dispatch.

    Attributes:
        place: Among the events of the run, so that runs after it can be told.
        stands: The command that has to run after it: itself, or the one that it was folded into; None if it may be lost.
    """

    place: int
    key: str | None
    stands: str | None


@dataclass
class Model:
    """The model: what must be true."""

    line: list[str] = field(default_factory=list)
    delayed: list[str] = field(default_factory=list)
    standers: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str | None] = field(default_factory=dict)
    head_started: bool = False
    running: bool = False
    """Whether a worker holds it."""

    def state(self, key: str) -> Literal["gone", "waits", "started"]:
        command = self.standers.get(key)
        if command is None:
            return "gone"
        return "started" if self.line and self.line[0] == command and self.head_started else "waits"

    def dispatch(self, command: str, key: str | None, mode: str, *, delayed: bool) -> tuple[str, str | None]:
        """Return the expected status, and the other command."""
        self.keys[command] = key
        other = None if key is None else self.standers.get(key)
        state = "gone" if key is None else self.state(key)
        if (mode == "first" and state != "gone") or (mode == "until started" and state == "waits"):
            return "u", other
        replaces = mode == "latest" and state == "waits"
        if replaces and other is not None:
            self.remove(other)
        (self.delayed if delayed else self.line).append(command)
        if key is not None:
            self.standers[key] = command
        return ("r", other) if replaces else ("+", None)

    def remove(self, command: str) -> None:
        """Take a command out, settled or not."""
        if self.line and self.line[0] == command:
            self.head_started = self.running = False
        for place in (self.line, self.delayed):
            if command in place:
                place.remove(command)
        key = self.keys[command]
        if key is not None and self.standers.get(key) == command:
            del self.standers[key]

    def waiting(self, key: str) -> list[str]:
        """Return the commands of a key that were not started."""
        return [each for each in (*self.line[self.head_started :], *self.delayed) if self.keys[each] == key]


class Run:
    """One run of a seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.model = Model()
        self.count = 0
        self.replayed: set[str] = set()
        self.gone: set[str] = set()
        """Cancelled, or replaced: then a later trigger sees to the run."""
        self.triggers: list[Trigger] = []
        self.starts: list[tuple[int, str]] = []
        self.place = 0
        self.lease: Lease | None = None

    async def go(self, steps: int) -> None:
        """Open a shard, and do so many things."""
        self.connections = LossyConnections(MemoryClients())
        self.harness = TransportHarness(self.connections.factory, "p", self.connections)
        await ensure_ready(self.connections, self.harness.shard)
        self.workers = [self.harness.worker(f"w{number}") for number in range(2)]
        for worker in self.workers:
            worker.batches._reads_ahead = lambda mailbox: self.random.random() < 0.5
        acts = [self.send] * 6 + [self.work] * 7 + [self.promote, self.cancel, self.pause, self.replay, self.sweep]
        for _ in range(steps):
            self.place += 1
            await self.random.choice(acts)()
            await self.compare()
        await self.drain()
        await self.harness.producer.close()
        await self.connections.close()

    # Producers.

    def submission(self) -> tuple[Submission, str | None, str]:
        self.count += 1
        command, mode = f"c{self.count}", self.random.choice(list(MODES))
        key = self.random.choice(("x", "x", "y", None))
        envelope = WireEnvelope(command, "Do", "box", "a", b"\x80", options={"u": key} if key else None)
        delay = self.random.choice((0, 0, 1))
        unique = None if key is None else UniqueSubmission.of(MODES[mode], envelope, BOX)
        marked = self.random.random() < 0.5
        return Submission(BOX, command, pack_envelope(envelope), NO_DIGEST, 1000, delay, marked, unique=unique), key, mode

    async def send(self) -> None:
        batch = [self.submission() for _ in range(self.random.choice((1, 1, 2, 4)))]
        self.connections.fates = [self.random.choice(FATES) for _ in range(self.random.choice((0, 0, 1, 3)))]
        admissions: list[Any] = await self.harness.producer.enqueue_many([each for each, _, _ in batch], 60)
        self.connections.fates = []
        for (submission, key, mode), admission in zip(batch, admissions, strict=True):
            command = submission.command_id
            expected = self.model.dispatch(command, key, mode, delayed=submission.delay_ms > 0)
            other = None if submission.unique is None else submission.unique.other
            assert (admission.value, other) == expected, (command, key, mode)
            if expected[0] == "r" and expected[1]:
                self.gone.add(expected[1])
            stands = None if expected[0] == "u" and mode == "first" else command if expected[0] != "u" else expected[1]
            self.triggers.append(Trigger(self.place, key, stands))
        await self.see_who_waits_behind([submission.command_id for submission, _, _ in batch])

    async def see_who_waits_behind(self, sent: list[str]) -> None:
        """Move what was sent behind the moment of a delayed command, also one that it replaced: it waits with that until a worker looks."""
        for command in sent:
            if command in self.model.line and await self.harness.client.hexists(self.harness.shard.delayed, command):  # type: ignore[misc]
                self.model.line.remove(command)
                self.model.delayed.append(command)

    # Workers.

    async def work(self) -> None:
        worker = self.random.choice(self.workers)
        if self.lease is None:
            leases = await worker.read(1)
            if leases:
                self.lease, self.owner = leases[0], worker
                await self.do(TAKE)
            return
        if not self.model.running:
            self.lease = None
            return
        head = self.model.line[0]
        left = Settlement("", b"", 0, unique=f"a:{self.model.keys[head]}" if self.model.keys[head] else "")
        step: Step = self.random.choice(
            (
                Done(left, self.random.choice(("stay", "stay", "yield", "leave"))),
                Done(left),
                DeadLetterStep(left, b"why", pack_of(head, self.model.keys[head])),
                Retry(0, counts=self.random.random() < 0.7),
                GiveBack(counts=self.random.random() < 0.7),
                TAKE,
            )
        )
        if self.random.random() < 0.1:  # its worker is lost: another one takes the lease, and what ran was interrupted
            other = self.workers[self.owner is self.workers[0]]
            await other.claim(self.lease.activation)
            taken = other.lease(self.lease.mailbox, self.lease.activation)
            taken.attempt_id, taken.holder = self.lease.attempt_id, ""
            self.lease, self.owner, step = taken, other, GiveBack(counts=True)
        await self.do(step)

    async def do(self, step: Step) -> None:
        assert self.lease is not None
        self.connections.fates = [self.random.choice(FATES) for _ in range(self.random.choice((0, 0, 1)))]
        answer = await self.owner.do(self.lease, step)
        self.connections.fates = []
        if isinstance(step, Done | DeadLetterStep):
            self.model.remove(self.model.line[0])
        elif isinstance(step, Retry | GiveBack):
            self.model.running = False
        if isinstance(answer, Started):
            assert self.model.line[0] == command_of(answer.envelope)
            self.model.head_started = self.model.running = True
            if not isinstance(step, type(TAKE)) or not self.starts or self.starts[-1][1] != self.model.line[0]:
                self.starts.append((self.place, self.model.line[0]))
        else:
            self.lease = None

    async def promote(self) -> None:
        client, shard = self.harness.client, self.harness.shard
        await asyncio.sleep(0.002)
        members: Any = await client.zrange(shard.due, 0, -1)
        await self.harness.promote(self.workers[0])
        for member in members:
            command = delayed_id(member.decode())
            if member[:2] == b"d:" and command in self.model.delayed and not await client.hexists(shard.delayed, command):  # type: ignore[misc]
                self.model.delayed.remove(command)
                self.model.line.append(command)

    # Operators.

    async def cancel(self) -> None:
        waiting = [each async for page in self.pages() for each in page]
        purges = self.random.random() < 0.2
        chosen = waiting if purges else waiting[:0] + self.random.sample(waiting, min(1, len(waiting)))
        for each in chosen:
            command = command_of(each.envelope)
            key = self.model.keys[command]
            left = Settlement("", b"", 0, unique=f"a:{key}" if key else "")
            if await self.harness.mailboxes.remove(BOX, [removal(each, left)]):
                assert not (self.model.running and self.model.line[0] == command)
                self.model.remove(command)
                self.gone.add(command)

    async def pages(self) -> Any:
        async for page in self.harness.mailboxes.waiting(BOX):
            yield page

    async def pause(self) -> None:
        await (self.harness.scopes.pause(BOX, "") if self.random.random() < 0.4 else self.harness.scopes.resume(BOX))

    async def replay(self) -> None:
        letters = [each async for each in self.harness.dead_letters.all()]
        if not letters:
            return
        envelope = unpack_envelope(letters[0].raw)
        left = Settlement("", b"", 1, unique=unique_key(envelope), stander=stander_of(envelope))
        assert await self.harness.dead_letters.settle(letters[0], "replay", left)
        key = (envelope.options or {}).get("u")
        self.model.line.append(envelope.command_id)
        self.model.keys[envelope.command_id] = key
        if key is not None and key not in self.model.standers:
            self.model.standers[key] = envelope.command_id
        self.replayed.add(envelope.command_id)

    async def sweep(self) -> None:
        assert (await sweep_page(self.connections, self.harness.shard, 0))[1] == 0, "no key outlives its command"

    # What must be true.

    async def compare(self) -> None:
        line = [command_of(each.envelope) async for page in self.harness.mailboxes.lined_up(BOX) for each in page]
        assert line == self.model.line
        for key in ("x", "y"):
            fresh = [each for each in self.model.waiting(key) if each not in self.replayed]
            assert len(fresh) <= 1
        stored: Any = await self.harness.client.hgetall(self.harness.shard.unique)  # type: ignore[misc]
        standers = {key.decode().rpartition(":")[2]: value.decode().rpartition("|")[2] for key, value in stored.items()}
        assert standers == self.model.standers
        depth = (await self.harness.counters()).get("depth", 0)
        assert depth == len(self.model.line) + len(self.model.delayed)

    async def drain(self) -> None:
        """Run all that is left."""
        await self.harness.scopes.resume(BOX)
        for _ in range(500):
            self.place += 1
            await self.promote()
            await self.work()
            if not self.model.line and not self.model.delayed:
                break
        await self.compare()
        assert not self.model.line
        assert await self.harness.nothing_of(BOX)
        assert not await self.harness.client.exists(self.harness.shard.unique)
        for trigger in self.triggers:
            if trigger.stands is not None and trigger.stands not in self.gone:
                assert any(place >= trigger.place and command == trigger.stands for place, command in self.starts), trigger


def pack_of(command: str, key: str | None) -> bytes:
    return pack_envelope(WireEnvelope(command, "Do", "box", "a", b"\x80", options={"u": key} if key else None))


def command_of(envelope: bytes | None) -> str:
    return unpack_envelope(envelope or b"").command_id


@pytest.mark.promise("One waits per key")
@pytest.mark.parametrize("seed", quick(range(25), range(5)))
def test_the_model_holds_in_every_interleaving(seed: int) -> None:
    with patch.object(Backoff, "next", lambda _: 0.0):
        asyncio.run(Run(seed).go(60))
