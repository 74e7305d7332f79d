"""`call(on_progress=…)`: the caller hears how far a plain, threaded or durable handler is, while it waits. Over every server."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from command_bus import Command, CommandBus, CommandContext, CommandFailed, DurableContext, EntityId, InvalidCommand, ProgressInfo
from command_bus.transport.redis.durable.commands import RedisDurableCommands
from tests.conformance.conftest import Sandbox


class Load(Command[int], entity="shop"):
    shop: EntityId
    fails: bool = False


class Thread(Command[int], entity="shop"):
    shop: EntityId


class Trip(Command[int], entity="trip", durable=True):
    trip: EntityId


class Journey(Command[str], entity="journey", durable=True):
    journey: EntityId


class Station:
    """Handlers that report, and go on once that was heard."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.heard: list[ProgressInfo] = []
        self.free = threading.Event()
        registry = sandbox.registry

        @registry.handles(Load)
        async def load(command: Load, context: CommandContext) -> int:
            context.progress(0.5, "half")
            await asyncio.to_thread(self.free.wait, 20)
            if command.fails:
                raise ValueError("no shelf")
            return 1

        @registry.handles(Thread)
        def thread(command: Thread, context: CommandContext) -> int:
            context.progress(0.5, "half")
            self.free.wait(20)
            return 2

        @registry.handles(Trip)
        async def trip(command: Trip, context: DurableContext) -> int:
            context.progress(0.5, "half")
            await context.signal("go")
            return 3

        @registry.handles(Journey)
        async def journey(command: Journey, context: DurableContext) -> str:
            wrong: dict[str, Any] = {"on_progress": print}
            return str(await context.call(Trip(trip="t-1"), **wrong))

    def hear(self, progress: ProgressInfo) -> None:
        self.heard.append(progress)
        self.free.set()


@pytest.fixture
def station(sandbox: Sandbox) -> Station:
    return Station(sandbox)


@pytest.mark.promise("Progress is written in time")
@pytest.mark.parametrize(("command", "result"), [(Load(shop="a"), 1), (Thread(shop="a"), 2), (Trip(trip="t"), 3)])
async def test_a_caller_hears_how_far_it_is(sandbox: Sandbox, station: Station, command: Command[int], result: int) -> None:
    async with sandbox.bus() as bus, bus.worker():

        async def hear(progress: ProgressInfo) -> None:
            station.hear(progress)
            if isinstance(command, Trip):
                await bus.commands.signal("c-1", "go")

        assert await bus.call(command, command_id="c-1", timeout=20, on_progress=hear) == result
    assert [(each.share, each.note, each.outcome) for each in station.heard] == [(0.5, "half", "")]


async def test_its_error_reaches_the_caller(sandbox: Sandbox, station: Station) -> None:
    async with sandbox.bus() as bus, bus.worker():
        shop = bus.entity("shop", "a")
        with pytest.raises(CommandFailed, match="no shelf"):
            await shop.call(Load(shop="a", fails=True), timeout=20, on_progress=station.hear)
    assert station.heard


async def test_an_error_of_the_listener_ends_the_wait_and_not_the_command(sandbox: Sandbox, station: Station) -> None:
    def hear(progress: ProgressInfo) -> None:
        station.hear(progress)
        raise ZeroDivisionError("of the listener")

    async with sandbox.bus() as bus, bus.worker():
        station.free.clear()
        with pytest.raises(ZeroDivisionError):
            await bus.call(Load(shop="a"), command_id="c-1", timeout=20, on_progress=hear)
        assert await bus.result("c-1", Load, timeout=20) == 1


async def test_who_does_not_ask_looks_at_nothing(sandbox: Sandbox, station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fields(*args: Any) -> Any:
        raise AssertionError("a look that nobody asked for")

    station.free.set()
    monkeypatch.setattr(RedisDurableCommands, "fields", fields)
    async with sandbox.bus() as bus, bus.worker():
        assert await bus.call(Load(shop="a"), timeout=20) == 1
        station.free.clear()
        with pytest.raises(AssertionError):
            await bus.call(Load(shop="a"), timeout=20, on_progress=print)
        station.free.set()


async def test_132_a_listener_that_cannot_be(sandbox: Sandbox, station: Station) -> None:
    wrong: Any = "print"
    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(InvalidCommand, match="a function of one ProgressInfo, not str"):
            await bus.call(Load(shop="a"), on_progress=wrong)
        with pytest.raises(CommandFailed, match="no caller waits for a durable call meanwhile"):
            await bus.call(Journey(journey="j"), timeout=20)


async def test_many_callers_hear_of_their_own(sandbox: Sandbox, station: Station) -> None:
    async def one(bus: CommandBus, shop: str) -> list[float | None]:
        heard: list[float | None] = []

        def hear(progress: ProgressInfo) -> None:
            heard.append(progress.share)
            if len(callers) == len([each for each in callers.values() if each]):
                station.free.set()

        callers[shop] = heard
        await bus.call(Load(shop=shop), timeout=20, on_progress=hear)
        return heard

    callers: dict[str, list[float | None]] = {}
    async with sandbox.bus() as bus, bus.worker():
        shops = [f"s-{number}" for number in range(5)]
        assert await asyncio.gather(*(one(bus, shop) for shop in shops)) == [[0.5]] * 5
