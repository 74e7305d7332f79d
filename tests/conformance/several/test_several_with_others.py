"""Commands of several entities beside other capabilities: limits, priorities, unique keys, history, events, a test bus, threads."""

from __future__ import annotations

import asyncio

import pytest

from command_bus import (
    BusSettings,
    Command,
    CommandContext,
    EntityId,
    EntityPolicy,
    EntityState,
    Limit,
    RawEnvelope,
    Snooze,
    SyncCommandBus,
    Unique,
    lanes,
)
from command_bus.testing import TestBus
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until
from tests.conformance.several.commands import Deposit, Log, Transfer, depth_of, holds, is_empty


async def test_limits_of_its_home_hold_it(sandbox: Sandbox, log: Log) -> None:
    limits = (Limit(concurrency=1, scope="type"),)
    settings = BusSettings(entities={"account": EntityPolicy(limits=limits)})
    async with sandbox.bus(settings=settings) as bus, bus.worker():
        transfers = [Transfer(source=f"a-{number % 3}", target=f"a-{(number + 1) % 3}", note=str(number)) for number in range(12)]
        await bus.dispatch_batch(transfers)
        await until(lambda: is_empty(bus))
    notes = {
        account: [str(n) for n in range(12) if f"a-{n % 3}" == account or f"a-{(n + 1) % 3}" == account] for account in log.ended
    }
    assert log.ended == notes


async def test_priorities_lift_all_its_lines(sandbox: Sandbox, log: Log) -> None:
    async with sandbox.bus() as bus:
        await bus.dispatch_batch([Deposit(account=f"o-{number}", note="0") for number in range(60)])
        await bus.dispatch(Deposit(account="a-2", note="1"), priority="low")
        await bus.dispatch(Transfer(source="a-1", target="a-2", note="2"), priority="high")
        ended: list[str] = []
        async with bus.worker(concurrency=1):
            await until(lambda: is_empty(bus))
        ended = [account for account, notes in log.ended.items() for _ in notes]
    assert log.ended["a-2"] == ["1", "2"]
    assert ended.index("a-2") < 25, "the line before it moves forward with it"


async def test_a_change_of_priority_of_what_is_chosen_lifts_all_its_lines(sandbox: Sandbox, log: Log) -> None:
    async with sandbox.bus() as bus:
        await bus.dispatch_batch([Deposit(account=f"o-{number}", note="0") for number in range(60)])
        await bus.dispatch_batch([Deposit(account="a-2", note="1"), Transfer(source="a-1", target="a-2", note="2")])
        steps = [step async for step in bus.commands.select(name="Transfer").prioritize("high")]
        assert steps[-1].done == 1
        async with bus.worker(concurrency=1):
            await until(lambda: is_empty(bus))
    assert log.ended["a-2"] == ["1", "2"]
    assert [*log.ended].index("a-1") < 25, "also the line in which it was not the first"


async def test_lanes_are_its_lines(sandbox: Sandbox) -> None:
    log = Log()

    @sandbox.registry.handles(Transfer)
    async def transfer(command: Transfer, context: CommandContext) -> str:
        async with log.run(command.note, context, str(command.source), str(command.target)):
            return command.note

    settings = BusSettings(entities={"account": EntityPolicy(mailbox=lanes(3))})
    async with sandbox.bus(settings=settings) as bus, bus.worker(concurrency=10):
        pairs = [(f"a-{number % 7}", f"a-{(3 * number + 1) % 5}") for number in range(60)]
        await bus.dispatch_batch([Transfer(source=one, target=other, note=str(n)) for n, (one, other) in enumerate(pairs)])
        await until(lambda: is_empty(bus))
        assert all(notes == [str(n) for n, pair in enumerate(pairs) if each in pair] for each, notes in log.ended.items())
        await bus.entity("account", "a-1").pause()
        await bus.dispatch(Transfer(source="a-2", target="a-1", note="purged"))
        assert await bus.entity("account", "a-1").purge() == 1
        await bus.entity("account", "a-1").resume()
        await until(lambda: is_empty(bus))
    assert "purged" not in log.ended["a-2"]


