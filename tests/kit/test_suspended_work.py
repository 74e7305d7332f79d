"""Commands that wait for each other, on a test bus."""

from __future__ import annotations

import pytest

from command_bus import CallCycle, Command, DurableContext, EntityId, HandlerRegistry
from command_bus.testing import TestBus


class Left(Command[str], entity="left", durable=True):
    key: EntityId


class Right(Command[str], entity="right", durable=True):
    key: EntityId


class LeftLeaf(Command[int], entity="left"):
    key: EntityId


class RightLeaf(Command[int], entity="right"):
    key: EntityId


@pytest.fixture
def registry() -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handles(Left)
    async def left(command: Left, context: DurableContext) -> str:
        await context.sleep(1)
        return f"left {await context.call(RightLeaf(key=command.key))}"

    @registry.handles(Right)
    async def right(command: Right, context: DurableContext) -> str:
        await context.sleep(1)
        return f"right {await context.call(LeftLeaf(key=command.key))}"

    @registry.handles(LeftLeaf)
    async def left_leaf(_: LeftLeaf) -> int:
        return 1

    @registry.handles(RightLeaf)
    async def right_leaf(_: RightLeaf) -> int:
        return 2

    return registry


async def test_two_commands_that_wait_for_each_other_end(registry: HandlerRegistry, caplog: pytest.LogCaptureFixture) -> None:
    async with TestBus(registry) as bus:
        await bus.dispatch(Left(key="a"), command_id="l")
        await bus.dispatch(Right(key="a"), command_id="r")
        await bus.advance(60)
        found = []
        for name, kind in (("l", Left), ("r", Right)):
            try:
                found.append(await bus.bus.result(name, kind))
            except CallCycle as error:
                found.append("circle" if "wait for each other" in str(error) else str(error))
    assert sorted(each.split()[0] for each in found) in (["circle", "left"], ["circle", "right"])
    assert not [each for each in caplog.records if each.exc_info]
