"""Commands that a handler sends with its settlement: with it or not at all, each once, in their order."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Literal

import pytest

from command_bus import (
    Command,
    CommandContext,
    CommandFailed,
    CommandRejected,
    EntityId,
    InvalidCommand,
    QueueFull,
    Reject,
    RetryPolicy,
    Unique,
)
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until

End = Literal["return", "reject", "fail", "fail twice"]


class Order(Command[int], entity="order", retry=RetryPolicy(attempts=3, delay=0.0)):
    order: EntityId
    ships: int = 1
    end: End = "return"
    always: bool = False
    threaded: bool = False


class OrderThread(Command[int], entity="order"):
    order: EntityId
    ships: int = 1


class ParkedOrder(Command[int], entity="order", retry=RetryPolicy(attempts=1), on_poison="park"):
    order: EntityId


class Ship(Command[None], entity="parcel"):
    parcel: EntityId
    number: int


class Work:
    """The handlers, and what they saw."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.shipped: list[tuple[str, int]] = []
        self.contexts: list[CommandContext] = []
        self.ids: list[str] = []
        registry = sandbox.registry

        @registry.handles(Order)
        async def order(command: Order, context: CommandContext) -> int:
            self._send(command, context)
            if command.end == "reject":
                raise Reject("sold out")
            if command.end == "fail" or (command.end == "fail twice" and context.attempt < 3):
                raise ValueError("the server that packs is away")
            return command.ships

        @registry.handles(OrderThread)
        def in_thread(command: OrderThread, context: CommandContext) -> int:
            self._send(command, context)
            return command.ships

        @registry.handles(ParkedOrder)
        async def parked(command: ParkedOrder, context: CommandContext) -> int:
            context.send(Ship(parcel="p-0", number=0), on="always")
            raise ValueError("no stock")

        @registry.handles(Ship)
        async def ship(command: Ship, context: CommandContext) -> None:
            self.shipped.append((str(command.parcel), command.number))
            self.contexts.append(context)

    def _send(self, command: Order | OrderThread, context: CommandContext) -> None:
        for number in range(command.ships):
            sent = Ship(parcel=f"p-{number % 3}", number=number)
            on = "always" if isinstance(command, Order) and command.always else "completed"
            self.ids.append(context.send(sent, on=on))  # type: ignore[arg-type]


@pytest.fixture
def work(sandbox: Sandbox) -> Work:
    return Work(sandbox)


@pytest.mark.parametrize("kind", [Order, OrderThread])
@pytest.mark.parametrize("shards", [1, 4])
async def test_what_a_handler_sends_comes_once_and_in_its_order(
    sandbox: Sandbox, work: Work, shards: int, kind: type[Order | OrderThread]
) -> None:
    async with sandbox.bus(shards=shards) as bus, bus.worker():
        assert await bus.call(kind(order="o-1", ships=60), timeout=10) == 60
        await bus.wait_idle(10)
        stats = await bus.stats()
    for parcel in range(3):
        of_one = [number for name, number in work.shipped if name == f"p-{parcel}"]
        assert of_one == list(range(parcel, 60, 3))
    assert (stats.accepted, stats.settled, stats.depth) == (61, 61, 0)
    assert not [key for key in await sandbox.keys() if ":out:" in key]


@pytest.mark.promise("Follow-ups come with the settlement")
@pytest.mark.parametrize("shards", [1, 4])
async def test_a_handler_that_fails_sends_nothing_until_it_returns(sandbox: Sandbox, work: Work, shards: int) -> None:
    async with sandbox.bus(shards=shards) as bus, bus.worker():
        await bus.call(Order(order="o-1", ships=3, end="fail twice"), timeout=10)
        await bus.wait_idle(10)
    assert sorted(work.shipped) == [("p-0", 0), ("p-1", 1), ("p-2", 2)]
    assert len(work.ids) == 9
    assert len(set(work.ids)) == 3, "the ids are those of the first attempt"


@pytest.mark.parametrize("end", ["reject", "fail"])
@pytest.mark.parametrize("always", [False, True])
async def test_other_ends_send_only_what_is_always_sent(sandbox: Sandbox, work: Work, end: End, always: bool) -> None:
    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises((CommandRejected, CommandFailed)):
            await bus.call(Order(order="o-1", ships=2, end=end, always=always), timeout=10)
        await bus.wait_idle(10)
    assert sorted(work.shipped) == ([("p-0", 0), ("p-1", 1)] if always else [])


