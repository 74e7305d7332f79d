"""An error of a step that the handler has caught stays; one that leaves the handler is tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from command_bus import BadStep, CommandFailed, DurableContext
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Flow, ParkedFlow, Reserve, Shop
from tests.conformance.put_service import until


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


class Declined(Exception): ...


def _failing(shop: Shop, name: str, times: int) -> Callable[[], Awaitable[str]]:
    """Return a function that fails so many times, then works."""

    async def function() -> str:
        shop.log.append(name)
        if shop.count(name) <= times:
            raise Declined(name)
        return name

    return function


async def _result(sandbox: Sandbox) -> Any:
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"), command_id="o-1", keep_result=True)
        return await bus.result("o-1", Flow, timeout=20)


async def test_a_charge_that_has_failed_is_not_tried_beside_the_one_that_took_its_place(sandbox: Sandbox, shop: Shop) -> None:
    first = _failing(shop, "first card", 1)

    @shop.script
    async def order(context: DurableContext) -> Any:
        try:
            paid = await context.step("first", first)
        except Declined:
            paid = await context.step("second", shop.effect, "second card")
        await context.signal("go")
        return paid

    async with sandbox.bus() as bus:
        async with bus.worker():
            await bus.dispatch(Flow(order="o-1"), command_id="o-1", keep_result=True)
            await shop.suspended()
        record = await bus.commands.record("o-1")
        assert [(each.name, each.done) for each in record.steps] == [("second#1", True), ("first#1", False)]
        async with bus.worker():
            await bus.commands.signal("o-1", "go")
            assert await bus.result("o-1", Flow, timeout=20) == "SECOND CARD"
    assert shop.log == ["first card", "second card"]


async def test_the_error_is_stored_before_another_function_begins(sandbox: Sandbox, shop: Shop) -> None:
    """The second function takes its worker down: what it did may be, so the first is not called again."""
    first = _failing(shop, "first card", 1)
    stored: list[Any] = []

    async def second() -> str:
        for key in await shop.side_records():
            client = sandbox.client(int(key.partition(":")[2].partition("}")[0]))
            stored.extend(bytes(name).decode() for name in await client.hkeys(key))  # type: ignore[misc]
            await client.aclose()
        return "second"

    @shop.script
    async def order(context: DurableContext) -> Any:
        try:
            return await context.step("first", first)
        except Declined:
            return await context.step("second", second)

    assert await _result(sandbox) == "second"
    assert "x:first#1~1~1" in stored


async def test_a_poll_is_called_once_after_each_wait(sandbox: Sandbox, shop: Shop) -> None:
    poll = _failing(shop, "poll", 4)

    @shop.script
    async def order(context: DurableContext) -> Any:
        while True:
            shop.log.append("run")
            try:
                return await context.step("poll", poll)
            except Declined:
                await context.sleep(0.15)
                shop.log.append("slept")

    assert await _result(sandbox) == "poll"
    polls = [place for place, what in enumerate(shop.log) if what == "poll"]
    assert len(polls) == 5
    assert all("slept" in shop.log[one:other] for one, other in pairwise(polls))


@pytest.mark.parametrize("how", ["as it is", "from it", "in a group"])
async def test_an_error_that_leaves_the_handler_after_more_steps_is_tried_again(sandbox: Sandbox, shop: Shop, how: str) -> None:
    charge = _failing(shop, "charge", 2)

    @shop.script
    async def order(context: DurableContext) -> Any:
        try:
            return await context.step("charge", charge)
        except Declined as error:
            await context.step("tell", shop.effect, "tell")
            if how == "from it":
                raise RuntimeError("not paid") from error
            if how == "in a group":
                raise ExceptionGroup("not paid", [error]) from None
            raise

    assert await _result(sandbox) == "charge"
    assert (shop.count("charge"), shop.count("tell")) == (3, 1)


async def test_another_error_leaves_what_was_caught_as_it_is(sandbox: Sandbox, shop: Shop) -> None:
    """The second charge fails while the first's error is handled: Python notes that one as its context, not as its cause."""
    first, second = _failing(shop, "first", 1), _failing(shop, "second", 2)

    @shop.script
    async def order(context: DurableContext) -> Any:
        try:
            return await context.step("first", first)
        except Declined:
            await context.step("tell", shop.effect, "tell")
            return await context.step("second", second)

    assert await _result(sandbox) == "second"
    assert (shop.count("first"), shop.count("second"), shop.count("tell")) == (1, 3, 1)


async def test_a_replay_tries_what_had_failed_again(sandbox: Sandbox, shop: Shop) -> None:
    charge = _failing(shop, "charge", 3)

    @shop.script
    async def order(context: DurableContext) -> Any:
        try:
            return await context.step("charge", charge)
        except Declined:
            await context.step("tell", shop.effect, "tell")
            raise

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(ParkedFlow(order="o-1"), command_id="o-1", keep_result=True)
        with pytest.raises(CommandFailed, match="Declined"):
            await bus.result("o-1", ParkedFlow, timeout=20)
        [letter] = [letter async for letter in bus.dead_letters.list()]
        await bus.dead_letters.replay(letter.id)
        await until(lambda: shop.count("charge") == 4)
        assert await bus.result("o-1", ParkedFlow, timeout=20) == "charge"
    assert shop.count("tell") == 1


async def test_a_result_that_cannot_be_stored_is_no_reason_to_call_again(sandbox: Sandbox, shop: Shop) -> None:
    async def make() -> str:
        shop.log.append("made")
        return "x" * 3_000_000

    @shop.script
    async def order(context: DurableContext) -> Any:
        try:
            return await context.step("make", make)
        except BadStep:
            await context.sleep(1.2)
            return "too large"

    assert await _result(sandbox) == "too large"
    assert shop.count("made") == 1


async def test_of_several_at_a_time_each_has_its_own(sandbox: Sandbox, shop: Shop) -> None:
    names = ["a", "b", "c"]
    functions = {name: _failing(shop, name, name != "b") for name in names}

    @shop.script
    async def order(context: DurableContext) -> Any:
        steps = [context.step("s", functions[name], key=name) for name in names]
        found = await asyncio.gather(*steps, return_exceptions=True)
        held = await context.call(Reserve(sku="s", seconds=0.2))
        await context.sleep(1.2)
        return [*map(str, found), held]

    assert await _result(sandbox) == ["a", "b", "c", 1]
    assert all(shop.count(name) == 1 for name in names)
