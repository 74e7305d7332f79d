"""Workers are killed and stopped while they work; the recorded history must keep every promise."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import pytest
import redis.asyncio

from command_bus import CommandBus, Envelope
from command_bus.embedded import EmbeddedServer
from tests.integration.conftest import Fleet
from tests.integration.fault_app import Apply, Block, Once, downstream_key
from tests.integration.history import Event, History, Pause

pytestmark = pytest.mark.timeout(180)


async def _nemesis(fleet: Fleet, rng: random.Random, until: asyncio.Event, *, period: float) -> Counter[str]:
    """Kill (and replace) or stop a worker beyond its lease, again and again."""
    done: Counter[str] = Counter()
    while not until.is_set():
        await asyncio.sleep(period * rng.uniform(0.5, 1.5))
        victim = rng.choice(fleet.processes)
        if rng.random() < 0.6:
            fleet.kill(victim)
            fleet.start()
            done["kill"] += 1
        else:
            await fleet.freeze(victim, fleet.lease * 1.6)
            done["freeze"] += 1
    return done


async def _until_all_work(bus: CommandBus, fleet: Fleet) -> None:
    pids = {process.pid for process in fleet.processes}
    while not pids <= {worker.pid for worker in (await bus.stats()).workers}:
        await asyncio.sleep(0.05)


def _assert_sound(history: History) -> None:
    assert history.inversions() == []
    assert history.overlaps() == []
    assert history.fences_regressing() == []


@pytest.mark.promise("Order per entity", "A worker is stopped beyond its lease, then continued")
@pytest.mark.parametrize(
    ("live", "lines"),
    [
        pytest.param(False, 5, marks=pytest.mark.slow),
        pytest.param(False, 1000, marks=pytest.mark.slow),
        pytest.param(True, 5, marks=pytest.mark.slow),
        pytest.param(True, 1000, marks=pytest.mark.slow),
    ],
)
async def test_order_survives_kills_stops_and_retries(fleet: Fleet, lines: int, live: bool) -> None:
    rng = random.Random(lines + live)
    total = 1500
    commands = [
        Envelope(
            Apply(line=f"l{number % lines}", number=number, fail=1 if rng.random() < 0.1 else 0, busy=0.03),
            command_id=f"c{number}",
        )
        for number in range(total)
    ]
    async with CommandBus(fleet.url, namespace=fleet.namespace, lease=fleet.lease) as bus:
        fleet.start(3)
        over = asyncio.Event()
        nemesis = asyncio.create_task(_nemesis(fleet, rng, over, period=0.7))
        if live:
            for start in range(0, total, 50):
                assert (await bus.dispatch_batch(commands[start : start + 50])).accepted == 50
                await asyncio.sleep(0.1)
        else:
            assert (await bus.dispatch_batch(commands)).accepted == total
        if lines == 1000:
            await asyncio.sleep(4)  # enough work or not: let several faults happen
        while (await bus.stats()).depth > (total * 2 // 3 if not live else 0) and not over.is_set():
            await asyncio.sleep(0.1)
        over.set()
        faults = await nemesis
        await bus.wait_idle(90)
        stats = await bus.stats()
        await _until_all_work(bus, fleet)
        assert set(fleet.stop()) == {0}
        assert faults.total() >= 2, faults
        history = fleet.history()
        _assert_sound(history)
        assert stats.completed + stats.dead_letters == total
        assert stats.dead_letters == 0
        await _assert_downstream(fleet, lines, total)


async def _assert_downstream(fleet: Fleet, lines: int, total: int) -> None:
    """Check that the fenced downstream took every effect in order, and repetitions only right after the first."""
    client = redis.asyncio.Redis.from_url(fleet.url)
    for line in range(lines):
        raw = await client.lrange(downstream_key(fleet.namespace, f"l{line}"), 0, -1)  # type: ignore[misc]
        effects = [int(value) for value in raw]
        once = [number for index, number in enumerate(effects) if index == 0 or effects[index - 1] != number]
        assert once == list(range(line, total, lines)), f"line {line}"
    await client.aclose()


@pytest.mark.promise("At most once")
@pytest.mark.slow
async def test_at_most_once_never_starts_twice(fleet: Fleet) -> None:
    rng = random.Random(3)
    total = 2400
    async with CommandBus(fleet.url, namespace=fleet.namespace, lease=fleet.lease) as bus:
        fleet.start(3)
        over = asyncio.Event()
        await bus.dispatch_batch(Once(line=f"l{number % 20}", number=number, busy=0.1) for number in range(total))
        nemesis = asyncio.create_task(_nemesis(fleet, rng, over, period=0.6))
        await asyncio.sleep(6)
        async with asyncio.timeout(20):
            while not (await bus.stats()).dead_letters:  # a busy machine starts less, and the faults may have hit nothing
                await asyncio.sleep(0.2)
        over.set()
        faults = await nemesis
        await bus.wait_idle(90)
        letters = [letter async for letter in bus.dead_letters.list()]
        stats = await bus.stats()
    history = fleet.history()
    _assert_sound(history)
    starts = history.starts()
    assert max(starts.values()) == 1
    assert {letter.reason for letter in letters} <= {"interrupted"}
    assert stats.completed + len(letters) == total
    assert faults.total() >= 2
    assert letters, "no command was interrupted: the faults did not hit"


@pytest.mark.promise("A handler blocks the event loop")
@pytest.mark.slow
async def test_a_handler_that_blocks_the_loop_keeps_its_lease(fleet: Fleet) -> None:
    fleet.lease = 3.0
    async with CommandBus(fleet.url, namespace=fleet.namespace, lease=3.0) as bus:
        fleet.start(2)
        await bus.dispatch(Block(line="b", number=0, seconds=9))
        await bus.dispatch_batch(Apply(line="b", number=number) for number in range(1, 4))
        await bus.wait_idle(60)
    history = fleet.history()
    _assert_sound(history)
    assert history.starts() == {("b", 0): 1, ("b", 1): 1, ("b", 2): 1, ("b", 3): 1}
    end = next(event.at for event in history.events if event.number == 0 and event.what == "end")
    assert all(event.at > end for event in history.events if event.number > 0)


@pytest.mark.promise("A worker is killed")
async def test_a_killed_worker_s_entity_goes_on_after_its_lease(fleet: Fleet) -> None:
    async with CommandBus(fleet.url, namespace=fleet.namespace, lease=fleet.lease) as bus:
        fleet.start(1)
        await bus.dispatch(Apply(line="k", number=0, busy=1000.0))
        while not fleet.history().events:
            await asyncio.sleep(0.02)
        fleet.kill(fleet.processes[0])
        killed = time.monotonic()
        await bus.dispatch(Apply(line="k", number=1))
        fleet.start(1)
        while len(fleet.history().events) < 2:
            await asyncio.sleep(0.02)
    again = fleet.history().events[1]
    assert (again.what, again.number, again.attempt) == ("start", 0, 2)
    assert again.at - killed < fleet.lease + 5.0  # a busy machine; `make chaos` measures it


@pytest.mark.promise("SIGTERM")
async def test_sigterm_finishes_what_runs_and_hands_the_rest_back(fleet: Fleet) -> None:
    async with CommandBus(fleet.url, namespace=fleet.namespace, lease=fleet.lease) as bus:
        fleet.concurrency = 4
        fleet.start(1)
        await bus.dispatch_batch(Apply(line=f"l{number % 8}", number=number, busy=0.4) for number in range(80))
        while len(fleet.history().events) < 10:
            await asyncio.sleep(0.02)
        began = time.monotonic()
        assert fleet.stop() == [0]
        assert time.monotonic() - began < 3
        stats = await bus.stats()
        assert stats.in_flight == 0, "something waits for its lease to end"
        assert stats.workers == ()
        fleet.start(2)
        await bus.wait_idle(60)
    history = fleet.history()
    _assert_sound(history)
    assert set(history.starts().values()) == {1}, "handing back is not an attempt"


@pytest.mark.promise("Redis restarts with its data")
async def test_workers_and_callers_survive_a_server_restart(tmp_path: object, fleet: Fleet) -> None:
    with EmbeddedServer.start(persistence=fleet.log.parent / "data", config={"appendfsync": "always"}) as server:
        fleet.url = server.url
        async with CommandBus(server.url, namespace=fleet.namespace, lease=fleet.lease, dispatch_timeout=20.0) as bus:
            fleet.start(2)
            await bus.dispatch_batch(Apply(line=f"l{number % 10}", number=number, busy=0.2) for number in range(300))
            calls = [asyncio.create_task(bus.call(Apply(line=f"l{line}", number=300 + line), timeout=60)) for line in range(10)]
            await _until_all_work(bus, fleet)
            for _ in range(2):
                server.kill()
                await asyncio.sleep(0.3)
                server.restart()
                await asyncio.sleep(1.0)
            await asyncio.gather(*calls)
            await bus.wait_idle(60)
            assert (await bus.stats()).dead_letters == 0
    history = fleet.history()
    assert history.inversions() == []
    assert len(history.starts()) == 310


def test_the_checker_sees_what_is_wrong() -> None:
    def event(what: str, number: int, fence: int, at: float, pid: int = 1) -> Event:
        return Event(what, "l", number, 1, fence, pid, at)

    fine = [event("start", 0, 1, 0.0), event("end", 0, 1, 1.0), event("start", 1, 2, 2.0), event("end", 1, 2, 3.0)]
    _assert_sound(History(fine))
    assert History([event("start", 1, 1, 0.0), event("end", 1, 1, 0.5), event("start", 0, 2, 1.0)]).inversions()
    overlapping = [event("start", 0, 1, 0.0), event("start", 1, 2, 1.0, pid=2), event("end", 0, 1, 2.0)]
    assert History(overlapping).overlaps()
    assert not History(overlapping, [Pause(1, 0.5)]).overlaps()
    assert History(overlapping, [Pause(1, 1.5)]).overlaps()
    stale = [event("start", 0, 2, 0.0), event("start", 1, 1, 5.0, pid=2)]
    assert History(stale).fences_regressing()
    assert History(stale, [Pause(2, 1.0, 3.0), Pause(1, 1.0, 6.0)]).fences_regressing()
    assert not History(stale, [Pause(2, 1.0, 4.5)]).fences_regressing()
