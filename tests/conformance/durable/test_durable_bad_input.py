"""Durable classes and handlers that cannot be: refused when they are declared, registered, sent or started."""

from __future__ import annotations

import pytest

from command_bus import Command, DurableContext, EntityId, EntityPolicy, RegistrationError, Unique, lanes
from tests.conformance.conftest import Sandbox


class Order(Command[str], entity="order", durable=True):
    order: EntityId


def test_123_a_durable_class_is_neither_at_most_once_nor_unique() -> None:
    with pytest.raises(RegistrationError, match="at_most_once"):

        class Once(Command[str], entity="order", durable=True, delivery="at_most_once"):
            order: EntityId

    with pytest.raises(RegistrationError, match="unique"):

        class Alone(Command[str], entity="order", durable=True, unique=Unique()):
            order: EntityId


def test_123_a_durable_handler_is_a_coroutine_function(sandbox: Sandbox) -> None:
    with pytest.raises(RegistrationError, match="async def"):

        @sandbox.registry.handles(Order)
        def order(command: Order, context: DurableContext) -> str:
            return str(command.order)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [(EntityPolicy(mailbox=lanes(4)), "lane"), (EntityPolicy(delivery="at_most_once"), "at_most_once")],
    ids=["lanes", "at most once"],
)
async def test_123_no_policy_of_its_entity_type_may_contradict_a_durable_class(
    sandbox: Sandbox, policy: EntityPolicy, reason: str
) -> None:
    @sandbox.registry.handles(Order)
    async def order(command: Order, context: DurableContext) -> str:
        return await context.step("name", str, command.order)

    async with sandbox.bus(entities={"order": policy}) as bus:
        with pytest.raises(RegistrationError, match=reason):
            await bus.dispatch(Order(order="o-1"))
        with pytest.raises(RegistrationError, match=reason):
            await bus.worker().start()
        assert (await bus.stats()).accepted == 0