async def test_a_parked_command_sends_nothing(sandbox: Sandbox, work: Work) -> None:
    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed):
            await bus.call(ParkedOrder(order="o-1"), timeout=10)
        await asyncio.sleep(0.1)
    assert work.shipped == []


@pytest.mark.parametrize("shards", [1, 4])
async def test_a_full_or_drained_entity_takes_what_was_sent(sandbox: Sandbox, work: Work, shards: int) -> None:
    async with sandbox.bus(shards=shards, max_depth=2) as bus:
        await bus.entities.of("parcel").drain("moving house")
        async with bus.worker():
            await bus.call(Order(order="o-1", ships=30), timeout=10)
            await bus.wait_idle(10)
    assert len(work.shipped) == 30


@pytest.mark.parametrize("shards", [1, 4])
async def test_a_paused_entity_keeps_what_was_sent(sandbox: Sandbox, work: Work, shards: int) -> None:
    async with sandbox.bus(shards=shards) as bus:
        await bus.entities.of("parcel").pause("stocktaking")
        async with bus.worker():
            await bus.call(Order(order="o-1", ships=6), timeout=10)
            while (await bus.stats()).depth != 6 or [key for key in await sandbox.keys() if ":out:" in key]:
                await asyncio.sleep(0.01)
            assert work.shipped == []
            await bus.entities.of("parcel").resume()
            await bus.wait_idle(10)
    assert [number for name, number in work.shipped if name == "p-0"] == [0, 3]


async def test_it_carries_on_the_ids_of_its_cause(sandbox: Sandbox, work: Work) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.call(Order(order="o-1"), command_id="first", timeout=10)
        await bus.wait_idle(10)
    (context,) = work.contexts
    assert (context.correlation_id, context.causation_id) == ("first", "first")
    assert context.command_id == work.ids[0]


@pytest.mark.parametrize("shards", [1, 4])
async def test_options_of_what_is_sent(sandbox: Sandbox, shards: int) -> None:
    seen: dict[str, Any] = {}

    @sandbox.registry.handles(Order)
    async def order(command: Order, context: CommandContext) -> int:
        loop = asyncio.get_running_loop()
        seen["sent"] = loop.time()
        for number in range(4):  # of them some stand in another shard
            context.send(Ship(parcel=f"p-{number}", number=number), delay=0.3, headers={"by": "ann"}, priority="high")
        return 1

    @sandbox.registry.handles(Ship)
    async def ship(command: Ship, context: CommandContext) -> None:
        seen.setdefault("headers", []).append(context.headers)
        seen["came"] = min(seen.get("came", 1e9), asyncio.get_running_loop().time())

    async with sandbox.bus(shards=shards) as bus, bus.worker():
        await bus.call(Order(order="o-1"), timeout=10)
        while (await bus.stats()).depth != 4 and not seen.get("came"):
            await asyncio.sleep(0.005)  # those on their way to another shard may be missed by one look
        assert "came" not in seen
        await bus.wait_idle(10)
    assert seen["headers"] == [{"by": "ann"}] * 4
    assert seen["came"] - seen["sent"] > 0.25


async def test_a_handler_sends_to_its_own_entity(sandbox: Sandbox) -> None:
    runs: list[int] = []

    @sandbox.registry.handles(Order)
    async def order(command: Order, context: CommandContext) -> int:
        runs.append(command.ships)
        if command.ships:
            context.send(Order(order=command.order, ships=command.ships - 1))
        return command.ships

    async with sandbox.bus() as bus, bus.worker():
        await bus.call(Order(order="o-1", ships=30), timeout=10)
        await bus.wait_idle(10)
    assert runs == list(range(30, -1, -1))


async def test_too_many_are_refused_at_the_call(sandbox: Sandbox) -> None:
    errors: list[str] = []

    @sandbox.registry.handles(Order)
    async def order(command: Order, context: CommandContext) -> int:
        for number in range(1000):
            context.send(Ship(parcel="p-0", number=number))
        with pytest.raises(InvalidCommand, match="1,000") as raised:
            context.send(Ship(parcel="p-0", number=1000))
        errors.append(str(raised.value))
        return 1

    @sandbox.registry.handles(Ship)
    async def ship(command: Ship) -> None: ...

    async with sandbox.bus() as bus, bus.worker():
        await bus.call(Order(order="o-1"), timeout=20)
        await bus.wait_idle(20)
        assert (await bus.stats()).settled == 1001
    assert errors


