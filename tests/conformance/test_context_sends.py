"""Handlers send by their context: with the worker's bus, in the name of the running command."""

from __future__ import annotations

import pytest

from command_bus import CallCycle, Command, CommandContext, CommandFailed, EntityId, HandlerRegistry
from tests.conformance.conftest import Sandbox

pytestmark = pytest.mark.server


class Outer(Command[int], entity="outer"):
    outer: EntityId
    threaded: bool = False
    own: bool = False


class OuterThread(Command[int], entity="outer"):
    outer: EntityId
    wrongly: bool = False


class Inner(Command[int], entity="inner"):
    inner: EntityId
    value: int


class Noted(Command[None], entity="inner"):
    inner: EntityId


class Wrong(Command[None], entity="outer"):
    outer: EntityId


@pytest.fixture
def notes() -> list[tuple[str, str | None]]:
    return []


@pytest.fixture
def registry(notes: list[tuple[str, str | None]]) -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handles(Outer)
    async def outer(command: Outer, context: CommandContext) -> int:
        if command.own:
            await context.call(Outer(outer=command.outer), timeout=5)
        receipt = await context.dispatch(Noted(inner="i"), command_id=f"noted-{context.command_id}")
        assert receipt.status == "accepted"
        return await context.call(Inner(inner="i", value=2), timeout=20)

    @registry.handles(OuterThread)
    def outer_thread(command: OuterThread, context: CommandContext) -> int:
        context.blocking.dispatch(Noted(inner="i"))
        return context.blocking.call(Inner(inner="i", value=3), timeout=20)

    @registry.handles(Inner)
    async def inner(command: Inner) -> int:
        return command.value * 10

    @registry.handles(Noted)
    async def noted(command: Noted, context: CommandContext) -> None:
        notes.append((context.correlation_id, context.causation_id))

    @registry.handles(Wrong)
    async def wrong(command: Wrong, context: CommandContext) -> None:
        context.blocking.dispatch(Noted(inner="i"))

    return registry


@pytest.mark.parametrize("kind", [Outer, OuterThread])
async def test_a_handler_dispatches_and_calls(
    sandbox: Sandbox, registry: HandlerRegistry, notes: list[tuple[str, str | None]], kind: type[Outer | OuterThread]
) -> None:
    async with sandbox.bus(registry=registry) as bus, bus.worker():
        assert await bus.call(kind(outer="o"), command_id="first", timeout=30) in (20, 30)
        await bus.wait_idle(20)
    assert notes == [("first", "first")]


async def test_a_call_to_its_own_entity_is_refused(sandbox: Sandbox, registry: HandlerRegistry) -> None:
    async with sandbox.bus(registry=registry) as bus, bus.worker():
        with pytest.raises(CallCycle, match="holds itself"):
            await bus.call(Outer(outer="o", own=True), timeout=60)
        assert [each.attempts async for each in bus.dead_letters.list()] == [1], "it is not retried"


async def test_a_blocking_coroutine_is_reported(sandbox: Sandbox, registry: HandlerRegistry) -> None:
    async with sandbox.bus(registry=registry) as bus, bus.worker():
        with pytest.raises(CommandFailed, match=r"without `\.blocking`"):
            await bus.call(Wrong(outer="o"), timeout=60)
