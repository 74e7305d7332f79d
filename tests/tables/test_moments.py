"""Commands of one entity that are due at one moment run in the order of their acceptance, and what is due has its place from that moment on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest

from command_bus import CommandBus, Envelope, HandlerRegistry
from command_bus.admin.commands import DelayedCommand
from command_bus.clock import wall_ms
from command_bus.sending import options
from command_bus.transport.redis.maintenance.due_work import DueWork
from tests.conformance.put_service import until
from tests.tables.moments import AT_ONCE, LATER, Gated, Scene, Send, Step, Way, relay

MINUTE = 60.0
MANY = 12


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    registry = HandlerRegistry()
    scene = Scene(registry)
    promote: Any = DueWork.promote

    async def promoted(due: DueWork) -> None:
        scene.looks.add(due)
        if scene.sees:
            await promote(due)

    monkeypatch.setattr(DueWork, "promote", promoted)
    scene.process = Gated(scene.server)
    scene.bus = CommandBus("redis://unused", clients=scene.process, registry=registry, shards=2, lease=5.0, grace=5.0)
    async with scene.bus, scene.bus.worker():
        yield scene
        scene.gate.set()


async def ran(scene: Scene) -> list[int]:
    """Let the worker look at what is due, and return what has run."""
    scene.held_at = None
    scene.look()
    async with asyncio.timeout(20):
        await scene.bus.wait_idle()
    return scene.ran


@pytest.mark.promise("Commands due together keep their order")
@pytest.mark.parametrize("way", LATER)
async def test_what_is_due_in_one_millisecond_runs_in_the_order_of_acceptance(scene: Scene, way: str) -> None:
    scene.hold()
    await LATER[way](scene, list(range(MANY)), MINUTE)
    scene.jump(MINUTE + 1)
    assert await ran(scene) == list(range(MANY))


async def test_ties_of_all_ways_run_in_the_order_of_acceptance(scene: Scene) -> None:
    """Also more of them than a worker reads at a time."""
    scene.hold()
    numbers = 0
    for way in (*LATER.values(), *LATER.values()):
        await way(scene, list(range(numbers, numbers + 20)), MINUTE)
        numbers += 20
    scene.jump(MINUTE + 1)
    assert await ran(scene) == list(range(numbers))


async def standing_behind(scene: Scene, line: str, way: Way, late: Way) -> list[int]:
    """Return what ran in a line where commands come before and behind the moment of a delayed one, and nobody looks meanwhile."""
    scene.line, scene.sees = line, False
    scene.ran.clear()
    await way(scene, [1], MINUTE)
    await late(scene, [0], 0)
    scene.look()  # only here: a schedule's firing may wait for that
    await until(lambda: scene.ran)
    scene.sees = False
    scene.jump(MINUTE + 2)
    await late(scene, [2, 3], 0)
    await LATER["dispatch"](scene, [5], 1)
    await late(scene, [4], 0)
    scene.jump(2)
    return list(await ran(scene))


@pytest.mark.promise("Later commands come after a due one")
@pytest.mark.parametrize("way", LATER)
async def test_what_comes_behind_a_moment_stands_behind_what_is_due_then(scene: Scene, way: str) -> None:
    found = {late: await standing_behind(scene, f"line-{late}", LATER[way], AT_ONCE[late]) for late in AT_ONCE}
    assert {late: each for late, each in found.items() if each != [0, 1, 2, 3, 4, 5]} == {}


LATE = {"dispatch": "bus", "dispatch_batch": "bus", "context.send": "handler", "context.send to another shard": "handler"}


@pytest.mark.promise("A moment stays")
@pytest.mark.parametrize("way", LATE)
async def test_a_moment_is_the_same_however_late_it_is_brought(scene: Scene, way: str) -> None:
    """A request in an outage, a handler that ends late, a relay that comes late; and the sender's clock is wrong."""
    at = scene.moment(10 * MINUTE)
    if LATE[way] == "bus":
        await scene.bus.dispatch(Step(line=scene.line, n=99))
        await until(lambda: scene.ran == [99])
        scene.process.open.clear()
        sending = asyncio.create_task(
            scene.bus.dispatch(Step(line=scene.line, n=0), at=at) if way == "dispatch" else batch_of(scene, at)
        )
    else:
        sender = scene.home("sender", shard_of_line=way == "context.send")
        sending = asyncio.create_task(scene.bus.dispatch(Send(sender=sender, line=scene.line, ns=[0], at=at, hold=True)))
        await sending
        await until(lambda: scene.holding)
    await asyncio.sleep(0.05)
    scene.jump(MINUTE)
    scene.process.open.set()
    scene.gate.set()
    await sending
    if way == "context.send to another shard":
        await until(lambda: written(scene))
        scene.jump(MINUTE)
        await relay(scene)
    found = await until(lambda: delayed(scene))
    assert [each.due_at for each in found] == [at]


async def batch_of(scene: Scene, at: datetime) -> object:
    return await scene.bus.dispatch_batch([Envelope(Step(line=scene.line, n=0), at=at)])


async def delayed(scene: Scene) -> list[DelayedCommand]:
    return [each async for each in scene.bus.commands.delayed(entity_type="line")]


