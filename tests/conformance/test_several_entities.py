"""Commands of several entities: one run at the head of all lines, and each act on one of the lines. Over every server."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import pytest

from command_bus import (
    BatchResult,
    BusSettings,
    Command,
    CommandBus,
    CommandCancelled,
    CommandContext,
    CommandRejected,
    Draining,
    DurableContext,
    EntityId,
    EntityOf,
    EntityPolicy,
    Event,
    InvalidCommand,
    QueueFull,
    RegistrationError,
    Reject,
    RetryPolicy,
    Unique,
    every,
    per_entity,
)
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until

ONCE = RetryPolicy(attempts=1)


class Deposit(Command[str], entity="account", retry=ONCE):
    account: EntityId
    note: str = ""


class Transfer(Command[str], entity="account", retry=RetryPolicy(attempts=3, delay=0.01), on_poison="park"):
    source: EntityId
    target: EntityId
    note: str = ""


class Skipped(Command[str], entity="account", retry=ONCE, on_poison="skip"):
    source: EntityId
    target: EntityId
    note: str = ""


class Pay(Command[None], entity="order"):
    order: EntityId
    account: Annotated[str, EntityOf("account")]


class Many(Command[None], entity="account"):
    first: EntityId
    second: EntityId
    third: EntityId
    fourth: EntityId
    fifth: EntityId
    sixth: EntityId
    seventh: EntityId
    eighth: EntityId


class Lasting(Command[None], entity="account", durable=True):
    source: EntityId
    target: EntityId


class Log:
    """A record of what ran: notes by entity, in the order of the ends, and what runs now."""

    def __init__(self) -> None:
        self.ended: dict[str, list[str]] = defaultdict(list)
        self.fences: dict[str, list[int]] = defaultdict(list)
        self.running: set[str] = set()
        self.failing: dict[str, int] = {}
        self.gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    @asynccontextmanager
    async def run(self, note: str, context: CommandContext, *entities: str) -> AsyncIterator[None]:
        assert self.running.isdisjoint(entities), f"{self.running & {*entities}} has two at once"
        self.running.update(entities)
        try:
            if note.startswith("gate"):
                await self.gates[note].wait()
            await asyncio.sleep(0)
            if self.failing.get(note, 0) > 0:
                self.failing[note] -= 1
                raise ValueError(note)
            yield
            for entity in dict.fromkeys(entities):
                self.ended[entity].append(note)
                self.fences[entity].append(context.fence)
        finally:
            self.running.difference_update(entities)


@pytest.fixture
def log(sandbox: Sandbox) -> Log:
    log = Log()

    @sandbox.registry.handles(Deposit)
    async def deposit(command: Deposit, context: CommandContext) -> str:
        async with log.run(command.note, context, str(command.account)):
            return command.note

    @sandbox.registry.handles(Transfer)
    async def transfer(command: Transfer, context: CommandContext) -> str:
        async with log.run(command.note, context, str(command.source), str(command.target)):
            return command.note

    @sandbox.registry.handles(Skipped)
    async def skipped(command: Skipped, context: CommandContext) -> str:
        async with log.run(command.note, context, str(command.source), str(command.target)):
            if command.note == "rejected":
                raise Reject("no")
            return command.note

    @sandbox.registry.handles(Pay)
    async def pay(command: Pay, context: CommandContext) -> None:
        async with log.run("pay", context, f"order {command.order}", command.account):
            pass

    @sandbox.registry.handles(Many)
    async def many(command: Many, context: CommandContext) -> None:
        async with log.run("many", context, *(str(getattr(command, name)) for name in Many.model_fields)):
            pass

    @sandbox.registry.handles(Lasting)
    async def lasting(command: Lasting, context: DurableContext) -> None:
        await context.sleep(0.3)
        async with log.run("lasting", context, str(command.source), str(command.target)):
            pass

    return log


async def _depth(bus: CommandBus) -> int:
    return (await bus.stats()).depth


async def _is_empty(bus: CommandBus) -> bool:
    stats = await bus.stats()
    return stats.depth == 0 and stats.entities == 0


async def test_it_runs_once_in_the_order_of_all_its_lines(sandbox: Sandbox, log: Log) -> None:
    async with sandbox.bus() as bus:
        result: BatchResult = await bus.dispatch_batch(
            [
                Deposit(account="a-1", note="1"),
                Transfer(source="a-1", target="a-2", note="2"),
                Deposit(account="a-2", note="3"),
                Transfer(source="a-2", target="a-3", note="4"),
                Transfer(source="a-3", target="a-1", note="5"),
                Transfer(source="a-3", target="a-3", note="6"),
                Deposit(account="a-1", note="7"),
            ]
        )
        assert (result.accepted, result.rejected) == (7, 0)
        stats = await bus.stats()
        assert stats.depth == 7 + 3, "each line that it stands in counts"
        assert stats.accepted == 7
        async with bus.worker():
            await until(lambda: _is_empty(bus))
    assert log.ended == {"a-1": ["1", "2", "5", "7"], "a-2": ["2", "3", "4"], "a-3": ["4", "5", "6"]}
    assert all(fences == sorted(set(fences)) for fences in log.fences.values())


async def test_entities_of_several_types_and_eight_of_them(sandbox: Sandbox, log: Log) -> None:
    async with sandbox.bus() as bus, bus.worker():
        names = {name: f"a-{number}" for number, name in enumerate(Many.model_fields)}
        await bus.dispatch_batch([Pay(order="o-1", account="a-0"), Many(**names), Deposit(account="a-7", note="last")])
        await until(lambda: _is_empty(bus))
        assert await bus.call(Transfer(source="a-0", target="a-1", note="called"), timeout=5) == "called"
    assert log.ended["order o-1"] == ["pay"]
    assert log.ended["a-0"] == ["pay", "many", "called"]
    assert log.ended["a-7"] == ["many", "last"]


async def test_a_retry_keeps_all_lines(sandbox: Sandbox, log: Log) -> None:
    log.failing["2"] = 2
    async with sandbox.bus() as bus, bus.worker():
        commands = [
            Transfer(source="a-1", target="a-2", note="2"),
            Deposit(account="a-2", note="3"),
            Deposit(account="a-1", note="4"),
        ]
        await bus.dispatch_batch(commands)
        await until(lambda: _is_empty(bus))
    assert log.ended == {"a-1": ["2", "4"], "a-2": ["2", "3"]}


@pytest.mark.parametrize("held", ["a-1", "a-2"])
async def test_a_pause_of_any_line_holds_it(sandbox: Sandbox, log: Log, held: str) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.entity("account", held).pause("ticket 4711")
        await bus.dispatch_batch(
            [Transfer(source="a-1", target="a-2", note="2"), Deposit(account="a-1", note="3"), Deposit(account="a-2", note="4")]
        )
        await asyncio.sleep(0.3)
        assert log.ended == {}
        await bus.entity("account", held).resume()
        await until(lambda: _is_empty(bus))
    assert log.ended == {"a-1": ["2", "3"], "a-2": ["2", "4"]}


@pytest.mark.parametrize("scope", ["type", "all"])
async def test_a_pause_of_all_ends_for_blocked_lines_too(sandbox: Sandbox, log: Log, scope: str) -> None:
    async with sandbox.bus() as bus, bus.worker():
        of = bus.entities if scope == "all" else bus.entities.of("account")
        await bus.dispatch(Deposit(account="a-1", note="gate 1"))
        await bus.dispatch_batch([Transfer(source="a-2", target="a-1", note="2"), Deposit(account="a-2", note="3")])
        await until(lambda: _true(log.running == {"a-1"}))
        await asyncio.sleep(0.1)
        await of.pause("now")
        log.gates["gate 1"].set()
        await until(lambda: _true(log.ended["a-1"] == ["gate 1"]))
        await asyncio.sleep(0.2)
        assert log.ended["a-2"] == []
        await of.resume()
        await until(lambda: _is_empty(bus))
    assert log.ended == {"a-1": ["gate 1", "2"], "a-2": ["2", "3"]}


async def _true(value: bool) -> bool:
    return value


@pytest.mark.parametrize("purged", ["a-1", "a-2"])
async def test_a_purge_of_any_line_takes_it_out_of_all(sandbox: Sandbox, log: Log, purged: str) -> None:
    async with sandbox.bus() as bus:
        await bus.dispatch_batch(
            [
                Deposit(account="a-1", note="1"),
                Transfer(source="a-1", target="a-2", note="2"),
                Deposit(account="a-1", note="3"),
                Deposit(account="a-2", note="4"),
            ]
        )
        assert await bus.entity("account", purged).purge() == (3 if purged == "a-1" else 2)
        async with bus.worker():
            await until(lambda: _is_empty(bus))
    assert log.ended == ({"a-2": ["4"]} if purged == "a-1" else {"a-1": ["1", "3"]})


@pytest.mark.parametrize("before", [(), ("a-1",), ("a-2",), ("a-1", "a-2")])
async def test_a_cancelled_one_leaves_all_lines(sandbox: Sandbox, log: Log, before: tuple[str, ...]) -> None:
    async with sandbox.bus() as bus:
        await bus.dispatch_batch([Deposit(account=account, note="0") for account in before])
        call = asyncio.create_task(bus.call(Transfer(source="a-1", target="a-2", note="2"), timeout=20))
        await until(lambda: _true_depth(bus, len(before) + 2))
        await bus.dispatch(Transfer(source="a-1", target="a-2", note="never"), command_id="c-1")
        await bus.dispatch_batch([Deposit(account="a-2", note="3"), Deposit(account="a-1", note="4")])
        assert await bus.commands.cancel("c-1")
        async with bus.worker():
            assert await call == "2"
            await until(lambda: _is_empty(bus))
    first = {account: ["0"] if account in before else [] for account in ("a-1", "a-2")}
    assert log.ended == {"a-1": [*first["a-1"], "2", "4"], "a-2": [*first["a-2"], "2", "3"]}


async def _true_depth(bus: CommandBus, depth: int) -> bool:
    return await _depth(bus) == depth


async def test_a_call_that_is_purged_ends_as_cancelled(sandbox: Sandbox, log: Log) -> None:
    async with sandbox.bus() as bus:
        call = asyncio.create_task(bus.call(Transfer(source="a-1", target="a-2", note="2"), timeout=20))
        await until(lambda: _true_depth(bus, 2))
        assert await bus.entity("account", "a-2").purge() == 1
        with pytest.raises(CommandCancelled):
            await call
        assert await _is_empty(bus)


@pytest.mark.parametrize("decision", ["replay", "discard"])
async def test_a_parked_one_holds_all_lines(sandbox: Sandbox, log: Log, decision: str) -> None:
    log.failing["2"] = 3
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch_batch(
            [Transfer(source="a-1", target="a-2", note="2"), Deposit(account="a-1", note="3"), Deposit(account="a-2", note="4")]
        )
        await until(lambda: _has_letters(bus, 1))
        await asyncio.sleep(0.2)
        assert log.ended == {}
        assert await _depth(bus) == 4
        (letter,) = [each async for each in bus.dead_letters.list()]
        await (bus.dead_letters.replay(letter.id) if decision == "replay" else bus.dead_letters.discard(letter.id))
        await until(lambda: _is_empty(bus))
    own = ["2"] if decision == "replay" else []
    assert log.ended == {"a-1": [*own, "3"], "a-2": [*own, "4"]}


async def _has_letters(bus: CommandBus, count: int) -> bool:
    return len([each async for each in bus.dead_letters.list()]) == count


async def test_a_skipped_one_frees_its_lines_and_a_replay_joins_the_end_of_all(sandbox: Sandbox, log: Log) -> None:
    log.failing["2"] = 1
    async with sandbox.bus() as bus, bus.worker():
        commands: list[Command[str]] = [Skipped(source="a-1", target="a-2", note="2")]
        commands += [Deposit(account="a-1", note="3"), Deposit(account="a-2", note="4")]
        await bus.dispatch_batch(commands)
        await until(lambda: _is_empty(bus))
        assert log.ended == {"a-1": ["3"], "a-2": ["4"]}
        await bus.dispatch(Deposit(account="a-2", note="gate 5"))
        await until(lambda: _true(log.running == {"a-2"}))
        (letter,) = [each async for each in bus.dead_letters.list()]
        await bus.dead_letters.replay(letter.id)
        await bus.dispatch(Deposit(account="a-1", note="6"))
        await asyncio.sleep(0.2)
        assert log.ended["a-1"] == ["3"], "its home waits for its other line"
        log.gates["gate 5"].set()
        await until(lambda: _is_empty(bus))
    assert log.ended == {"a-1": ["3", "2", "6"], "a-2": ["4", "gate 5", "2"]}


async def test_a_rejected_one_frees_its_lines(sandbox: Sandbox, log: Log) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Deposit(account="a-2", note="gate 1"))
        call = asyncio.create_task(bus.call(Skipped(source="a-1", target="a-2", note="rejected"), timeout=10))
        await asyncio.sleep(0.1)
        await bus.dispatch_batch([Deposit(account="a-1", note="3"), Deposit(account="a-2", note="4")])
        log.gates["gate 1"].set()
        with pytest.raises(CommandRejected):
            await call
        await until(lambda: _is_empty(bus))
    assert log.ended["a-2"][-1] == "4"
    assert log.ended["a-1"] == ["3"] or log.ended["a-1"][-1] == "3"


async def test_an_expired_one_frees_its_lines(sandbox: Sandbox, log: Log) -> None:
    async with sandbox.bus() as bus:
        await bus.dispatch(Transfer(source="a-1", target="a-2", note="late"), expires=0.05)
        await bus.dispatch_batch([Deposit(account="a-1", note="3"), Deposit(account="a-2", note="4")])
        await asyncio.sleep(0.2)
        async with bus.worker():
            await until(lambda: _true(log.ended == {"a-1": ["3"], "a-2": ["4"]}))


async def test_a_delayed_one_joins_all_lines_at_once(sandbox: Sandbox, log: Log) -> None:
    async with sandbox.bus() as bus:
        await bus.dispatch(Transfer(source="a-1", target="a-2", note="2"), delay=0.3)
        await bus.dispatch(Transfer(source="a-1", target="a-2", note="never"), delay=0.3, command_id="c-1")
        await bus.dispatch_batch([Deposit(account="a-1", note="1"), Deposit(account="a-2", note="1")])
        assert await _depth(bus) == 4
        assert await bus.commands.cancel("c-1")
        async with bus.worker():
            await until(lambda: _is_empty(bus))
            assert await _depth(bus) == 0
    assert log.ended == {"a-1": ["1", "2"], "a-2": ["1", "2"]}


async def test_a_durable_one_holds_its_lines_while_it_is_suspended(sandbox: Sandbox, log: Log) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch_batch(
            [Lasting(source="a-1", target="a-2"), Deposit(account="a-1", note="3"), Deposit(account="a-2", note="4")]
        )
        await until(lambda: _is_empty(bus))
    assert log.ended == {"a-1": ["lasting", "3"], "a-2": ["lasting", "4"]}


async def test_it_is_accepted_in_all_lines_or_in_none(sandbox: Sandbox, log: Log) -> None:
    settings = BusSettings(entities={"account": EntityPolicy(max_depth=2)})
    async with sandbox.bus(settings=settings) as bus:
        await bus.dispatch_batch([Deposit(account="a-2", note="1"), Deposit(account="a-2", note="2")])
        with pytest.raises(QueueFull):
            await bus.dispatch(Transfer(source="a-1", target="a-2", note="full"))
        result = await bus.dispatch_batch(
            [
                Transfer(source="a-1", target="a-2", note="full"),
                Deposit(account="a-1", note="behind"),
                Deposit(account="a-3", note="5"),
            ]
        )
        assert [outcome.status for outcome in result.outcomes] == ["rejected", "rejected", "accepted"]
        assert await _depth(bus) == 3
        await bus.entity("account", "a-3").drain("over")
        with pytest.raises(Draining):
            await bus.dispatch(Transfer(source="a-1", target="a-3", note="drained"))
        async with bus.worker():
            await until(lambda: _is_empty(bus))
    assert log.ended == {"a-2": ["1", "2"], "a-3": ["5"]}


async def test_a_full_shard_takes_it_in_all_lines_or_in_none(sandbox: Sandbox, log: Log) -> None:
    async with sandbox.bus(settings=BusSettings(max_total_depth=2)) as bus:
        await bus.dispatch(Deposit(account="a-1", note="1"))
        with pytest.raises(QueueFull):
            await bus.dispatch(Transfer(source="a-2", target="a-3", note="full"))
        assert await _depth(bus) == 1


async def test_what_puts_commands_into_one_line_refuses_it(sandbox: Sandbox, log: Log) -> None:
    refused: list[str] = []

    class Sends(Command[None], entity="account"):
        account: EntityId

    @sandbox.registry.handles(Sends)
    async def sends(command: Sends, context: CommandContext) -> None:
        with pytest.raises(InvalidCommand, match="several entities") as raised:
            context.send(Transfer(source="a-1", target="a-2"))
        refused.append(raised.value.message)

    async with sandbox.bus() as bus, bus.worker():
        await bus.call(Sends(account="a-9"), timeout=5)
        assert len(refused) == 1
        with pytest.raises(InvalidCommand, match="several entities"):
            await bus.schedules.put("nightly", Transfer(source="a-1", target="a-2"), every(60))
        with pytest.raises(InvalidCommand, match="wins='first'"):
            await bus.dispatch(Transfer(source="a-1", target="a-2"), unique=Unique("k", wins="latest"))
        # Without its class it names one line only: then it never runs.
        await bus.dispatch_raw("account", "a-1", "Transfer", {"source": "a-1", "target": "a-2", "note": "raw"})
        await until(lambda: _has_letters(bus, 1))
        (letter,) = [each async for each in bus.dead_letters.list()]
        assert letter.reason == "invalid"
    assert "raw" not in log.ended["a-1"]


async def test_entities_of_several_shards_are_refused_unless_shard_by_brings_them_together(sandbox: Sandbox, log: Log) -> None:
    async with sandbox.bus(shards=8) as bus:
        pair = next(
            (f"c-0/{one}", f"c-0/{other}")
            for one in range(9)
            for other in range(9)
            if bus.transport.shard_of(f"account:c-0%2F{one}") != bus.transport.shard_of(f"account:c-0%2F{other}")
        )
        with pytest.raises(InvalidCommand, match="shard_by"):
            await bus.dispatch(Transfer(source=pair[0], target=pair[1]))
        batch = [
            Transfer(source=pair[0], target=pair[1]),
            Deposit(account=pair[1], note="behind"),
            Deposit(account="a-9", note="1"),
        ]
        result = await bus.dispatch_batch(batch)
        assert [outcome.status for outcome in result.outcomes] == ["rejected", "rejected", "accepted"]
        assert isinstance(result.outcomes[0].error, InvalidCommand)


async def test_shard_by_brings_entities_of_one_owner_into_one_shard(sandbox: Sandbox, log: Log) -> None:
    apart = EntityPolicy(mailbox=per_entity(shard_by="/"))
    settings = BusSettings(entities={"account": apart, "order": apart})
    async with sandbox.bus(shards=8, settings=settings) as bus, bus.worker():
        for owner in range(12):
            commands = [
                Transfer(source=f"c-{owner}/a", target=f"c-{owner}/b", note="1"),
                Pay(order=f"c-{owner}", account=f"c-{owner}/b"),
                Deposit(account=f"c-{owner}/a", note="3"),
            ]
            assert (await bus.dispatch_batch(commands)).accepted == 3
        await until(lambda: _is_empty(bus))
    for owner in range(12):
        assert log.ended[f"c-{owner}/a"] == ["1", "3"]
        assert log.ended[f"c-{owner}/b"] == ["1", "pay"]


def test_classes_that_name_several_entities_are_checked() -> None:
    with pytest.raises(RegistrationError, match="at most 8"):
        type(
            "Nine",
            (Command[None],),
            {"__annotations__": {f"e{number}": EntityId for number in range(9)}, "__module__": __name__},
            entity="account",
        )
    with pytest.raises(RegistrationError, match="wins='first'"):

        class Latest(Command[None], entity="account", unique=Unique("k", wins="latest")):
            source: EntityId
            target: EntityId

    with pytest.raises(RegistrationError, match="one entity"):

        class Happened(Event, entity="account"):
            source: EntityId
            target: EntityId

    with pytest.raises(RegistrationError, match="union or container"):

        class Listed(Command[None], entity="account"):
            source: EntityId
            targets: list[EntityId]

    with pytest.raises(RegistrationError, match="marks no field"):

        class Elsewhere(Command[None], entity="order"):
            account: Annotated[str, EntityOf("account")]
