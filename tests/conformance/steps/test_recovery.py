"""Faults between a worker, a caller and the server: leases, clocks, connections, replies. No command is lost or runs twice."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from command_bus import Command, CommandContext, CommandInterrupted, EntityId, RetryPolicy
from command_bus.transport.redis.keys import GROUP
from command_bus.transport.redis.maintenance.expired_leases import SHORTEST_WATCH, Held
from command_bus.transport.redis.worker.lease_keeper import LeaseKeeper, Page
from command_bus.transport.steps import LeaseLost, Released, Started
from tests.conformance.conftest import Sandbox
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, done, held_by, side_of
from tests.conformance.put_service import until


class Work(Command[int], entity="line", retry=RetryPolicy(attempts=10, delay=0.0)):
    line: EntityId
    number: int


class Once(Command[int], entity="line", delivery="at_most_once"):
    line: EntityId
    number: int


class Log:
    """Handlers that wait for a gate, and what they did."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.gate = asyncio.Event()
        self.starts: list[tuple[str, int, int]] = []
        self.cancelled: list[str] = []
        self.ends: list[tuple[str, int]] = []

        @sandbox.registry.handles(Work)
        @sandbox.registry.handles(Once)
        async def work(command: Work | Once, context: CommandContext) -> int:
            self.starts.append((str(command.line), command.number, context.attempt))
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled.append(str(command.line))
                raise
            self.ends.append((str(command.line), command.number))
            return command.number

    def of(self, line: str) -> list[int]:
        return [number for name, number in self.ends if name == line]


@pytest.fixture
def log(sandbox: Sandbox) -> Log:
    return Log(sandbox)


@pytest.fixture
async def client(sandbox: Sandbox) -> AsyncIterator[Redis]:
    client = sandbox.client()
    yield client
    await client.aclose()


def needs_connections(sandbox: Sandbox) -> None:
    if sandbox.url is None:
        pytest.skip("fakeredis has no connections to break")


async def kill(client: Redis, *commands: str, at_least: int = 1) -> int:
    """Break the connections that wait in these commands; how many. Waits until there are as many as expected."""

    async def found() -> list[str]:
        return [item["id"] for item in await client.client_list() if item["cmd"] in commands]

    async def enough() -> bool:
        return len(await found()) >= at_least

    await until(enough)
    victims = await found()
    for victim in victims:
        await client.client_kill_filter(_id=victim)
    return len(victims)


# Leases and clocks.


@pytest.mark.promise("The server's clock jumps ahead")
@pytest.mark.parametrize("command_type", [Work, Once])
async def test_a_clock_jump_takes_no_lease_from_a_live_owner(
    sandbox: Sandbox, log: Log, client: Redis, command_type: type[Work | Once]
) -> None:
    """Every idle time is an hour again and again; a renewal in between shows that the owner lives."""
    async with sandbox.bus(lease=2.4) as bus, bus.worker() as owner:
        await bus.dispatch(command_type(line="a", number=1))
        await until(lambda: log.starts)
        ready = bus.session.redis.keys.shards[0].ready
        async with sandbox.bus(lease=2.4) as other, other.worker() as vulture:
            (pending,) = await client.xpending_range(ready, GROUP, min="-", max="+", count=10)
            assert pending["consumer"] == owner.name.encode()
            deadline = time.monotonic() + 3.0
            while time.monotonic() < deadline:
                await client.xclaim(ready, GROUP, owner.name, 0, [pending["message_id"]], idle=3_600_000, justid=True)
                await asyncio.sleep(0.05)
            assert side_of(vulture)._maintenance.recovered == 0
            log.gate.set()
            await bus.wait_idle(5)
    assert log.starts == [("a", 1, 1)]
    assert log.ends == [("a", 1)]


