"""Ends that a worker decides without the handler: a durable command that has something to undo is parked, and loses nothing. Over every server."""

from __future__ import annotations

from typing import Any

import pytest

from command_bus import Command, CommandBus, CommandRejected, DurableContext, EntityId, HandlerRegistry, Reject
from tests.conformance.conftest import Sandbox
from tests.conformance.durable_shop import Flow, Refund, Reserve, Shop
from tests.conformance.put_service import until

FLOW = Flow.spec().name


class NewFlow(Command[Any], entity="order", durable=True, name=FLOW):
    """The class of a later deploy, which refuses what was sent before."""

    order: EntityId
    script: int


async def parked(bus: CommandBus) -> Any:
    return next((letter for letter in [each async for each in bus.dead_letters.list()] if letter.parked), None)


def without_it(shop: Shop) -> HandlerRegistry:
    return undoing(shop)


def refusing_it(shop: Shop) -> HandlerRegistry:
    registry = undoing(shop)

    @registry.handles(NewFlow)
    async def new_flow(command: NewFlow, context: DurableContext) -> None: ...

    return registry


def undoing(shop: Shop) -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handles(Refund)
    async def refund(command: Refund) -> None:
        shop.log.append(("refund", str(command.account)))

    return registry


@pytest.mark.parametrize("then", ["replayed", "discarded"])
@pytest.mark.parametrize(("deploy", "reason"), [(without_it, "no_handler"), (refusing_it, "invalid")])
async def test_what_has_begun_is_parked_by_a_worker_that_cannot_run_it(
    sandbox: Sandbox, deploy: Any, reason: str, then: str
) -> None:
    shop = Shop(sandbox)

    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.call(Reserve(sku="s-1"), undo=Refund(account="a-1"))
        await context.signal("go")
        raise Reject("no stock")

    async with sandbox.bus(unknown_grace=0.0) as bus:
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        async with bus.worker():
            await shop.suspended()
        await bus.commands.signal(receipt.command_id, "go")
        async with sandbox.bus(registry=deploy(shop), unknown_grace=0.0) as other, other.worker():
            letter = await until(lambda: parked(bus))
            assert letter.reason == reason
            assert shop.count(("refund", "a-1")) == 0
            if then == "discarded":
                await bus.dead_letters.discard(letter.id)
                assert await bus.dead_letters.count() == {}
        if then == "replayed":
            await bus.dead_letters.replay(letter.id)
        async with bus.worker():
            if then == "replayed":
                with pytest.raises(CommandRejected, match="no stock"):
                    await receipt.result(timeout=10)
            await bus.wait_idle(20)
    assert shop.count(("refund", "a-1")) == 1
    assert await shop.side_records() == []
