"""Signals whose values a durable handler does not take: another type, or another cipher than the command's. None ends the command, or parks it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus import BadStep, CommandBus, CommandFailed, DurableContext, InvalidSettings
from command_bus.transport.redis.durable import lost_outcomes
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Flow, Mirror, ParkedFlow, Shop


class Other(Mirror):
    """Another cipher: the first cannot read what it encrypts."""

    def encrypt(self, data: bytes, aad: bytes) -> bytes:
        return b"another" + super().encrypt(data, aad)


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


async def unfit(bus: CommandBus, shop: Shop) -> None:
    """Bring signals that the handler does not take: one is its dict, two are texts."""
    for value in ({"yes": 1}, "yes", "no"):
        await shop.suspended()
        await bus.commands.signal("o-1", "approved", value)


@pytest.mark.parametrize("together", ["alone", "all", "first", "timeout"])
async def test_135_a_signal_that_does_not_fit_is_left_out(
    sandbox: Sandbox, shop: Shop, together: str, caplog: pytest.LogCaptureFixture
) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        approved = context.signal("approved", returns=bool, timeout=60 if together == "timeout" else None)
        if together == "first":
            assert await context.first(approved, context.sleep(60)) is approved
        value = (await context.all(approved, context.sleep(0)))[0] if together == "all" else await approved
        await context.signal("go")  # suspended: the next run gets the same signals
        return [value, await context.signal("approved")]

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(ParkedFlow(order="o-1"), command_id="o-1")
        await unfit(bus, shop)
        await shop.suspended()
        await bus.commands.signal("o-1", "approved", True)
        await shop.suspended()
        steps = {each.name: each.done for each in (await bus.commands.record("o-1")).steps if each.kind == "signal"}
        assert steps == {"approved#1": False, "approved#2": False, "approved#3": False, "approved#4": True}
        await bus.commands.signal("o-1", "approved", "for the second wait")
        await bus.commands.signal("o-1", "go")
        assert await bus.result("o-1", ParkedFlow, timeout=20) == [True, "for the second wait"]
        assert await bus.dead_letters.count() == {}
    assert sum("is left out" in each.getMessage() for each in caplog.records) == 3, "each is logged once"


async def test_a_signal_that_does_not_fit_wins_against_no_time(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        approved, late = context.signal("approved", returns=bool), context.sleep(1.0)
        return "late" if await context.first(approved, late) is late else await approved

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"), command_id="o-1")
        await shop.suspended()
        await bus.commands.signal("o-1", "approved", "yes")
        assert await bus.result("o-1", Flow, timeout=20) == "late"


async def test_what_was_left_out_is_so_for_new_code(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        return await context.signal("approved", returns=bool)

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"), command_id="o-1")
        await unfit(bus, shop)
        await shop.suspended()

        @shop.script
        async def main(context: DurableContext) -> Any:
            return await context.signal("approved", returns=str)

        shop.scripts["main"] = main
        await bus.commands.signal("o-1", "approved", "new")
        assert await bus.result("o-1", Flow, timeout=20) == "new"


async def test_a_time_limit_of_what_does_not_fit_is_not_moved(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        with pytest.raises(TimeoutError):
            await context.signal("approved", returns=bool, timeout=1.0)
        return await context.signal("approved", returns=bool)

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"), command_id="o-1")
        await unfit(bus, shop)
        await asyncio.sleep(1.0)
        await shop.suspended()
        await bus.commands.signal("o-1", "approved", True)
        assert await bus.result("o-1", Flow, timeout=20) is True


async def test_a_type_that_no_value_can_have_is_the_handlers_fault(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        return await context.signal("approved", returns=Mirror)

    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed, match="the type of what the signal 'approved' gives"):
            await bus.call(Flow(order="o-1"), timeout=20)


async def test_a_signal_that_cannot_be_decrypted_is_left_out(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        return await context.signal("go", returns=int)

    async with sandbox.bus(cipher=Mirror()) as bus, bus.worker(), sandbox.bus(cipher=Other()) as other:
        await bus.dispatch(Flow(order="o-1"), command_id="o-1")
        await shop.suspended()
        await other.commands.signal("o-1", "go", 1)
        await shop.suspended()
        await bus.commands.signal("o-1", "go", 2)
        assert await bus.result("o-1", Flow, timeout=20) == 2


@pytest.mark.parametrize("begun", [True, False])
async def test_a_signal_is_encrypted_as_its_command_is(sandbox: Sandbox, shop: Shop, begun: bool) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        return await context.signal("go", returns=int)

    async with sandbox.bus(cipher=Mirror()) as sealed, sandbox.bus() as plain:
        await plain.dispatch(Flow(order="o-1"), command_id="plain")
        await sealed.dispatch(Flow(order="o-2"), command_id="sealed")

        async def bring() -> None:
            assert await sealed.commands.signal("plain", "go", 1)
            with pytest.raises(InvalidSettings, match="has its cipher"):
                await plain.commands.signal("sealed", "go", 2)
            assert await sealed.commands.signal("sealed", "go", 3)

        if not begun:
            await bring()
        async with sealed.worker():
            if begun:
                await shop.suspended("o-1")
                await shop.suspended("o-2")
                await bring()
            assert await sealed.result("plain", Flow, timeout=20) == 1
            assert await sealed.result("sealed", Flow, timeout=20) == 3


@pytest.mark.parametrize("limit", ["MOST_SIGNALS", "MOST_SIGNAL_BYTES"])
async def test_each_awaited_name_has_room_of_its_own(
    sandbox: Sandbox, shop: Shop, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(lost_outcomes, "MOST_OTHER_SIGNALS", 2)
    monkeypatch.setattr(lost_outcomes, limit, 5)  # a number from 0 to 127 has one byte

    @shop.script
    async def order(context: DurableContext) -> Any:
        return [await context.signal(name) for name in ("item",) * 5 + ("last",)]

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"), command_id="o-1")
        await shop.suspended()
        for number in range(5):  # more than come of names that nobody waits for
            await bus.commands.signal("o-1", "item", number)
        await shop.suspended()
        with pytest.raises(BadStep, match="takes no further signal 'item'"):
            await bus.commands.signal("o-1", "item", 5)
        await bus.commands.signal("o-1", "last", 9)
        assert await bus.result("o-1", Flow, timeout=20) == [0, 1, 2, 3, 4, 9]