@pytest.mark.promise("The server's clock jumps ahead")
@pytest.mark.parametrize("jump_ms", [None, 3_600_000], ids=["steady", "jumped ahead"])
async def test_the_lease_of_a_lost_owner_ends_in_its_time(sandbox: Sandbox, log: Log, client: Redis, jump_ms: int | None) -> None:
    log.gate.set()
    async with sandbox.bus(lease=1.0) as bus:
        await bus.dispatch(Work(line="a", number=1))
        await bus.dispatch(Work(line="a", number=2))
        ghost = _ghost(sandbox)
        _, started = await ghost.start()
        began = time.monotonic()
        if jump_ms is not None:
            ready = bus.session.redis.keys.shards[0].ready
            (pending,) = await client.xpending_range(ready, GROUP, min="-", max="+", count=10)
            await client.xclaim(ready, GROUP, "ghost", 0, [pending["message_id"]], idle=jump_ms, justid=True)
        async with bus.worker():
            await bus.wait_idle(10)
        took = time.monotonic() - began
    assert started.attempt == 1
    assert log.starts == [("a", 1, 2), ("a", 2, 1)]
    assert (0.45 if jump_ms else 0.9) <= took < 4.0
    await ghost.steps.close(1)
    await _close(ghost)


async def delivered_in_the_future(client: Redis, ready: str) -> None:
    """Make the one delivery an hour younger than it is, as if the server's clock had gone back: no command can, but what is restored."""
    now: Any = await client.time()
    (pending,) = await client.xpending_range(ready, GROUP, min="-", max="+", count=10)
    seconds, micros = now
    then = seconds * 1000 + micros // 1000 - pending["time_since_delivered"]
    dump: Any = await client.dump(ready)
    body = dump[:-8]
    for ms in range(then - 20, then + 20):
        body = body.replace(ms.to_bytes(8, "little"), (ms + 3_600_000).to_bytes(8, "little"))
    assert body != dump[:-8]
    await client.restore(ready, 0, body + _crc64(body).to_bytes(8, "little"), replace=True)
    (pending,) = await client.xpending_range(ready, GROUP, min="-", max="+", count=10)
    assert pending["time_since_delivered"] == 0


def _crc64(data: bytes) -> int:
    """Compute a CRC-64 as Redis does (Jones)."""
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x95AC9329AC4BC9B5 if crc & 1 else 0)
    return crc


@pytest.mark.promise("The server's clock goes back")
async def test_a_lost_owners_lease_ends_after_the_clock_went_back(sandbox: Sandbox, log: Log, client: Redis) -> None:
    """Its idle time is 0 for an hour; only its renewal sequence, which does not change, shows the loss."""
    if sandbox.name == "memory":
        pytest.skip("fakeredis dumps nothing that a server would: see tests/kit/test_clock.py")
    log.gate.set()
    async with sandbox.bus(lease=1.0) as bus:
        await bus.dispatch(Work(line="a", number=1))
        ghost = _ghost(sandbox)
        await ghost.start()
        began = time.monotonic()
        await delivered_in_the_future(client, bus.session.redis.keys.shards[0].ready)
        async with bus.worker():
            await until(lambda: log.ends)
            took = time.monotonic() - began
            await bus.wait_idle(5)
    assert log.starts == [("a", 1, 2)]
    assert 0.9 <= took < 4.0
    await ghost.steps.close(1)
    await _close(ghost)


def _ghost(sandbox: Sandbox) -> ManualWorker:
    """Return a worker that takes work and then is silent."""
    return TransportHarness(sandbox.clients, sandbox.namespace).worker("ghost")


async def _close(worker: ManualWorker) -> None:
    await worker._harness.connections.close()


@pytest.mark.promise("At most once")
async def test_an_interrupted_at_most_once_command_is_reported(sandbox: Sandbox, log: Log) -> None:
    log.gate.set()
    async with sandbox.bus(lease=0.6) as bus:
        await bus.dispatch(Once(line="a", number=1), command_id="once")
        await bus.dispatch(Work(line="a", number=2))
        ghost = _ghost(sandbox)
        lease, _ = await ghost.start()
        async with bus.worker():
            with pytest.raises(CommandInterrupted):
                await bus.result("once", timeout=10)
            await bus.wait_idle(5)
            (letter,) = [letter async for letter in bus.dead_letters.list()]
            assert (letter.reason, letter.attempts, letter.command_id) == ("interrupted", 1, "once")
        assert log.starts == [("a", 2, 1)]
        assert await ghost.do(lease, done("once")) == LeaseLost(), "it wakes too late"
    await _close(ghost)


