"""The table *waits at the head × what happens meanwhile*: a command starts at its moment of the server, once, and what stands behind it follows."""

from __future__ import annotations

import asyncio

import pytest

from tests.conformance.put_service import until
from tests.selection import quick
from tests.tables.head_waits import MEANWHILE, MINUTE, WAITS, Scene, Step


@pytest.mark.parametrize("meanwhile", quick(list(MEANWHILE), ["away", "worker_clock_ahead"]))
@pytest.mark.parametrize("wait", WAITS)
async def test_a_wait_ends_at_its_moment_and_is_not_overtaken(wait: str, meanwhile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    async with scene.bus() as bus:
        await scene.start()
        began = scene.now()
        await WAITS[wait](scene, bus)
        for n in (1, 2):
            await bus.dispatch(Step(line="a", n=n))
        await asyncio.sleep(0.05)
        await MEANWHILE[meanwhile](scene)
        scene.jump(began + MINUTE - 1 - scene.now())
        await asyncio.sleep(0.1)
        assert scene.ran == []
        scene.jump(2)
        if meanwhile == "away":
            scene.jump(10 * MINUTE)
            await scene.start()
        await until(lambda: len(scene.ran) == 3)
        await scene.stop()
    assert [n for n, _ in scene.ran] == [0, 1, 2]
    assert all(at >= began + MINUTE for _, at in scene.ran)
    assert len(scene.tried) in (0, 2)
