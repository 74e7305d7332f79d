"""Arguments and results of steps: what a function changes the handler does not see, as it would not in a later run; types are looked at first."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel, Field

from command_bus import BadStep, DurableContext, RetryPolicy
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Flow, Shop
from tests.conformance.put_service import until

if TYPE_CHECKING:  # as a rule of ruff asks for
    from decimal import Decimal


@dataclass
class Basket:
    items: list[str] = field(default_factory=list[str])


class Order(BaseModel):
    items: list[str] = Field(default_factory=list[str])


ARGUMENTS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "a list": ([], lambda value: value.append("x")),
    "a map": ({}, lambda value: value.update(a="x")),
    "a set": (set(), lambda value: value.add("x")),
    "a queue": (deque(), lambda value: value.append("x")),
    "a list in a map in a list": ([{"a": []}], lambda value: value[0]["a"].append("x")),
    "a list in a tuple": (([],), lambda value: value[0].append("x")),
    "a dataclass": (Basket(), lambda value: value.items.append("x")),
    "a model": (Order(), lambda value: value.items.append("x")),
    "bytes": (bytearray(b"a"), lambda value: value.extend(b"x")),
}


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


async def _result(sandbox: Sandbox, shop: Shop) -> Any:
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"), command_id="o-1", keep_result=True)
        await shop.suspended()
        await bus.commands.signal("o-1", "go")
        return await bus.result("o-1", Flow, timeout=20)


async def test_each_call_has_arguments_of_its_own(sandbox: Sandbox, shop: Shop) -> None:
    seen: dict[str, list[Any]] = {name: [] for name in ARGUMENTS}

    def changing(name: str) -> Callable[[Any], Awaitable[None]]:
        async def change(value: Any) -> None:
            seen[name].append(deepcopy(value))
            ARGUMENTS[name][1](value)
            if len(seen[name]) == 1:
                raise OSError

        return change

    again = RetryPolicy(attempts=2, delay=0, jitter=0)

    @shop.script
    async def order(context: DurableContext) -> Any:
        changed: list[str] = []
        for name, (value, _) in ARGUMENTS.items():
            mine = deepcopy(value)
            await context.step("change", changing(name), mine, key=name.replace(" ", "_"), retry=again)
            changed += [name] * (mine != value)
        await context.signal("go")
        return changed

    assert await _result(sandbox, shop) == []
    assert seen == {name: [value, value] for name, (value, _) in ARGUMENTS.items()}


async def test_what_is_no_data_is_handed_over_as_it_is(sandbox: Sandbox, shop: Shop) -> None:
    client = object()

    async def same(given: object, items: list[str]) -> bool:
        return given is client

    @shop.script
    async def order(context: DurableContext) -> Any:
        found = await context.step("same", same, client, [], key="1")
        await context.signal("go")
        return found

    assert await _result(sandbox, shop) is True


async def test_a_plain_function_that_returns_an_awaitable_says_what_that_comes_to(sandbox: Sandbox, shop: Shop) -> None:
    async def work() -> Order:
        return Order(items=["a"])

    def awaitable() -> Awaitable[Order]:
        return work()

    def coroutine() -> Coroutine[Any, Any, Order]:
        return work()

    @shop.script
    async def order(context: DurableContext) -> Any:
        found = [await context.step("a", awaitable), await context.step("c", coroutine)]
        await context.signal("go")
        return [each.items for each in found]

    assert await _result(sandbox, shop) == [["a"], ["a"]]


async def test_a_parameter_that_only_type_checkers_know_hides_no_result(sandbox: Sandbox, shop: Shop) -> None:
    async def work(amount: Decimal | None) -> Order:
        return Order(items=["a"])

    @shop.script
    async def order(context: DurableContext) -> Any:
        found = [await context.step("work", work, None), await context.step("made", Order)]
        await context.signal("go")
        return [each.items for each in found]

    assert await _result(sandbox, shop) == [["a"], []]


async def test_a_type_that_cannot_be_stored_is_refused_before_the_function_is_called(sandbox: Sandbox, shop: Shop) -> None:
    async def work() -> asyncio.Lock:
        shop.log.append("called")
        return asyncio.Lock()

    @shop.script
    async def order(context: DurableContext) -> Any:
        try:
            await context.step("lock", work)
        except BadStep as error:
            shop.log.append(str(error))
            raise

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"))
        await until(lambda: shop.log)
    assert "called" not in shop.log
    assert "returns=" in shop.log[0]
