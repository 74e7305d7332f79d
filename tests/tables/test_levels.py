"""The table *where an entity is × which of its commands leave × their levels*: it waits as the highest of those that are left."""

from __future__ import annotations

from itertools import product

import pytest

from command_bus.messages.policies import PRIORITIES
from command_bus.transport.flows import flow_of
from command_bus.transport.redis.admin.shares import RedisShares
from command_bus.transport.steps import Started
from tests.conformance import conftest
from tests.conformance.harness import TransportHarness, done
from tests.conformance.steps.test_line_steps import LOW, OPEN, fill, run_all, use_line
from tests.tables.levels import PLACES, WAYS, Scene, remove

harness, sandbox, servers = conftest.harness, conftest.sandbox, conftest.servers


@pytest.mark.parametrize("place", PLACES)
async def test_an_entity_has_the_level_of_what_is_left(place: str, harness: TransportHarness) -> None:
    wrong, number = list[str](), 0
    await fill(harness, LOW, OPEN if place == "waits_in_the_line" else 1, "other:")
    for number, (way, levels) in enumerate(product(WAYS, product(PRIORITIES, repeat=3))):
        scene, box = Scene(harness), f"box:{number}"
        await use_line(harness, scene.worker)
        leave, come = WAYS[way]
        if place == "runs" and 0 in leave:
            continue
        for at, level in enumerate(levels):
            await scene.put(box, at, level, unique=bool(come) and at in leave)
        await PLACES[place](scene, box)
        if come:
            await scene.put(box, 3, come[0], unique=True)
        else:
            await remove(scene, box, *leave)
        remaining = [*(level for at, level in enumerate(levels) if at not in leave), *come]
        found = [await scene.level(box)]
        if place == "runs" and scene.lease is not None:
            for _ in range(len(remaining) - 1):
                assert isinstance(await scene.worker.do(scene.lease, done("c")), Started)
                found.append(await scene.level(box))
        expected = [min(remaining[at:], key=PRIORITIES.index) for at in range(len(found))]
        if found != expected:
            wrong.append(f"{levels}, {way}: {found}, not {expected}")
    assert not wrong, f"{len(wrong)} of {number + 1}:\n" + "\n".join(wrong[:20])


@pytest.mark.parametrize(("weight", "then"), [(0.001, 1.0), (0.001, None), (0.01, 100.0), (50.0, 1.0)])
async def test_a_weight_that_is_changed_holds_for_what_was_paid_before(
    harness: TransportHarness, weight: float, then: float | None
) -> None:
    """One that starts once in a thousand has paid for a thousand."""
    worker, shares = harness.worker(), RedisShares(harness.connections, harness.keys, patience=5)
    await shares.put("acme", weight)
    await fill(harness, flow_of("normal", "other"), 400, "box:o")
    await fill(harness, flow_of("normal", "acme"), 300, "box:a")
    await run_all(harness, worker, most=3 * OPEN)
    await shares.put("acme", then)
    await run_all(harness, worker, most=OPEN)  # what was ready before
    started = sum(name.startswith("box:a") for name in await run_all(harness, worker, most=50, count=1))
    share = (then or 1.0) / ((then or 1.0) + 1)
    assert abs(started - 50 * share) <= 4