async def test_118_what_cannot_be_sent_is_refused_at_the_call(sandbox: Sandbox) -> None:
    class Folded(Command[None], entity="parcel", unique=Unique("k")):
        parcel: EntityId

    @sandbox.registry.handles(Order)
    async def order(command: Order, context: CommandContext) -> int:
        with pytest.raises(InvalidCommand, match=r"context\.dispatch"):
            context.send(Folded(parcel="p-0"))
        with pytest.raises(InvalidCommand, match="delay"):
            context.send(Ship(parcel="p-0", number=0), delay=-1)
        return 7

    async with sandbox.bus() as bus, bus.worker():
        assert await bus.call(Order(order="o-1"), timeout=10) == 7
        await bus.wait_idle(10)
        assert (await bus.stats()).settled == 1


def test_a_context_made_by_hand_tells_what_was_sent() -> None:
    context = CommandContext(command_id="c-1")
    assert context.send(Ship(parcel="p-0", number=0)) == ""
    assert context.sent == (Ship(parcel="p-0", number=0),)


async def test_a_handler_that_is_over_sends_nothing(sandbox: Sandbox) -> None:
    kept: list[CommandContext] = []

    @sandbox.registry.handles(Order)
    async def order(command: Order, context: CommandContext) -> int:
        kept.append(context)
        return 1

    async with sandbox.bus() as bus, bus.worker():
        await bus.call(Order(order="o-1"), timeout=10)
        with pytest.raises(RuntimeError, match="is over"):
            kept[0].send(Ship(parcel="p-0", number=0))


class Watch(Command[None], entity="watch", retry=RetryPolicy(attempts=1)):
    watch: EntityId


@pytest.mark.parametrize("threaded", [False, True])
async def test_133_what_is_sent_to_a_shard_beyond_twice_its_limit_is_refused(
    sandbox: Sandbox, work: Work, threaded: bool
) -> None:
    refused = asyncio.Event()
    loop = asyncio.get_running_loop()

    def watch(context: CommandContext) -> None:
        """Send until that is refused, and again until it is not."""
        while _is_taken(context):
            time.sleep(0.02)
        loop.call_soon_threadsafe(refused.set)
        while not _is_taken(context):
            time.sleep(0.02)

    if threaded:

        @sandbox.registry.handles(Watch)
        def in_thread(command: Watch, context: CommandContext) -> None:
            watch(context)
    else:

        @sandbox.registry.handles(Watch)
        async def handle(command: Watch, context: CommandContext) -> None:
            await asyncio.to_thread(watch, context)

    async with sandbox.bus(max_total_depth=10) as bus, bus.worker():
        parcel = bus.entity("parcel", "p-0")
        await parcel.pause()
        watching = asyncio.create_task(bus.call(Watch(watch="w-1"), timeout=20))
        await bus.call(Order(order="o-1", ships=25 * 3), timeout=20)  # it is not known yet how full it is, so all are taken
        await asyncio.wait_for(refused.wait(), 20)
        await parcel.resume()
        await watching
        await bus.wait_idle(20)
    assert work.shipped.count(("p-9", 0)) >= 2


def _is_taken(context: CommandContext) -> bool:
    try:
        context.send(Ship(parcel="p-9", number=0))
    except QueueFull as error:
        return error.limit != "total"
    return True


class Turn(Command[None], entity="wheel"):
    wheel: EntityId
    number: int = 0


async def test_137_a_command_that_sends_itself_goes_on_until_it_is_paused_and_purged(sandbox: Sandbox) -> None:
    turns: list[int] = []

    @sandbox.registry.handles(Turn)
    async def turn(command: Turn, context: CommandContext) -> None:
        turns.append(command.number)
        if command.wheel == "w":
            context.send(Turn(wheel="w", number=command.number + 1))

    async with sandbox.bus() as bus, bus.worker(concurrency=1):
        await bus.dispatch(Turn(wheel="w"))
        for number in range(1, 4):
            await bus.call(Turn(wheel=f"other-{number}", number=-number), timeout=10)  # has its turn meanwhile
        seen = len(turns)
        await until(lambda: len(turns) > seen + 100)
        wheel = bus.entity("wheel", "w")
        await wheel.drain("stop")  # what is settled has sent it already, so it is not refused
        seen = len(turns)
        await until(lambda: len(turns) > seen + 10)
        await wheel.pause("stop")

        async def is_held() -> bool:
            return (await bus.stats()).in_flight == 0

        await until(is_held)
        assert await wheel.purge() == 1
        assert (await bus.stats()).depth == 0
        await wheel.resume()
        await bus.wait_idle(10)
    assert [number for number in turns if number < 0] == [-1, -2, -3]
    own = [number for number in turns if number >= 0]
    assert own == list(range(len(own)))
