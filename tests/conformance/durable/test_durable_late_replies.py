"""A durable call whose time was over: its reply comes to the inbox of the run that waited, and changes nothing. Over every server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus import CommandFailed, DurableContext, GiveUp
from command_bus.durable import waits
from command_bus.transport.redis.durable.side_records import RedisSideRecords
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Flow, Refund, Reserve, Shop
from tests.conformance.put_service import until


@pytest.mark.promise("A stored step is not repeated")
@pytest.mark.parametrize("comes", ["while the end of the time is stored", "after that"])
async def test_a_reply_behind_the_end_of_its_time_changes_nothing(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, comes: str
) -> None:
    shop, replies, told, store = Shop(sandbox), list[bytes](), waits.Call._told, RedisSideRecords.store
    shop.gates["s-1"] = asyncio.Event()

    def notes_reply(self: waits.Call, record: bytes) -> None:
        told(self, record)
        replies.append(record)

    async def replied() -> None:
        shop.gates["s-1"].set()
        await until(lambda: len(replies))

    def stores(self: RedisSideRecords, *args: Any, **options: Any) -> Any:
        storing = store(self, *args, **options)
        is_end = any(note.value == waits.TIMED_OUT for note in args[2])
        return _behind(replied(), storing) if is_end and comes.startswith("while") else storing

    monkeypatch.setattr(waits.Call, "_told", notes_reply)
    monkeypatch.setattr(RedisSideRecords, "store", stores)

    @shop.script
    async def order(context: DurableContext) -> Any:
        call = context.call(Reserve(sku="s-1", end="reject"), undo=Refund(account="a-1"), timeout=0.2)
        (end,) = await asyncio.gather(
            call, return_exceptions=True
        )  # in a task of its own: so the run stays, and its inbox is read
        await replied()
        raise GiveUp(f"it ended with {type(end).__name__}")

    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed, match="it ended with TimeoutError"):
            await bus.call(Flow(order="o-1"), timeout=20)
    assert len(replies) == 1
    assert shop.count(("refund", "a-1")) == 0, (
        "it is rejected, so there is nothing to undo, though its handler saw that time was over"
    )


async def _behind(first: Any, then: Any) -> Any:
    await first
    return await then
