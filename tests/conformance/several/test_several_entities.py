"""Commands of several entities: one run at the head of all lines, and each act on one of the lines. Over every server."""

from __future__ import annotations

import asyncio

import pytest

from command_bus import (
    BatchResult,
    CommandCancelled,
    CommandRejected,
)
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until
from tests.conformance.several.commands import (
    Deposit,
    Lasting,
    Log,
    Many,
    Pay,
    Skipped,
    Transfer,
    are,
    depth_of,
    has_depth,
    has_letters,
    holds,
    is_empty,
)


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
            await until(lambda: is_empty(bus))
    assert log.ended == {"a-1": ["1", "2", "5", "7"], "a-2": ["2", "3", "4"], "a-3": ["4", "5", "6"]}
    assert all(fences == sorted(set(fences)) for fences in log.fences.values())


async def test_entities_of_several_types_and_eight_of_them(sandbox: Sandbox, log: Log) -> None:
    async with sandbox.bus() as bus, bus.worker():
        names = {name: f"a-{number}" for number, name in enumerate(Many.model_fields)}
        await bus.dispatch_batch([Pay(order="o-1", account="a-0"), Many(**names), Deposit(account="a-7", note="last")])
        await until(lambda: is_empty(bus))
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
        await until(lambda: is_empty(bus))
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
        await until(lambda: is_empty(bus))
    assert log.ended == {"a-1": ["2", "3"], "a-2": ["2", "4"]}


async def test_a_pause_of_a_line_that_waits_already_ends_for_its_home(sandbox: Sandbox, log: Log) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Deposit(account="a-1", note="gate 1"))
        await bus.dispatch(Transfer(source="a-1", target="a-2", note="2"))
        await until(lambda: holds(log.running == {"a-1"}))
        await bus.entity("account", "a-2").pause("it is blocked already")
        log.gates["gate 1"].set()
        await until(lambda: are(bus, {"account:a-1": "blocked", "account:a-2": "paused"}))
        assert log.ended == {"a-1": ["gate 1"]}
        await bus.entity("account", "a-2").resume()
        await until(lambda: is_empty(bus))
    assert log.ended == {"a-1": ["gate 1", "2"], "a-2": ["2"]}


@pytest.mark.parametrize("scope", ["type", "all"])
async def test_a_pause_of_all_ends_for_blocked_lines_too(sandbox: Sandbox, log: Log, scope: str) -> None:
    async with sandbox.bus() as bus, bus.worker():
        of = bus.entities if scope == "all" else bus.entities.of("account")
        await bus.dispatch(Deposit(account="a-1", note="gate 1"))
        await bus.dispatch_batch([Transfer(source="a-2", target="a-1", note="2"), Deposit(account="a-2", note="3")])
        await until(lambda: holds(log.running == {"a-1"}))
        await asyncio.sleep(0.1)
        await of.pause("now")
        log.gates["gate 1"].set()
        await until(lambda: holds(log.ended["a-1"] == ["gate 1"]))
        await asyncio.sleep(0.2)
        assert log.ended["a-2"] == []
        await of.resume()
        await until(lambda: is_empty(bus))
    assert log.ended == {"a-1": ["gate 1", "2"], "a-2": ["2", "3"]}


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
            await until(lambda: is_empty(bus))
    assert log.ended == ({"a-2": ["4"]} if purged == "a-1" else {"a-1": ["1", "3"]})


@pytest.mark.parametrize("before", [(), ("a-1",), ("a-2",), ("a-1", "a-2")])
async def test_a_cancelled_one_leaves_all_lines(sandbox: Sandbox, log: Log, before: tuple[str, ...]) -> None:
    async with sandbox.bus() as bus:
        await bus.dispatch_batch([Deposit(account=account, note="0") for account in before])
        call = asyncio.create_task(bus.call(Transfer(source="a-1", target="a-2", note="2"), timeout=20))
        await until(lambda: has_depth(bus, len(before) + 2))
        await bus.dispatch(Transfer(source="a-1", target="a-2", note="never"), command_id="c-1")
        await bus.dispatch_batch([Deposit(account="a-2", note="3"), Deposit(account="a-1", note="4")])
        assert await bus.commands.cancel("c-1")
        async with bus.worker():
            assert await call == "2"
            await until(lambda: is_empty(bus))
    first = {account: ["0"] if account in before else [] for account in ("a-1", "a-2")}
    assert log.ended == {"a-1": [*first["a-1"], "2", "4"], "a-2": [*first["a-2"], "2", "3"]}


async def test_what_is_blocked_is_shown(sandbox: Sandbox, log: Log) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.entity("account", "a-1").pause("ticket 4711")
        await bus.dispatch(Transfer(source="a-1", target="a-2", note="2"), command_id="c-1")
        await bus.entity("account", "a-4").pause()
        await bus.dispatch_batch([Deposit(account="a-3", note="0"), Transfer(source="a-3", target="a-4", note="4")])
        await until(
            lambda: are(
                bus, {"account:a-2": "blocked", "account:a-1": "paused", "account:a-3": "blocked", "account:a-4": "paused"}
            )
        )
        blocked = {each.name: each.home for each in (await bus.entities.list(states={"blocked"})).entities}
        assert blocked == {"account:a-2": "account:a-1", "account:a-3": None}
        detail = await bus.entity("account", "a-2").show()
        assert detail.head is not None
        assert detail.head.name == "(of account:a-1)"
        status = await bus.commands.status("c-1")
        assert status is not None
        assert (status.state, status.entity) == ("paused", "account:a-1")
        assert [each.name async for each in bus.commands.select()].count("Transfer") == 2
        await bus.entity("account", "a-4").resume()
        await bus.entity("account", "a-1").resume()
        await until(lambda: is_empty(bus))


