"""Signals whose values a durable handler does not take: another type, or another cipher than the command's. None ends the command."""

from __future__ import annotations

from typing import Any

import pytest

from command_bus import BadSignal, BadStep, CommandFailed, DurableContext, InvalidSettings
from command_bus.transport.redis.durable import telling
from tests.conformance.conftest import Sandbox
from tests.conformance.durable_shop import Flow, ParkedFlow, Shop


class Mirror:
    """A cipher of no use: it turns the data around, and compares what it is bound to."""

    def encrypt(self, data: bytes, aad: bytes) -> bytes:
        return aad[::-1] + data[::-1]

    def decrypt(self, data: bytes, aad: bytes) -> bytes:
        if not data.startswith(aad[::-1]):
            raise ValueError("not of this place")
        return data[len(aad) :][::-1]


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


async def approved(context: DurableContext) -> int:
    """Return how many signals were refused before one was taken."""
    refused = 0
    while True:
        try:
            assert await context.signal("approved", returns=bool) is True
        except BadSignal:
            refused += 1
        else:
            return refused


async def test_135_the_next_signal_is_awaited_behind_one_that_does_not_fit(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        refused = await approved(context)
        await context.signal("go")  # suspended: the next run gets the same signals
        return refused

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"), command_id="o-1")
        for value in ({"yes": 1}, "yes", True):
            await shop.suspended()
            await bus.commands.signal("o-1", "approved", value)
        await bus.commands.signal("o-1", "go")
        assert await bus.result("o-1", Flow, timeout=20) == 2


async def test_code_that_takes_the_signal_goes_on_from_the_dead_letter(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        return await context.signal("approved", returns=bool)

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(ParkedFlow(order="o-1"), command_id="o-1")
        await shop.suspended()
        await bus.commands.signal("o-1", "approved", {"yes": 1})
        with pytest.raises(CommandFailed, match="Catch BadSignal"):
            await bus.result("o-1", ParkedFlow, timeout=20)
        assert shop.count("run") == 2  # it is not retried
        shop.script(approved)
        await bus.dead_letters.replay((await anext(bus.dead_letters.list())).id)
        await shop.suspended()
        await bus.commands.signal("o-1", "approved", True)
        assert await bus.result("o-1", ParkedFlow, timeout=20) == 1


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
    monkeypatch.setattr(telling, "MOST_OTHER_SIGNALS", 2)
    monkeypatch.setattr(telling, limit, 5)  # a number from 0 to 127 has one byte

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
