"""A durable command whose end is decided, and is being undone: who cancels it is told what it will end with. Over every server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus import CommandBus, DurableContext, GiveUp, Reject
from command_bus.durable import run_tools
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Flow, ParkedFlow, Reserve, Shop
from tests.conformance.put_service import until

ENDS = {"rejected": False, "failed": False, "cancelled": True, "discarded": True}
"""The ends, and whether it will have been cancelled then."""
OUTCOMES = {"discarded": "cancelled"}


def undone_later(shop: Shop, end: str) -> None:
    """Make a script that ends like this, and is undone once `Reserve` has its gate open."""

    @shop.script
    async def order(context: DurableContext) -> Any:
        context.compensate(Reserve(sku="gate"))
        await context.step("charge", shop.effect, "charge")
        if end == "cancelled":
            await context.signal("go")
        raise Reject("sold out") if end == "rejected" else GiveUp("no stock")


async def state_is(bus: CommandBus, state: str) -> bool:
    return (await bus.commands.status("c-1")).state == state


async def decided(bus: CommandBus, end: str) -> None:
    """Bring a command to where its end is decided and undone."""
    await bus.dispatch((ParkedFlow if end == "discarded" else Flow)(order="o-1"), command_id="c-1", keep_result=True)
    if end == "cancelled":
        await until(lambda: state_is(bus, "suspended"))
        assert await bus.cancel("c-1", running=True, reason="wrong day")
    if end == "discarded":
        await until(lambda: state_is(bus, "parked"))
        (letter,) = [each async for each in bus.dead_letters.list()]
        await bus.dead_letters.discard(letter.id)


@pytest.mark.parametrize("linger", [0.05, 30.0], ids=["suspended", "with its worker"])
@pytest.mark.parametrize("end", list(ENDS))
async def test_cancel_tells_what_it_will_end_with(
    sandbox: Sandbox, end: str, linger: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tools, "LONG_LINGER", linger)
    shop, gate = Shop(sandbox), asyncio.Event()
    shop.gates["gate"] = gate
    undone_later(shop, end)
    async with sandbox.bus() as bus, bus.worker():
        await decided(bus, end)
        await until(lambda: shop.count(("reserve", "gate")))
        await until(lambda: state_is(bus, "compensating"))
        assert await bus.cancel("c-1", running=True, reason="a mistake") is ENDS[end]
        assert await bus.cancel("c-1") is False, "it has started"
        assert await state_is(bus, "compensating")
        gate.set()
        await bus.wait_idle(20)
        assert (await bus.commands.status("c-1")).outcome == OUTCOMES.get(end, end)
    assert shop.count(("reserve", "gate")) == 1
