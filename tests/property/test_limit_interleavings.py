"""Random interleavings of starts, ends, crashes, pauses, purges and live changes of a limit, in virtual time, over a server in this process.

What holds after every step: under one rule the starts of any span are at most its rate times the span and its burst; places are at most as many
as the rule says, or fewer than before; tokens are gone only where a command has started. At the end everything runs, and nothing is held.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from command_bus.messages.limits import Rate
from command_bus.transport.redis.memory import MemoryClients
from command_bus.transport.redis.ready_stream import ensure_ready
from command_bus.transport.steps import Answer, GiveBack, Lease, LeaseLost, Retry, Started, Step
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, done, left, removal
from tests.conformance.limits.limit_bench import LimitBench
from tests.selection import quick

pytestmark = pytest.mark.timeout(120)

BOXES = tuple(f"box:{letter}" for letter in "abcdefgh")
STEPS = 150
_TELLING = (27, 30, 100, 104, 136, 144)
SEEDS = quick((*range(16), *_TELLING), (0, *_TELLING))
"""The last six met grants of a rule that was changed before they were used."""
RULES: tuple[tuple[Rate | None, int | None], ...] = (
    (None, 1),
    (None, 3),
    (Rate(20, burst=1), None),
    (Rate(5, burst=3), 2),
    (Rate(2, burst=5), 4),
    (Rate(100, burst=5), 1),
)


class Clock:
    """The server's time of day."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


