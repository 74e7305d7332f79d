"""Calls from handlers that hold places of limits: what they call starts under their places, so that they never wait for each other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from command_bus import Command, CommandBus, CommandContext, EntityId, EntityPolicy, InvalidCommand, Limit, Rate, RetryPolicy
from command_bus.messages.context import Running, current_command
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until

both = pytest.mark.parametrize("shards", [1, 3])
TIMEOUT = 20.0


class Visit(Command[int], entity="shop", retry=RetryPolicy(attempts=2, delay=0.01, jitter=0)):
    """Calls the next shop, so many deep."""

    shop: EntityId
    deep: int = 0
    dispatches: bool = False
    fails: bool = False


class Ask(Command[int], entity="partner", limits=(Limit("partner", key="partner"),)):
    """Calls another one under the same bucket of the named limit, so many deep."""

    number: EntityId
    partner: str
    deep: int = 0


class Calls:
    """The commands that run: with a caller, and without one."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.started: list[str] = []
        self.all_in = asyncio.Event()
        self.inner = asyncio.Event()
        self.inner.set()
        self.callers = 1
        self.running = self.outer = self.most_outer = self.failures = 0
        sandbox.registry.handles(Visit)(self.visit)
        sandbox.registry.handles(Ask)(self.ask)

    @contextmanager
    def inside(self, context: CommandContext) -> Iterator[None]:
        is_outer = context.causation_id is None
        self.running += 1
        self.outer += is_outer
        self.most_outer = max(self.most_outer, self.outer)
        if self.running >= self.callers:
            self.all_in.set()
        try:
            yield
        finally:
            self.running -= 1
            self.outer -= is_outer

    async def visit(self, command: Visit, context: CommandContext) -> int:
        self.started.append(str(command.shop))
        with self.inside(context):
            await self.all_in.wait()
            if command.fails and context.attempt == 1 and not command.deep:
                self.failures += 1
                raise RuntimeError
            if not command.deep:
                await self.inner.wait()
                return 0
            next_one = Visit(shop=f"{command.shop}.", deep=command.deep - 1, fails=command.fails)
            if command.dispatches:
                await context.dispatch(next_one)
                await self.inner.wait()
                return 1
            return 1 + await context.call(next_one, timeout=TIMEOUT)

    async def ask(self, command: Ask, context: CommandContext) -> int:
        with self.inside(context):
            await self.all_in.wait()
            if not command.deep:
                return 0
            next_one = Ask(number=f"{command.number}.", partner=command.partner, deep=command.deep - 1)
            return 1 + await context.call(next_one, timeout=TIMEOUT)


@pytest.fixture
def calls(sandbox: Sandbox) -> Calls:
    return Calls(sandbox)


def limited(*limits: Limit) -> dict[str, EntityPolicy]:
    return {"shop": EntityPolicy(limits=limits)}


async def _nothing_is_left(bus: CommandBus, name: str) -> bool:
    lines = await bus.limits.list(name)
    return all((line.used, line.waiting) == (0, 0) for line in lines)


@pytest.mark.promise("Calls under one limit do not deadlock")
@both
@pytest.mark.parametrize("deep", [1, 3])
async def test_callers_that_have_all_places_do_not_wait_for_each_other(
    sandbox: Sandbox, calls: Calls, shards: int, deep: int
) -> None:
    calls.callers = 3
    async with (
        sandbox.bus(shards=shards, entities=limited(Limit(concurrency=3, scope="type"))) as bus,
        bus.worker(concurrency=50),
    ):
        replies = await asyncio.gather(*(bus.call(Visit(shop=f"s{n}", deep=deep), timeout=TIMEOUT) for n in range(9)))
        await until(lambda: _nothing_is_left(bus, "type:shop"))
    assert replies == [deep] * 9
    assert calls.most_outer == 3


@pytest.mark.promise("Calls under one limit do not deadlock")
@both
async def test_a_call_passes_the_places_of_a_named_limit(sandbox: Sandbox, calls: Calls, shards: int) -> None:
    calls.callers = 2
    async with sandbox.bus(shards=shards, limits=(Limit("partner", concurrency=1),)) as bus, bus.worker(concurrency=50):
        asked = [Ask(number=f"{name}{n}", partner=name, deep=2) for n in range(3) for name in ("a", "b")]
        assert await asyncio.gather(*(bus.call(each, timeout=TIMEOUT) for each in asked)) == [2] * 6
        await until(lambda: _nothing_is_left(bus, "partner"))
    assert calls.most_outer == 2