async def test_a_call_that_is_purged_ends_as_cancelled(sandbox: Sandbox, log: Log) -> None:
    async with sandbox.bus() as bus:
        call = asyncio.create_task(bus.call(Transfer(source="a-1", target="a-2", note="2"), timeout=20))
        await until(lambda: has_depth(bus, 2))
        assert await bus.entity("account", "a-2").purge() == 1
        with pytest.raises(CommandCancelled):
            await call
        assert await is_empty(bus)


@pytest.mark.parametrize("decision", ["replay", "discard"])
async def test_a_parked_one_holds_all_lines(sandbox: Sandbox, log: Log, decision: str) -> None:
    log.failing["2"] = 3
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch_batch(
            [Transfer(source="a-1", target="a-2", note="2"), Deposit(account="a-1", note="3"), Deposit(account="a-2", note="4")]
        )
        await until(lambda: has_letters(bus, 1))
        await asyncio.sleep(0.2)
        assert log.ended == {}
        assert await depth_of(bus) == 4
        (letter,) = [each async for each in bus.dead_letters.list()]
        await (bus.dead_letters.replay(letter.id) if decision == "replay" else bus.dead_letters.discard(letter.id))
        await until(lambda: is_empty(bus))
    own = ["2"] if decision == "replay" else []
    assert log.ended == {"a-1": [*own, "3"], "a-2": [*own, "4"]}


async def test_a_skipped_one_frees_its_lines_and_a_replay_joins_the_end_of_all(sandbox: Sandbox, log: Log) -> None:
    log.failing["2"] = 1
    async with sandbox.bus() as bus, bus.worker():
        commands = [
            Skipped(source="a-1", target="a-2", note="2"),
            Deposit(account="a-1", note="3"),
            Deposit(account="a-2", note="4"),
        ]
        await bus.dispatch_batch(commands)
        await until(lambda: is_empty(bus))
        assert log.ended == {"a-1": ["3"], "a-2": ["4"]}
        await bus.dispatch(Deposit(account="a-2", note="gate 5"))
        await until(lambda: holds(log.running == {"a-2"}))
        (letter,) = [each async for each in bus.dead_letters.list()]
        await bus.dead_letters.replay(letter.id)
        await bus.dispatch(Deposit(account="a-1", note="6"))
        await asyncio.sleep(0.2)
        assert log.ended["a-1"] == ["3"], "its home waits for its other line"
        log.gates["gate 5"].set()
        await until(lambda: is_empty(bus))
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
        await until(lambda: is_empty(bus))
    assert log.ended["a-2"][-1] == "4"
    assert log.ended["a-1"] == ["3"] or log.ended["a-1"][-1] == "3"


async def test_an_expired_one_frees_its_lines(sandbox: Sandbox, log: Log) -> None:
    async with sandbox.bus() as bus:
        await bus.dispatch(Transfer(source="a-1", target="a-2", note="late"), expires=0.05)
        await bus.dispatch_batch([Deposit(account="a-1", note="3"), Deposit(account="a-2", note="4")])
        await asyncio.sleep(0.2)
        async with bus.worker():
            await until(lambda: holds(log.ended == {"a-1": ["3"], "a-2": ["4"]}))


async def test_a_delayed_one_joins_all_lines_at_once(sandbox: Sandbox, log: Log) -> None:
    async with sandbox.bus() as bus:
        await bus.dispatch(Transfer(source="a-1", target="a-2", note="2"), delay=0.3)
        await bus.dispatch(Transfer(source="a-1", target="a-2", note="never"), delay=0.3, command_id="c-1")
        await bus.dispatch_batch([Deposit(account="a-1", note="1"), Deposit(account="a-2", note="1")])
        assert await depth_of(bus) == 4
        assert await bus.commands.cancel("c-1")
        async with bus.worker():
            await until(lambda: is_empty(bus))
            assert await depth_of(bus) == 0
    assert log.ended == {"a-1": ["1", "2"], "a-2": ["1", "2"]}


async def test_a_durable_one_holds_its_lines_while_it_is_suspended(sandbox: Sandbox, log: Log) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch_batch(
            [Lasting(source="a-1", target="a-2"), Deposit(account="a-1", note="3"), Deposit(account="a-2", note="4")]
        )
        await until(lambda: is_empty(bus))
    assert log.ended == {"a-1": ["lasting", "3"], "a-2": ["lasting", "4"]}


@pytest.mark.parametrize("asked", ["a-1", "a-2"])
async def test_an_abort_of_any_of_them_reaches_the_one_run(sandbox: Sandbox, log: Log, asked: str) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Skipped(source="a-1", target="a-2", note="gate"))
        await until(lambda: holds(log.running == {"a-1", "a-2"}))
        report = await bus.entity("account", asked).abort("it hangs")
        assert (report.result, report.entity, report.name) == ("ended", "account:a-1", "Skipped")
        await bus.dispatch_batch([Deposit(account="a-1", note="gate 1"), Transfer(source="a-1", target="a-2", note="2")])
        await until(lambda: holds(log.running == {"a-1"}))
        await until(lambda: are(bus, {"account:a-1": "running", "account:a-2": "blocked"}))
        other = await bus.entity("account", "a-2").abort()
        assert other.result == "nothing", "what its home runs is none of its own"
        log.gates["gate 1"].set()
        await until(lambda: is_empty(bus))
    assert log.ended == {"a-1": ["gate 1", "2"], "a-2": ["2"]}
