"""The test bus under applications of other shapes: a container, calls between handlers, shards, lanes, signatures, several workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from command_bus import (
    Command,
    CommandBus,
    CommandContext,
    CommandTimeout,
    EntityId,
    EntityPolicy,
    Envelope,
    HandlerRegistry,
    Middleware,
    QueueFull,
    RetryPolicy,
    lanes,
)
from command_bus.testing import TestBus


class Ask(Command[int], entity="asker"):
    asker: EntityId


class Answer(Command[int], entity="answerer", retry=RetryPolicy(attempts=3, delay=30.0)):
    answerer: EntityId


class Count(Command[int], entity="counter"):
    counter: EntityId
    number: int


@pytest.fixture
def registry() -> HandlerRegistry:
    return HandlerRegistry()


async def test_a_container_and_its_resources(registry: HandlerRegistry) -> None:
    providers = pytest.importorskip("dependency_injector.providers")
    from command_bus.container import Container

    life: list[str] = []

    async def open_gateway() -> AsyncIterator[str]:
        life.append("open")
        yield "gateway"
        life.append("closed")

    class Shop(Container):
        gateway = providers.Resource(open_gateway)

    @registry.handles(Answer)
    async def answer(command: Answer) -> int:
        return len(await shop.gateway())

    shop = Shop(registry=providers.Object(registry))
    async with TestBus(bus=shop.bus()) as bus:
        bus.crash_after("handled")
        assert await bus.call(Answer(answerer="a"), timeout=120) == 7
        assert life[0] == "open"
    assert life[-1] == "closed"


async def test_handlers_that_call_are_driven_too(registry: HandlerRegistry) -> None:
    @registry.handles(Ask)
    async def ask(command: Ask) -> int:
        return await bus.call(Answer(answerer="b"), timeout=200) + 1

    @registry.handles(Answer)
    async def answer(command: Answer, context: CommandContext) -> int:
        if context.attempt < 3:
            raise OSError("not yet")
        return context.attempt

    async with TestBus(registry) as bus:
        bus.crash_after("handled", Answer)
        assert await bus.call(Ask(asker="a"), timeout=300) == 4
        bus.assert_dispatched(Answer, answerer="b", count=2)  # the crash took the asker's handler with it, which asked again


@pytest.mark.parametrize(
    "options",
    [
        {"shards": 3},
        {"entities": {"counter": EntityPolicy(mailbox=lanes(2))}},
        {"signing_keys": {"k1": "a secret of at least thirty-two bytes"}, "require_signatures": True},
        {"workers": 3},
    ],
    ids=["shards", "lanes", "signatures", "workers"],
)
async def test_order_in_every_setting(registry: HandlerRegistry, options: dict[str, Any]) -> None:
    seen: dict[str, list[int]] = {}

    @registry.handles(Count)
    async def count(command: Count) -> int:
        seen.setdefault(str(command.counter), []).append(command.number)
        return command.number

    async with TestBus(registry, **options) as bus:
        bus.crash_after("settled", nth=5)
        await bus.dispatch_batch(Envelope(Count(counter=f"c{number % 4}", number=number)) for number in range(40))
        await bus.run_until_idle()
        assert bus.crashed == 1
        firsts = {
            name: list(dict.fromkeys(numbers)) for name, numbers in seen.items()
        }  # what was under way in the dead worker ran again
        assert {name: numbers for name, numbers in firsts.items() if numbers != sorted(numbers)} == {}
        assert sum(map(len, firsts.values())) == 40
        assert sum(map(len, seen.values())) <= 44


async def test_the_application_s_middleware_runs_within(registry: HandlerRegistry) -> None:
    steps: list[str] = []

    class Noting(Middleware):
        async def handle(self, command: Any, context: CommandContext, proceed: Any) -> Any:
            steps.append("before")
            value = await proceed()
            steps.append("after")
            return value

    @registry.handles(Count)
    async def count(command: Count) -> int:
        steps.append("handler")
        return command.number

    async with TestBus(registry, middleware=[Noting()]) as bus:
        assert await bus.call(Count(counter="c", number=1)) == 1
    assert steps == ["before", "handler", "after"]


async def test_time_outs_and_limits_are_those_of_the_bus(registry: HandlerRegistry) -> None:
    @registry.handles(Answer)
    async def answer(command: Answer) -> int:
        raise OSError("never")

    async with TestBus(registry, max_depth=3) as bus:
        await bus.bus.entity("answerer", "b").pause()
        for _ in range(3):
            await bus.dispatch(Answer(answerer="b"))
        with pytest.raises(QueueFull):
            await bus.dispatch(Answer(answerer="b"))
        with pytest.raises(CommandTimeout):
            await bus.call(Answer(answerer="a"), timeout=10)
        assert [sent.accepted for sent in bus.sent][:4] == [True, True, True, False]


@pytest.mark.slow
async def test_two_buses_in_one_test_leap_together(registry: HandlerRegistry) -> None:
    @registry.handles(Count)
    async def count(command: Count) -> int:
        return command.number

    async with TestBus(registry) as one, TestBus(registry) as two:
        await two.dispatch(Count(counter="c", number=2), delay=50)
        await two.run_until_idle()
        await one.advance(60)
        assert (one.replies, two.replies) == ([], [2])


def test_a_loop_whose_time_cannot_leap_is_refused(registry: HandlerRegistry) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def use() -> None:
        async with TestBus(registry):
            pass

    with (
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        pytest.raises(RuntimeError, match="asyncio's own event loop"),
    ):
        runner.run(use())


async def test_an_open_bus_is_refused(registry: HandlerRegistry) -> None:
    async with CommandBus.in_memory(registry=registry) as bus:
        with pytest.raises(TypeError, match="must not be open"):
            TestBus(bus=bus)


def test_a_bus_that_a_test_left_open_is_new_to_the_next(registry: HandlerRegistry) -> None:
    """Each test has its own event loop, and the first one's is gone: an application's bus belongs to no loop between tests."""
    application = CommandBus("redis://elsewhere", registry=registry)
    registry.handles(Answer)(lambda _: 42)

    async def ask(bus: TestBus) -> int:
        return await bus.call(Answer(answerer="a"), timeout=5)

    for _ in range(2):
        bus = TestBus(bus=application)
        assert asyncio.run(ask(bus)) == 42
        bus.release()
