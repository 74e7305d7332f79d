"""Keys of steps for the world outside: the same for as long as what a step did stands."""

from __future__ import annotations

from typing import Any

import pytest

from command_bus import CommandBus, CommandFailed, DurableContext, GiveUp
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Flow, ParkedFlow, Refund, Shop
from tests.conformance.put_service import until


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


async def letter_of(bus: CommandBus) -> Any:
    return await anext(bus.dead_letters.list())


@pytest.mark.parametrize("first", [True, False], ids=["behind a step", "first step"])
@pytest.mark.parametrize("kind", [Flow, ParkedFlow])
async def test_a_step_has_its_key_again_when_its_letter_is_replayed(
    sandbox: Sandbox, shop: Shop, kind: type[Flow | ParkedFlow], first: bool
) -> None:
    keys: list[str | None] = []

    @shop.script
    async def order(context: DurableContext) -> Any:
        async def charge() -> int:
            keys.append(context.step_key)
            if len(keys) < 3:
                raise GiveUp("the answer was lost behind the effect")
            return 1

        if first:
            await context.step("before", shop.effect, "before")
        return await context.step("charge", charge)

    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed):
            await bus.call(kind(order="o-1"), command_id="o-1", timeout=20)
        await bus.dead_letters.replay((await letter_of(bus)).id)
        await until(bus.dead_letters.count)
        await bus.dead_letters.replay((await letter_of(bus)).id)
        assert await bus.result("o-1", kind, timeout=20) == 1
        await bus.wait_idle(10)
    assert keys[0] is not None
    assert keys == keys[:1] * 3
    assert await shop.side_records() == []


async def test_what_was_compensated_has_other_keys_when_it_is_replayed(sandbox: Sandbox, shop: Shop) -> None:
    keys: list[str | None] = []

    @shop.script
    async def order(context: DurableContext) -> Any:
        async def charge() -> int:
            keys.append(context.step_key)
            return 1

        context.compensate(Refund(account="a-1"))
        await context.step("charge", charge)
        if len(keys) == 1:
            raise GiveUp("the printer is on fire")
        return 1

    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed):
            await bus.call(Flow(order="o-1"), timeout=20)
        command_id = await bus.dead_letters.replay((await letter_of(bus)).id)
        assert await bus.result(command_id, Flow, timeout=20) == 1
    assert shop.count(("refund", "a-1")) == 1
    assert len(set(keys)) == 2


async def test_each_step_has_a_key_of_its_own_also_in_its_thread(sandbox: Sandbox, shop: Shop) -> None:
    keys: list[str | None] = []

    @shop.script
    async def order(context: DurableContext) -> Any:
        def in_thread() -> int:
            keys.append(context.step_key)
            return 1

        async def in_loop() -> int:
            keys.append(context.step_key)
            return 1

        keys.append(context.step_key)
        await context.step("charge", in_thread)
        await context.step("charge", in_loop)
        await context.step("ship", in_loop)
        keys.append(context.step_key)
        return 1

    async with sandbox.bus() as bus, bus.worker():
        await bus.call(Flow(order="o-1"), timeout=20)
    outside, *inside, behind = keys
    assert outside is behind is None
    assert None not in inside
    assert len(set(inside)) == 3
