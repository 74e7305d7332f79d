"""Code that does not fit what is stored parks a durable command: nothing is undone before somebody has seen it. What its record shows."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from command_bus import CommandFailed, DurableContext, RetryPolicy
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Flow, Refund, Reserve, Shop
from tests.conformance.put_service import until


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


def changing(shop: Shop) -> list[str]:
    """Make a script whose step has other arguments in its second run; return what it charges."""
    amounts = ["5", "7"]

    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.call(Reserve(sku="s-1"), undo=Refund(account="a-1"))
        context.compensate(Refund(account="a-2"))
        await context.step("charge", shop.effect, amounts[0])
        if len(amounts) > 1:
            amounts.pop(0)
            raise ValueError("the light went out")
        return amounts[0]

    return amounts


@pytest.mark.parametrize("then", ["replay", "discard"])
async def test_a_mismatch_parks_and_undoes_nothing_until_somebody_decides(sandbox: Sandbox, shop: Shop, then: str) -> None:
    amounts = changing(shop)
    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed, match="something else under this name"):
            await bus.call(Flow(order="o-1"), command_id="o-1", timeout=20)
        letter = await anext(bus.dead_letters.list())
        assert letter.parked
        assert [each for each in shop.log if each[0] == "refund"] == []
        steps = (await bus.commands.record("o-1")).steps
        assert [(each.name, each.done, each.command_id) for each in steps if each.kind == "undo"] == [("Refund", False, "")] * 2
        assert {each.entity for each in steps if each.kind == "undo"} == {"account:a-1", "account:a-2"}
        assert [each.name for each in steps if each.kind == "call"] == ["Reserve"]
        if then == "discard":
            await bus.dead_letters.discard(letter.id)
        else:
            amounts[:] = ["5"]  # code that fits
            await bus.dead_letters.replay(letter.id)
            assert await bus.result("o-1", Flow, timeout=20) == "5"
        await bus.wait_idle(10)
    undone = [("refund", "a-2"), ("refund", "a-1")] if then == "discard" else []
    assert [each for each in shop.log if each[0] == "refund"] == undone
    assert shop.count("5") == 1


async def test_what_is_never_awaited_warns(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        with pytest.warns(RuntimeWarning, match=r"context\.step\('charge', …\) was never awaited"):
            context.step("charge", shop.effect, "charge")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
        gc.collect()
        return await context.step("pack", shop.effect, "pack", retry=RetryPolicy(attempts=1))

    async with sandbox.bus() as bus, bus.worker():
        assert await bus.call(Flow(order="o-1"), timeout=20) == "PACK"
    assert shop.count("charge") == 0


async def test_what_a_suspended_run_has_not_come_to_does_not_warn(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        first, second = context.signal("first"), context.signal("second")
        return [await first, await second]

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"), command_id="o-1")
        for name in ("first", "second"):
            await shop.suspended()
            await bus.commands.signal("o-1", name, name)
        assert await bus.result("o-1", Flow, timeout=20) == ["first", "second"]


@pytest.mark.parametrize(
    ("then", "stored"),
    [("the same", "by name"), ("swapped", "by name"), ("removed", "by name"), ("the same", "by place"), ("removed", "by place")],
)
async def test_new_code_finds_what_was_first_or_parks(sandbox: Sandbox, shop: Shop, then: str, stored: str) -> None:
    """A release before this one stored the place of what had won."""
    deployed: list[str] = []

    @shop.script
    async def order(context: DurableContext) -> Any:
        parts = [context.signal("paid")]
        if deployed != ["removed"]:
            parts.insert(0 if deployed == ["swapped"] else 1, context.call(Reserve(sku="s-1")))
        won = await context.first(*parts)
        await context.signal("go")
        return await won

    async with sandbox.bus() as bus:
        async with bus.worker():
            await bus.dispatch(Flow(order="o-1"), command_id="o-1")
            await shop.suspended()
            await until(lambda: shop.count(("reserve", "s-1")))
            await until(lambda: field_of_first(sandbox))
            await shop.suspended()
        key, field = await field_of_first(sandbox)
        if stored == "by place":
            await write(sandbox, key, field, b"1")
        deployed.append(then)
        await bus.commands.signal("o-1", "go")
        async with bus.worker():
            if then == "removed":
                with pytest.raises(CommandFailed, match="not among what the handler waits for now"):
                    await bus.result("o-1", Flow, timeout=20)
                assert (await anext(bus.dead_letters.list())).parked
            else:
                assert await bus.result("o-1", Flow, timeout=20) == 1


async def field_of_first(sandbox: Sandbox) -> Any:
    key = next(key for key in await sandbox.keys() if "}:x:o-1" in key)
    client = sandbox.client()
    found = [name for name in await client.hkeys(key) if name.startswith(b"f:")]
    await client.aclose()
    return (key, found[0]) if found else None


async def write(sandbox: Sandbox, key: str, field: bytes, value: bytes) -> None:
    client = sandbox.client()
    await client.hset(key, field, value)
    await client.aclose()