async def test_a_unique_key_folds_it(sandbox: Sandbox, log: Log) -> None:
    async with sandbox.bus() as bus:
        key = Unique("monthly")
        await bus.dispatch(Transfer(source="a-1", target="a-2", note="1"), unique=key)
        folded = await bus.dispatch(Transfer(source="a-1", target="a-2", note="2"), unique=key)
        assert folded.status == "duplicate"
        assert await depth_of(bus) == 2
        async with bus.worker():
            await until(lambda: is_empty(bus))
            await bus.dispatch(Transfer(source="a-1", target="a-2", note="3"), unique=key)
            await until(lambda: is_empty(bus))
    assert log.ended == {"a-1": ["1", "3"], "a-2": ["1", "3"]}


async def test_a_snooze_holds_all_lines_and_its_end_is_kept_once(sandbox: Sandbox, log: Log) -> None:
    class Later(Command[int], entity="account"):
        one: EntityId
        other: EntityId

    starts: list[int] = []

    @sandbox.registry.handles(Later)
    async def later(command: Later, context: CommandContext) -> int:
        starts.append(context.fence)
        if len(starts) < 3:
            raise Snooze(0.1)
        return len(starts)

    async with sandbox.bus() as bus, bus.worker():
        call = asyncio.create_task(bus.call(Later(one="a-1", other="a-2"), history="1 day", timeout=20))
        await until(lambda: holds(len(starts) > 0))
        await bus.dispatch_batch([Deposit(account="a-1", note="3"), Deposit(account="a-2", note="4")])
        assert await call == 3
        await until(lambda: is_empty(bus))
        for entity in ("a-1", "a-2"):
            (found,) = (await bus.history.search(name="Later", entity=("account", entity))).entries
            assert (found.entity_type, found.entity_id, found.others) == ("account", "a-1", (("account", "a-2"),))
        assert (await bus.history.search(name="Later", entity=("account", "a-3"))).entries == ()
    assert starts == sorted(starts)
    assert log.ended == {"a-1": ["3"], "a-2": ["4"]}


async def test_the_state_is_that_of_its_home(sandbox: Sandbox, log: Log) -> None:
    class Balance(EntityState, entity="purse"):
        cents: int = 10

    class Give(Command[int], entity="purse"):
        giver: EntityId
        taker: EntityId

    @sandbox.registry.handles(Give)
    async def give(command: Give, balance: Balance) -> int:
        balance.cents -= 1
        return balance.cents

    async with sandbox.bus() as bus, bus.worker():
        assert [await bus.call(Give(giver="p-1", taker=f"p-{number}"), timeout=5) for number in (2, 3, 2)] == [9, 8, 7]
        assert await bus.call(Give(giver="p-2", taker="p-1"), timeout=5) == 9


async def test_a_worker_that_is_lost_loses_no_line(sandbox: Sandbox, log: Log) -> None:
    settings = BusSettings(lease=0.5)
    async with sandbox.bus(settings=settings) as bus:
        first = bus.worker()
        await first.start()
        await bus.dispatch(Transfer(source="a-1", target="a-2", note="gate 2"))
        await bus.dispatch_batch([Deposit(account="a-1", note="3"), Deposit(account="a-2", note="4")])
        await until(lambda: holds(log.running == {"a-1", "a-2"}))
        await first.stop(0)
        log.gates["gate 2"].set()
        async with bus.worker():
            await until(lambda: is_empty(bus))
    assert log.ended == {"a-1": ["gate 2", "3"], "a-2": ["gate 2", "4"]}


def test_a_bus_for_threads_sends_it(sandbox: Sandbox, log: Log) -> None:
    if sandbox.url is None:
        pytest.skip("its server is in this process")
    with SyncCommandBus(sandbox.url, namespace=sandbox.namespace, registry=sandbox.registry) as bus:
        assert bus.dispatch(Transfer(source="a-1", target="a-2", note="2")).status == "accepted"
        fields = {"source": "a-1", "target": "a-2", "note": "3"}
        assert bus.dispatch_raw("account", "a-1", "Transfer", fields, others=[("account", "a-2")]).status == "accepted"
        assert bus.dispatch_batch([RawEnvelope("account", "a-1", "Transfer", fields, others=[("account", "a-2")])]).accepted == 1
        assert bus.stats().depth == 6


async def test_a_test_bus_runs_it(log: Log, sandbox: Sandbox) -> None:
    async with TestBus(sandbox.registry) as bus:
        await bus.dispatch(Transfer(source="a-1", target="a-2", note="2"), delay=3600)
        await bus.dispatch(Deposit(account="a-2", note="1"))
        await bus.run_until_idle()
        assert log.ended == {"a-1": ["2"], "a-2": ["1", "2"]}
