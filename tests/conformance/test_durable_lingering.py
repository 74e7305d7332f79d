"""How long a worker waits itself for the outcome of a durable call: a second, where that is in nobody's way; else the command is suspended soon."""

from __future__ import annotations

from typing import Any

import pytest

from command_bus import DurableContext, EntityPolicy, Limit
from tests.conformance.conftest import Sandbox
from tests.conformance.durable_shop import Flow, Reserve, Shop

LIMITED = {"order": EntityPolicy(limits=(Limit(concurrency=1, scope="type"),))}


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    shop = Shop(sandbox)

    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        return await context.call(Reserve(sku="s-1", seconds=0.3))

    return shop


@pytest.mark.parametrize(
    ("settings", "runs"),
    [
        pytest.param({}, 1, id="few wait"),
        pytest.param({"max_waiting": 0}, 2, id="many wait"),
        pytest.param({"entities": LIMITED}, 2, id="it has a place that others may wait for"),
    ],
)
async def test_a_call_that_ends_soon_costs_no_second_start(
    sandbox: Sandbox, shop: Shop, settings: dict[str, Any], runs: int
) -> None:
    async with sandbox.bus(**settings) as bus, bus.worker():
        assert await bus.call(Flow(order="o-1"), timeout=10) == 1
    assert shop.count("run") == runs