@pytest.mark.promise("A worker is killed")
async def test_what_was_only_delivered_is_no_attempt(sandbox: Sandbox, log: Log) -> None:
    log.gate.set()
    async with sandbox.bus(lease=0.6) as bus:
        await bus.dispatch(Once(line="a", number=1))
        ghost = _ghost(sandbox)
        assert len(await ghost.read()) == 1
        async with bus.worker():
            await bus.wait_idle(10)
        assert log.starts == [("a", 1, 1)]
    await _close(ghost)


async def test_many_lost_leases_are_taken_over_in_pages_each_by_one_worker(sandbox: Sandbox, log: Log) -> None:
    log.gate.set()
    async with sandbox.bus(lease=0.6) as bus:
        await bus.dispatch_batch(Work(line=f"l{number}", number=number) for number in range(450))
        ghost = _ghost(sandbox)
        answers = [ghost.steps.advance(lease, TAKE) for lease in await ghost.read(1000)]
        assert all([isinstance(await answer, Started) for answer in answers])
        async with bus.worker(), sandbox.bus(lease=0.6) as other, other.worker():
            await bus.wait_idle(20)
        assert sorted(log.starts) == sorted((f"l{number}", number, 2) for number in range(450))
    await _close(ghost)


async def test_every_sign_of_life_changes_the_renewal_sequence(harness: TransportHarness, worker: ManualWorker) -> None:
    """Whoever watches a lease sees a late start even where the server's clock has jumped since: idle times say nothing then."""

    async def sequence() -> int:
        (pending,) = await harness.client.xpending_range(harness.shard.ready, GROUP, min="-", max="+", count=10)
        return pending["times_delivered"]

    await harness.put("box:a", "c1")
    lease = await worker.read_one()
    seen = [await sequence()]
    await worker.do(lease, TAKE)
    seen.append(await sequence())
    keeper = LeaseKeeper(harness.connections, harness.keys, worker="w1", lease=30.0, heartbeat=lambda _: b"")
    for _ in range(3):
        keeper._sequence += 1
        await keeper.request(harness.client, Page(0, [lease])).execute()
        seen.append(await sequence())
    assert len(set(seen)) == len(seen), seen


@pytest.mark.parametrize("sign", ["start", "renewal"])
async def test_who_is_back_before_it_is_settled_keeps_its_lease(
    harness: TransportHarness, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch, sign: str
) -> None:
    """It was paused for longer than its lease. Who takes that over may itself be held up before it settles what was running."""
    await harness.put("box:a", "c1")
    lease = await worker.read_one()
    if sign == "renewal":
        await worker.do(lease, TAKE)
    (pending,) = await harness.client.xpending_range(harness.shard.ready, GROUP, min="-", max="+", count=10)
    (watch,) = harness.recovery(harness.worker("vulture"), lease=0.1).watches
    settle: Any = watch.settle

    async def late(*args: Any, **options: Any) -> None:
        if sign == "start":
            await worker.do(lease, TAKE)
        else:
            await harness.client.xclaim(
                harness.shard.ready, GROUP, worker.owner, 0, [lease.activation], retrycount=7, justid=True
            )
        await asyncio.sleep(0.1)
        await settle(*args, **options)

    monkeypatch.setattr(watch, "settle", late)
    await watch._take_over([Held(lease.activation, pending["times_delivered"], 0.2)], 0)
    assert await worker.do(lease, done("c1")) == Released("idle")


# Connections.


async def test_a_reader_whose_connection_breaks_goes_on(sandbox: Sandbox, log: Log, client: Redis) -> None:
    needs_connections(sandbox)
    readers = 1 if sandbox.name == "cluster" else 2  # there each shard's is connected to another node
    log.gate.set()
    async with sandbox.bus(shards=readers) as bus, bus.worker():
        for round_ in range(5):
            await kill(client, "xreadgroup", at_least=readers)
            began = time.monotonic()
            await bus.dispatch_batch(Work(line=f"l{line}", number=round_) for line in range(20))
            await bus.wait_idle(5)
            assert time.monotonic() - began < 3
    assert all(log.of(f"l{line}") == list(range(5)) for line in range(20))
    assert {attempt for _, _, attempt in log.starts} == {1}