@dataclass
class Run:
    """One seed: a shard under the limit `type:box`, three workers, and what was seen of them."""

    random: Random
    clock: Clock
    harness: TransportHarness
    rule: tuple[Rate | None, int | None] = (None, None)
    held: dict[str, tuple[ManualWorker, Lease, str]] = field(default_factory=dict)
    lost: list[tuple[ManualWorker, Lease, str]] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    started_now: set[str] = field(default_factory=set)
    sent: int = 0
    gone: int = 0
    ran: int = 0

    def __post_init__(self) -> None:
        self.bench = LimitBench(self.harness)
        self.workers = [self.bench.worker(name) for name in ("w1", "w2", "w3")]

    # What can happen.

    async def send(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            self.sent += 1
            await self.harness.put(self.random.choice(BOXES), f"c{self.sent}")

    async def read(self) -> None:
        worker = self.random.choice(self.workers)
        for lease in await worker.read(self.random.randint(1, 4)):
            await self.do(worker, lease, TAKE)

    async def fetch(self) -> None:
        """Read, and start lone commands in one request; now and then its answer is lost."""
        worker = self.random.choice(self.workers)
        is_lost = self.random.random() < 0.2
        for lease in await self.bench.fetch(worker, self.random.randint(1, 4)):
            if is_lost and lease.begun is not None:
                self.started(worker, lease, lease.begun)
                self.lost.append(self.held.pop(lease.mailbox))
            else:
                await self.do(worker, lease, TAKE)

    async def end(self) -> None:
        if not self.held:
            return
        worker, lease, command = self.held.pop(self.random.choice(sorted(self.held)))
        follow = self.random.choice(("stay", "stay", "yield", "leave"))
        kind = self.random.random()
        if kind < 0.7:
            self.ran += 1
            await self.do(worker, lease, done(command, follow))
        else:
            await self.do(worker, lease, GiveBack(counts=True) if kind < 0.85 else Retry(0))

    async def crash(self) -> None:
        """Let a worker be silent from now on; another one takes over at any moment."""
        if self.held:
            self.lost.append(self.held.pop(self.random.choice(sorted(self.held))))

    async def take_over(self) -> None:
        if self.lost:
            worker, lease, command = self.lost.pop(self.random.randrange(len(self.lost)))
            other = next(each for each in self.workers if each is not worker)
            await other.claim(lease.activation)
            await self.harness.recovery(other).settle(0, [(lease.activation, lease.mailbox)])
            assert await worker.do(lease, done(command)) == LeaseLost(), "its lease is over"

    async def change(self) -> None:
        await self.put(self.random.choice(RULES))

    async def lift(self) -> None:
        await self.put((None, None))

    async def put(self, rule: tuple[Rate | None, int | None]) -> None:
        await self.bench.put("type:box", *rule)
        self.rule = rule
        self.starts.clear()

    async def pause(self) -> None:
        await self.harness.scopes.pause(self.random.choice(BOXES), "")

    async def resume(self) -> None:
        await self.harness.scopes.resume(self.random.choice(BOXES))

    async def purge(self) -> None:
        box = self.random.choice(BOXES)
        pages = [page async for page in self.harness.mailboxes.waiting(box)]
        commands = [command for page in pages for command in page]
        self.gone += await self.harness.mailboxes.remove(box, [removal(command, left("x")) for command in commands])

    async def wake(self) -> None:
        await self.bench.wake()
        await self.harness.promote(self.workers[0])

    async def sweep(self) -> None:
        await self.bench.work.turn()
        await self.bench.look_over()

    async def wait(self) -> None:
        self.clock.now += self.random.choice((0.001, 0.01, 0.05, 0.3))

    async def do(self, worker: ManualWorker, lease: Lease, step: Step) -> Answer:
        answer = await worker.do(lease, step)
        if isinstance(answer, Started):
            self.started(worker, lease, answer)
        return answer

    def started(self, worker: ManualWorker, lease: Lease, started: Started) -> None:
        self.held[lease.mailbox] = (worker, lease, (started.envelope or b"").decode())
        self.starts.append(self.clock.now)
        self.started_now.add(lease.mailbox)

    # What must hold.

    async def step(self) -> None:
        """Do one thing, and compare what the server has then with what it had."""
        weights = {
            self.send: 5, self.read: 5, self.fetch: 4, self.end: 8, self.crash: 1, self.take_over: 2, self.change: 1, self.lift: 0.3,
            self.pause: 0.7, self.resume: 1, self.purge: 0.7, self.wake: 5, self.sweep: 0.5, self.wait: 6,
        }  # fmt: skip
        (doing,) = self.random.choices(list(weights), weights=list(weights.values()))
        self.started_now.clear()
        full, places = await self.full(), set(await self.bench.places())
        await doing()
        now_full, now_places = await self.full(), set(await self.bench.places())
        rate, most = self.rule
        if not self.started_now:
            assert now_full <= full, "a token is gone, and nothing has started"
        if most is not None:
            assert len(now_places) <= max(most, len(places)), "one place too many"
            assert self.started_now & self.held.keys() <= now_places, "what has started has a place"
        if rate is not None:
            self.check_rate(rate)

    async def full(self) -> float:
        value: Any = await self.harness.client.hget(self.harness.shard.limits, "b\ntype:box")  # type: ignore[misc]
        return float(value.split(b"|")[0]) if value else 0.0

    def check_rate(self, rate: Rate) -> None:
        for at in range(len(self.starts)):
            span = (self.starts[-1] - self.starts[at]) * 1e6
            allowed = span / rate.tick + rate.tokens
            assert len(self.starts) - at <= allowed + 0.001, f"{len(self.starts) - at} starts in {span} us under {rate}"

    async def drain(self) -> None:
        """Whatever was done before, this runs everything."""
        for box in BOXES:
            await self.harness.scopes.resume(box)
        for turn in range(600):
            while self.lost:
                await self.take_over()
            while self.held:
                await self.end()
            if turn % 20 == 0:
                await self.sweep()  # what a purge or a change of rules has left
            await self.wake()
            await self.read()
            self.clock.now += 0.1
            if not (await self.harness.counters()).get("depth"):
                return
        raise AssertionError(await self.harness.everything())


@contextmanager
def virtual_time() -> Iterator[Clock]:
    clock = Clock()
    with patch("time.time", clock):
        yield clock


async def _run(seed: int, clock: Clock) -> None:
    harness = TransportHarness(MemoryClients(), "p")
    await ensure_ready(harness.connections, harness.shard)
    run = Run(Random(seed), clock, harness)
    await run.change()
    for _ in range(STEPS):
        await run.step()
    await run.drain()
    await run.bench.work.turn()
    assert run.ran + run.gone == run.sent
    assert (await run.bench.places(), await run.bench.queue(), await run.bench.passes()) == ([], [], [])
    await harness.connections.close()


@pytest.mark.promise("Places come back")
@pytest.mark.parametrize("seed", SEEDS)
def test_limits_hold_in_any_order_of_what_happens(seed: int) -> None:
    with virtual_time() as clock:
        asyncio.run(_run(seed, clock))