async def written(scene: Scene) -> bool:
    return any(b":out:" in key for key in scene.server.store.data)


async def test_a_moment_that_is_past_when_it_arrives_is_now(scene: Scene) -> None:
    """Of two for one moment, accepted on both sides of it, the first comes first."""
    at = scene.moment(MINUTE)
    await scene.bus.dispatch(Step(line=scene.line, n=1), at=at, command_id="z")
    scene.jump(MINUTE + 1)
    await scene.bus.dispatch(Step(line=scene.line, n=2), command_id="y")
    await scene.bus.dispatch(Step(line=scene.line, n=3), at=at, command_id="x")
    assert await ran(scene) == [1, 2, 3]


@pytest.mark.parametrize("ahead", [-3600, 3600])
async def test_the_senders_clock_moves_no_moment(scene: Scene, monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    for module in (options, options):
        monkeypatch.setattr(module, "wall_ms", lambda: wall_ms() + 1000 * ahead)
    at = scene.moment(10 * MINUTE)
    await scene.bus.dispatch(Step(line=scene.line, n=1), at=at)
    assert [each.due_at for each in await delayed(scene)] == [at]


async def test_a_delayed_command_expires_by_its_moment(scene: Scene) -> None:
    """No worker was up at its moment, nor while it might start."""
    await scene.bus.dispatch(Step(line=scene.line, n=1), delay=MINUTE, expires=2 * MINUTE)
    await scene.bus.dispatch(Step(line=scene.line, n=2), delay=MINUTE, expires=20 * MINUTE)
    scene.jump(3 * MINUTE)
    assert await ran(scene) == [2]


async def test_the_clock_goes_back_and_the_last_that_stood_there_is_cancelled(scene: Scene) -> None:
    await scene.bus.dispatch(Step(line=scene.line, n=1), delay=MINUTE)
    scene.jump(MINUTE + 1)
    await scene.bus.dispatch(Step(line=scene.line, n=2))
    await scene.bus.dispatch(Step(line=scene.line, n=0), command_id="last")
    scene.jump(-MINUTE / 2)
    assert await scene.bus.cancel("last")
    await scene.bus.dispatch(Step(line=scene.line, n=3))
    scene.jump(MINUTE)
    assert await ran(scene) == [1, 2, 3]


@pytest.mark.parametrize("left", [True, False])
async def test_the_clock_goes_back_behind_what_was_due(scene: Scene, left: bool) -> None:
    """What stands behind it keeps its order; once it has left, nothing waits. Another delayed command of the entity is still there."""
    await scene.bus.dispatch(Step(line=scene.line, n=9), delay=60 * MINUTE)
    await scene.bus.dispatch(Step(line=scene.line, n=1), delay=MINUTE)
    scene.jump(MINUTE + 1)
    await scene.bus.dispatch(Step(line=scene.line, n=2))
    if left:
        scene.look()
        await until(lambda: scene.ran == [1, 2])
    scene.jump(-10 * MINUTE)
    await scene.bus.entities.recount()
    await scene.bus.dispatch(Step(line=scene.line, n=3))
    if not left:
        scene.jump(10 * MINUTE)
        scene.look()
    await until(lambda: scene.ran == [1, 2, 3])


async def test_the_clock_goes_back_twice(scene: Scene) -> None:
    """What stood behind something before the clock went back has left, and hides nothing of what does so now."""
    await scene.bus.dispatch(Step(line=scene.line, n=9), delay=60 * MINUTE)
    await scene.bus.dispatch(Step(line=scene.line, n=1), delay=MINUTE)
    scene.jump(MINUTE + 1)
    await scene.bus.dispatch(Step(line=scene.line, n=2))
    scene.look()
    await until(lambda: scene.ran == [1, 2])
    scene.sees = False
    scene.jump(-30)
    await scene.bus.dispatch(Step(line=scene.line, n=3), delay=1)
    scene.jump(2)
    await scene.bus.dispatch(Step(line=scene.line, n=4))
    scene.jump(-10 * MINUTE)
    await scene.bus.dispatch(Step(line=scene.line, n=5))
    scene.jump(10 * MINUTE)
    scene.look()
    await until(lambda: scene.ran == [1, 2, 3, 4, 5])


@pytest.mark.parametrize("name", ["*line:a", "line:a*", "*", "**line:a", "line:a"])
async def test_no_id_is_taken_for_what_is_kept_beside_it(scene: Scene, name: str) -> None:
    await scene.bus.dispatch(Step(line="a", n=1), delay=MINUTE, command_id=name)
    await scene.bus.dispatch(Step(line="a", n=9), delay=60 * MINUTE)
    scene.jump(MINUTE + 1)
    await scene.bus.dispatch(Step(line="a", n=2), command_id=f"*{name}")
    scene.look()
    await until(lambda: scene.ran == [1, 2])
    assert [each.command_id for each in await delayed(scene)] != []
    keys = scene.bus.session.redis.keys
    later = scene.server.store.data[keys.shards[keys.shard_of("line:a")].delayed_counts.encode()]
    assert len(later) == 3 + (b"line:a*" in later)  # of the last: how many, its number, and the last number