@pytest.mark.promise("An answer is lost that says what a worker was given, and what was started for it")
async def test_an_activation_sent_to_a_dead_connection_is_found_early(sandbox: Sandbox, log: Log, client: Redis) -> None:
    needs_connections(sandbox)
    async with sandbox.bus(lease=60.0) as bus, bus.worker(concurrency=1) as worker:
        await bus.dispatch(Work(line="busy", number=1))
        await until(lambda: log.starts)  # no slot is free: the worker does not read
        await bus.dispatch(Work(line="a", number=1))
        ready = bus.session.redis.keys.shards[0].ready
        assigned = await client.xreadgroup(GROUP, worker.name, {ready: ">"}, count=1)
        assert assigned, "delivered in the worker's name, and it will never know"
        log.gate.set()
        await until(lambda: log.ends)
        began = time.monotonic()
        await kill(client, "xreadgroup")
        await bus.wait_idle(10)
        assert time.monotonic() - began < 5
    assert log.starts == [("busy", 1, 1), ("a", 1, 1)]


async def test_a_lost_lease_is_reported_once(sandbox: Sandbox, client: Redis, caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    @sandbox.registry.handles(Work)
    def work(command: Work) -> int:
        release.wait(10)
        return 1

    async with sandbox.bus(lease=0.6, grace=0.0) as bus, bus.worker() as worker:
        await bus.dispatch(Work(line="a", number=1))
        ready = bus.session.redis.keys.shards[0].ready
        while not (pending := await client.xpending_range(ready, GROUP, "-", "+", 10)):
            await asyncio.sleep(0.01)
        await client.xack(ready, GROUP, pending[0]["message_id"])  # as the worker that takes it over does
        async with asyncio.timeout(10):
            while not worker.figures.leases_lost:
                await asyncio.sleep(0.01)
        await asyncio.sleep(1.0)  # some renewals later
        assert worker.figures.leases_lost == 1
        assert sum("is lost" in record.getMessage() for record in caplog.records) == 1
        release.set()


@pytest.mark.promise("Reply and settlement are one step", "Connections break")
async def test_a_reply_lost_with_its_connection_is_read_again(sandbox: Sandbox, log: Log, client: Redis) -> None:
    """Popped from the inbox by a connection that breaks before the reply arrives."""
    needs_connections(sandbox)
    async with sandbox.bus() as bus, bus.worker():
        calls = [asyncio.create_task(bus.call(Work(line=f"l{number}", number=number), timeout=20)) for number in range(30)]
        await until(lambda: len(log.starts) == 30)
        inbox = bus.session.redis.keys.shards[0].inbox(bus.session.transport.replies.process)
        stolen = asyncio.create_task(_steal(sandbox, inbox, 3))
        popping = "blmpop" if bus.session.redis.facts.has_blmpop else "brpop"
        await until(lambda: _waits(client, "blpop"))
        await kill(client, popping)  # the thief waited second; now it is first in line
        began = time.monotonic()
        log.gate.set()
        assert len(await stolen) == 3
        assert await asyncio.gather(*calls) == list(range(30))
        assert time.monotonic() - began < 10
        assert len(log.ends) == 30

        async def empty() -> bool:
            return not await client.exists(inbox)

        await until(empty)  # some replies came both ways


async def _waits(client: Redis, command: str) -> bool:
    return any(item["cmd"] == command for item in await client.client_list())


async def _steal(sandbox: Sandbox, inbox: str, count: int) -> list[bytes]:
    """Take replies as a connection would that breaks right after."""
    thief = sandbox.client()
    stolen = [(await thief.blpop([inbox], timeout=10))[1] for _ in range(count)]  # type: ignore[misc]
    await thief.aclose()
    return stolen


async def test_calls_in_flight_survive_the_loss_of_every_connection(sandbox: Sandbox, log: Log, client: Redis) -> None:
    needs_connections(sandbox)
    async with sandbox.bus() as bus, bus.worker():
        calls = [asyncio.create_task(bus.call(Work(line=f"l{number % 9}", number=number), timeout=30)) for number in range(300)]
        await until(lambda: len(log.starts) == 9)
        await client.client_kill_filter(_type="normal", skipme=True)
        log.gate.set()
        assert await asyncio.gather(*calls) == list(range(300))
    assert {attempt for _, _, attempt in log.starts} == {1}
    assert all(log.of(f"l{line}") == list(range(line, 300, 9)) for line in range(9))


@pytest.mark.promise("Connections break")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("command_type", [Work, Once])
async def test_connections_that_keep_breaking_lose_nothing(
    sandbox: Sandbox, log: Log, client: Redis, command_type: type[Work | Once]
) -> None:
    """Requests and replies of every step are cut; each step is repeated until it is answered, and takes effect once."""
    needs_connections(sandbox)
    log.gate.set()
    over = asyncio.Event()
    shortest = 0.05 if sandbox.name in ("cluster", "sentinel") else 0.02  # finding a primary takes a connection more

    async def nemesis() -> int:
        cuts = 0
        while not over.is_set():
            await client.client_kill_filter(_type="normal", skipme=True)
            await asyncio.sleep(
                shortest * 1.02**cuts
            )  # longer and longer: a machine too busy to connect in 20 ms gets through too
            cuts += 1
        return cuts

    async with sandbox.bus(lease=10.0, dispatch_timeout=60.0) as bus, bus.worker(concurrency=8):
        cutting = asyncio.create_task(nemesis())
        sent = 0
        for start in range(0, 1200, 20):
            batch = await bus.dispatch_batch(
                command_type(line=f"l{number % 7}", number=number) for number in range(start, start + 20)
            )
            batch.raise_for_rejected()
            sent += batch.accepted
        await until(lambda: len(log.ends) >= 1200, 45)
        over.set()
        assert await cutting >= 3
        await bus.wait_idle(20)
        stats = await bus.stats()
    assert sent == 1200
    assert (stats.completed, stats.dead_letters, stats.depth) == (1200, 0, 0)
    assert sorted(log.starts) == sorted((f"l{number % 7}", number, 1) for number in range(1200))
    assert all(log.of(f"l{line}") == list(range(line, 1200, 7)) for line in range(7))
    assert await sandbox.entity_keys() == []


@pytest.mark.promise("A worker is cut off from Redis")
async def test_a_server_that_stands_still_longer_than_the_lease(sandbox: Sandbox, log: Log, client: Redis) -> None:
    """The owner cannot renew: it gives up by its own clock, and the command runs again."""
    needs_connections(sandbox)
    async with sandbox.bus(lease=0.6) as bus, bus.worker():
        await bus.dispatch_batch(
            [Work(line="a", number=1), Once(line="b", number=1), Work(line="a", number=2), Work(line="b", number=2)]
        )
        await until(lambda: len(log.starts) == 2)
        began = time.monotonic()
        await client.client_pause(2000)
        await until(lambda: len(log.cancelled) == 2)
        assert 0.3 < time.monotonic() - began < 1.8, "while nobody answers"
        log.gate.set()
        await bus.wait_idle(20)
        letters = [letter.name async for letter in bus.dead_letters.list()]
    assert log.of("a") == [1, 2]
    assert log.of("b") == [2]
    assert letters == ["Once"]
    assert ("b", 1, 2) not in log.starts


async def test_a_worker_takes_nothing_over_from_itself(sandbox: Sandbox) -> None:
    """It was cut off for longer than its lease, and no other worker was there: it renews what it holds, and runs it once."""
    attempts: list[int] = []
    may_end = asyncio.Event()

    @sandbox.registry.handles(Work)
    async def work(command: Work, context: CommandContext) -> int:
        attempts.append(context.attempt)
        await may_end.wait()
        return 1

    async with sandbox.bus(lease=1.0) as bus, bus.worker() as worker:
        call = asyncio.create_task(bus.call(Work(line="a", number=1), timeout=15))
        await until(lambda: attempts)
        await asyncio.sleep(SHORTEST_WATCH * 1.0 + 0.1)  # who has started a command a moment ago is not taken for lost
        watch = side_of(worker)._maintenance.watches[0]
        [activation] = held_by(worker)
        [pending] = await watch.connections.ask(lambda client: client.xpending_range(watch.keys.ready, GROUP, "-", "+", 10))
        await watch._take_over([Held(activation, pending["times_delivered"], 60.0)], 0)
        may_end.set()
        assert await call == 1
        await bus.wait_idle(5)
        assert attempts == [1]
        assert (await bus.stats()).settled == 1
        assert worker.figures.recovered == 0
