"""The table *a last firing × what happens meanwhile*: with `overlap="cancel"` it ends once and for all, and its entity goes on."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress

import pytest

from command_bus import CommandBus, CommandCancelled, TransportUnavailable, every
from command_bus.testing.simulated.live import Process
from tests.conformance.put_service import until
from tests.selection import quick
from tests.tables.overlaps import LASTS, MEANWHILE, REQUESTS, Scene


@pytest.mark.parametrize("meanwhile", quick(MEANWHILE, ["drained_once_it_is_asked"]))
@pytest.mark.parametrize("last", quick(LASTS, ["runs", "is_suspended", "lost_its_worker"]))
async def test_the_last_firing_ends_and_is_not_started_again(last: str, meanwhile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    async with scene.bus() as bus:
        await _begin(scene, bus, last)
        await MEANWHILE[meanwhile](scene, bus)
        await _end(scene, bus, last)


@pytest.mark.parametrize("requests", quick(REQUESTS, [REQUESTS[-2]]))
async def test_a_process_that_dies_leaves_nothing_that_holds_the_entity(requests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    async with scene.bus() as bus:
        await _begin(scene, bus, "runs")
        process = Process(scene.server)
        sent = iter(range(1, requests))
        async with AsyncExitStack() as stack:
            other = await stack.enter_async_context(scene.bus(process))
            process.after.append(lambda: None if next(sent, 0) else process.kill())
            stack.enter_context(suppress(TransportUnavailable, TimeoutError))
            async with asyncio.timeout(0.5):
                await scene.fire(other)
                await asyncio.sleep(0.5)
        await _end(scene, bus, "runs")


async def _begin(scene: Scene, bus: CommandBus, last: str) -> None:
    row = LASTS[last]
    if last == "waits":
        await bus.dispatch(row.command, command_id="other")
    await bus.schedules.put("nightly", row.command, every(3600), overlap="cancel")
    scene.first = await bus.schedules.trigger("nightly")
    await scene.fire(bus)
    await scene.start()
    await row.begin(scene, bus)
    scene.second = await bus.schedules.trigger("nightly")


async def _end(scene: Scene, bus: CommandBus, last: str) -> None:
    row, entity = LASTS[last], bus.entity("shop", "s")
    scene.fires.set()
    if row.stays:
        await asyncio.sleep(0.2)
        assert (await entity.show()).entity.state == "parked"
    else:
        with pytest.raises(CommandCancelled):
            await bus.result(scene.first, timeout=8)
        await bus.cancel("other", running=True)
        await until(lambda: scene.starts[scene.second], 8)
        await until(lambda: _is_idle(bus))
    assert not await entity.resume(), "something holds it"
    assert scene.starts[scene.first] <= row.starts
    await scene.stop()


async def _is_idle(bus: CommandBus) -> bool:
    return (await bus.stats()).depth == 0
