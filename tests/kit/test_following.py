"""Status, progress, log and cancel in `TestBus`, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from command_bus import (
    Command,
    CommandCancelled,
    CommandContext,
    DurableContext,
    EntityId,
    HandlerRegistry,
    ProgressInfo,
    RetryPolicy,
    UnknownCommand,
)
from command_bus.testing import TestBus

registry = HandlerRegistry()


class Load(Command[int], entity="shop", retry=RetryPolicy(attempts=2, delay=30, jitter=0)):
    shop: EntityId
    fails: bool = False


class Approve(Command[str], entity="request", durable=True):
    request: EntityId


@registry.handles(Load)
async def load(command: Load, context: CommandContext) -> int:
    for share in (0.25, 0.5, 0.75):
        context.progress(share, f"to {share}")
        context.log("written", share=share, attempt=context.attempt)
        await asyncio.sleep(2)
        if command.fails and context.attempt == 1 and share == 0.5:
            raise ConnectionError("the source is asleep")
    return 7


@registry.handles(Approve)
async def approve(command: Approve, context: DurableContext) -> str:
    context.progress(0.5, "asked")
    context.log("asked", by="mail")
    return str(await context.signal("answer"))


async def test_where_a_command_is_while_time_passes() -> None:
    async with TestBus(registry) as bus:
        await bus.dispatch(Load(shop="s-1", fails=True), command_id="c-1")
        commands = bus.bus.commands
        assert (await commands.status("c-1")).state == "waiting"
        await bus.advance(3)
        assert (await commands.status("c-1")).state == "running"
        assert (await commands.record("c-1")).progress.share == 0.5
        await bus.advance(2)
        assert (await commands.status("c-1")).state == "retrying"
        await bus.advance(32)
        status, record = await commands.status("c-1"), await commands.record("c-1")
        assert (status.state, status.attempt) == ("running", 2)
        facts = [(each.text, each.facts) for each in record.log]
        assert facts == [
            ("written", {"share": share, "attempt": attempt}) for attempt, share in ((1, 0.25), (1, 0.5), (2, 0.25), (2, 0.5))
        ]
        await bus.run_until_idle()
        assert ((await commands.status("c-1")).outcome, (await commands.record("c-1")).log) == ("completed", ())
        with pytest.raises(UnknownCommand):
            await commands.status("no-such")


async def test_a_caller_hears_of_its_progress() -> None:
    heard: list[float | None] = []

    def hear(progress: ProgressInfo) -> None:
        heard.append(progress.share)

    async with TestBus(registry) as bus:
        assert await bus.call(Load(shop="s-1"), timeout=60, on_progress=hear) == 7
    assert heard == [0.25, 0.5, 0.75]


async def test_what_a_durable_command_waits_for() -> None:
    async with TestBus(registry) as bus:
        await bus.dispatch(Approve(request="r-1"), command_id="a-1")
        await bus.run_until_idle()
        commands = bus.bus.commands
        status, record = await commands.status("a-1"), await commands.record("a-1")
        assert status.state == "suspended"
        assert status.suspension is not None
        assert [(each.kind, each.name) for each in status.suspension.waits_for] == [("signal", "answer")]
        assert (record.progress.note, record.log[0].facts) == ("asked", {"by": "mail"})
        await commands.signal("a-1", "answer", "yes")
        await bus.run_until_idle()
        assert await bus.bus.result("a-1", Approve) == "yes"
        assert [each.outcome async for each in commands.progress("a-1")] == ["completed"]


async def test_a_handler_is_cancelled() -> None:
    async with TestBus(registry) as bus:
        await bus.dispatch(Load(shop="s-1"), command_id="c-1")
        await bus.advance(1)
        cancelling = asyncio.create_task(bus.bus.commands.cancel("c-1", running=True, reason="wrong day"))
        await bus.advance(5)
        assert await cancelling
        with pytest.raises(CommandCancelled, match="wrong day"):
            await bus.bus.result("c-1", Load)