@pytest.mark.promise("Calls under one limit do not deadlock")
@both
async def test_a_called_command_takes_its_token_all_the_same(sandbox: Sandbox, calls: Calls, shards: int) -> None:
    """It passes those that wait for a place, because its caller keeps one; but it waits for its token."""
    calls.callers = 2
    limit = Limit(rate=Rate(1, per=0.4, burst=2), concurrency=2, scope="type")
    async with sandbox.bus(shards=shards, entities=limited(limit)) as bus, bus.worker(concurrency=50):
        began = asyncio.get_running_loop().time()
        replies = await asyncio.gather(*(bus.call(Visit(shop=f"s{n}", deep=1), timeout=TIMEOUT) for n in range(4)))
        took = asyncio.get_running_loop().time() - began
        await until(lambda: _nothing_is_left(bus, "type:shop"))
    assert replies == [1] * 4
    assert took >= (8 - 2) * 0.4 - 0.1, "eight starts, two of them at once"
    assert calls.most_outer == 2


@pytest.mark.promise("Calls under one limit do not deadlock")
@both
async def test_a_dispatch_waits_for_a_place(sandbox: Sandbox, calls: Calls, shards: int) -> None:
    """Nobody waits for it, so it can wait."""
    calls.inner.clear()
    async with (
        sandbox.bus(shards=shards, entities=limited(Limit(concurrency=1, scope="type"))) as bus,
        bus.worker(concurrency=50),
    ):
        await bus.dispatch(Visit(shop="s", deep=1, dispatches=True))
        await until(lambda: _waiting(bus, 1))
        assert (calls.running, calls.outer) == (1, 1)
        calls.inner.set()
        await bus.wait_idle(TIMEOUT)
    assert calls.started == ["s", "s."]


async def _is(value: bool) -> bool:
    return value


async def _waiting(bus: CommandBus, count: int) -> bool:
    return await bus.limits.waiting() == count


@pytest.mark.promise("Calls under one limit do not deadlock")
@both
async def test_a_called_command_that_fails_gives_no_place_of_its_caller_away(sandbox: Sandbox, calls: Calls, shards: int) -> None:
    """It is retried under the same place, which its caller has until it ends itself."""
    async with (
        sandbox.bus(shards=shards, entities=limited(Limit(concurrency=1, scope="type"))) as bus,
        bus.worker(concurrency=50),
    ):
        calls.inner.clear()
        first = asyncio.create_task(bus.call(Visit(shop="s", deep=2, fails=True), timeout=TIMEOUT))
        await until(lambda: _is(calls.failures == 1 and calls.running == 3))
        await bus.dispatch(Visit(shop="other"))
        await until(lambda: _waiting(bus, 1))
        (line,) = await bus.limits.list("type:shop")
        assert (line.used, calls.outer) == (1, 1)
        calls.inner.set()
        assert await first == 2
        await bus.wait_idle(TIMEOUT)
        await until(lambda: _nothing_is_left(bus, "type:shop"))
    assert calls.most_outer == 1


@pytest.mark.promise("Calls under one limit do not deadlock")
async def test_a_caller_whose_lease_is_over_lends_nothing(sandbox: Sandbox, calls: Calls) -> None:
    """An envelope can say anything; the server believes the places of leases alone."""
    async with sandbox.bus(entities=limited(Limit(concurrency=1, scope="type"))) as bus, bus.worker(concurrency=50):
        calls.inner.clear()
        await bus.dispatch(Visit(shop="a"))
        await until(lambda: _is(calls.running == 1))
        with _as_handler({"shop:a": "1-0", "shop:nobody": "2-0"}, bus):
            waits = asyncio.create_task(bus.call(Visit(shop="b"), timeout=TIMEOUT))
            await until(lambda: _waiting(bus, 1))
        assert calls.running == 1
        calls.inner.set()
        assert await waits == 0


@contextmanager
def _as_handler(callers: Any, bus: CommandBus) -> Iterator[None]:
    """Send as a handler that says so of its callers."""
    home = bus.sender.builder.home
    reset = current_command.set(Running("shop:x", "c", "c", "Visit", callers=callers, home=home))
    try:
        yield
    finally:
        current_command.reset(reset)


@pytest.mark.parametrize("callers", [{"shop:a": 7}, {"shop:a\tx": "1-0"}, {"shop:a": "1-0\n"}, {"": "1-0"}])
async def test_98_callers_that_are_none_are_refused_and_the_worker_goes_on(sandbox: Sandbox, calls: Calls, callers: Any) -> None:
    calls.all_in.set()
    async with sandbox.bus(entities=limited(Limit(concurrency=1, scope="type"))) as bus, bus.worker():
        with _as_handler(callers, bus), pytest.raises(InvalidCommand, match="option 'c' is of the wrong type"):
            await bus.call(Visit(shop="b"), timeout=TIMEOUT)
        assert await bus.call(Visit(shop="b"), timeout=TIMEOUT) == 0
