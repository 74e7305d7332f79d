"""Faults that others have had with locks over several resources, tried on commands of several entities. Over every server."""

from __future__ import annotations

import asyncio
import time

import pytest

from command_bus import CommandCancelled
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until
from tests.conformance.several.commands import Deposit, Log, Many, Transfer, are, depth_of, has_depth, holds, is_empty


async def test_transfers_in_both_directions_wait_for_no_circle(sandbox: Sandbox, log: Log) -> None:
    """Orleans 5297, nitrolite 830, medusa 16285: A to B and B to A at the same time, each holding what the other needs."""
    async with sandbox.bus() as bus, bus.worker(concurrency=20):
        pairs = [("a", "b"), ("b", "a"), ("b", "c"), ("c", "a"), ("a", "c"), ("c", "b")]
        transfers = [Transfer(source=one, target=other, note=str(number)) for number, (one, other) in enumerate(pairs * 20)]
        await asyncio.gather(*(bus.dispatch(each) for each in transfers[:60]), bus.dispatch_batch(transfers[60:]))
        await until(lambda: is_empty(bus))
        assert (await bus.stats()).retried == 0
    assert all(len(notes) == 80 == len(set(notes)) for notes in log.ended.values())


async def test_an_entity_that_is_named_twice_does_not_wait_for_itself(sandbox: Sandbox, log: Log) -> None:
    """Orleans 5644: two locks of one transaction on one grain."""
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch_batch([Transfer(source="a", target="a", note=str(number)) for number in range(50)])
        fields = dict.fromkeys(Many.model_fields, "a")
        await bus.dispatch(Many(**(fields | {"third": "b", "eighth": "b"})))
        await until(lambda: is_empty(bus))
    assert log.ended == {"a": [*map(str, range(50)), "many"], "b": ["many"]}


async def test_a_sender_that_goes_away_leaves_no_line_held(sandbox: Sandbox, log: Log) -> None:
    """Redisson 4456, medusa 16285: an acquisition that is interrupted, or refused in part, leaves locks without an owner."""
    async with sandbox.bus() as bus, bus.worker():
        for number in range(30):
            sending = asyncio.create_task(bus.dispatch(Transfer(source="a", target=f"b-{number % 3}", note=str(number))))
            for _ in range(number % 5):
                await asyncio.sleep(0)
            sending.cancel()
        await bus.dispatch_batch([Deposit(account=each, note="last") for each in ("a", "b-0", "b-1", "b-2")])
        await until(lambda: is_empty(bus))
    lines = [notes[:-1] for name, notes in log.ended.items() if name != "a"]
    assert all(notes[-1] == "last" for notes in log.ended.values())
    assert sorted(note for notes in lines for note in notes) == sorted(log.ended["a"][:-1]), "each in both lines, or in none"


async def test_a_removed_one_blocks_no_later_one_of_its_name(sandbox: Sandbox, log: Log) -> None:
    """quartz-redis-jobstore 29, BullMQ 3929: what was removed is still counted as what blocks."""
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Deposit(account="b", note="gate"))
        await until(lambda: holds(log.running == {"b"}))
        for number in range(3):
            await bus.dispatch(Transfer(source="a", target="b", note="2"), command_id=f"c-{number}")
            assert await bus.commands.cancel(f"c-{number}")
            assert await depth_of(bus) == 1
        await bus.dispatch(Transfer(source="a", target="c", note="3"))
        await until(lambda: holds(log.ended["c"] == ["3"]))
        log.gates["gate"].set()
        await until(lambda: is_empty(bus))
    assert log.ended == {"a": ["3"], "b": ["gate"], "c": ["3"]}


async def test_it_starts_as_soon_as_its_last_line_is_free(sandbox: Sandbox, log: Log) -> None:
    """solid_queue 456 and 546: a job stays blocked until a time is over, although nothing holds its key."""
    async with sandbox.bus() as bus, bus.worker():
        took: list[float] = []
        for number in range(10):
            note = f"gate {number}"
            await bus.dispatch(Deposit(account="b", note=note))
            await bus.dispatch(Transfer(source="a", target="b", note=f"t {number}"))
            await until(lambda: holds(log.running == {"b"}))
            await asyncio.sleep(0.05)
            log.gates[note].set()
            began = time.monotonic()
            await until(lambda note=f"t {number}": holds(log.ended["a"][-1:] == [note]))
            took.append(time.monotonic() - began)
    assert max(took) < 2.0, "no wait of a lease or of upkeep"


async def test_a_repeated_dispatch_stands_in_each_line_once(sandbox: Sandbox, log: Log) -> None:
    """Redisson 1606: a lost reply, and what was acquired is acquired again."""
    async with sandbox.bus() as bus:
        for _ in range(4):
            await bus.dispatch(Transfer(source="a", target="b", note="2"), command_id="c-1")
        result = await bus.dispatch_batch([Deposit(account="b", note="3")])
        assert result.accepted == 1
        assert await depth_of(bus) == 3
        async with bus.worker():
            await until(lambda: is_empty(bus))
            await bus.dispatch(Transfer(source="a", target="b", note="2"), command_id="c-1")
            await asyncio.sleep(0.1)
            assert await is_empty(bus)
    assert log.ended == {"a": ["2"], "b": ["2", "3"]}


async def test_it_is_said_which_of_its_lines_are_not_ready(sandbox: Sandbox, log: Log) -> None:
    """dagster 16441: a run that a concurrency key holds up looks stuck, and nothing says of what."""
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Deposit(account="b", note="gate"))
        await bus.entity("account", "c").pause("audit")
        await until(lambda: holds(log.running == {"b"}))
        await bus.dispatch(Many(**dict(zip(Many.model_fields, "abcdabcd", strict=True))))
        states = ("blocked", "running", "paused", "blocked")
        await until(lambda: are(bus, {f"account:{each}": state for each, state in zip("abcd", states, strict=True)}))
        details = await bus.entity("account", "a").show()
        assert [(each.name, each.state) for each in details.waits_for] == [("account:b", "running"), ("account:c", "paused")]
        assert (await bus.entity("account", "d").show()).waits_for == ()
        log.gates["gate"].set()
        await bus.entity("account", "c").resume()
        await until(lambda: is_empty(bus))


async def test_a_cancel_of_a_blocked_one_is_told_at_once(sandbox: Sandbox, log: Log) -> None:
    """argo-workflows 10733: a workflow that waits for a lock is terminated only when it has got it."""
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Deposit(account="b", note="gate"))
        await until(lambda: holds(log.running == {"b"}))
        call = asyncio.create_task(bus.call(Transfer(source="a", target="b", note="never"), timeout=20))
        await until(lambda: has_depth(bus, 3))
        await bus.dispatch(Deposit(account="a", note="behind"))
        (found,) = [each async for each in bus.commands.select(name="Transfer")]
        assert await bus.commands.cancel(found.command_id)
        with pytest.raises(CommandCancelled):
            await call
        await until(lambda: holds(log.ended["a"] == ["behind"]))
        log.gates["gate"].set()
        await until(lambda: is_empty(bus))


async def test_a_removed_twin_takes_no_line_of_the_one_that_runs(sandbox: Sandbox, log: Log) -> None:
    """oio-sds 1993, argo-workflows 4744: the deletion of a job that waits deletes the lock that another one holds."""
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Transfer(source="a", target="b", note="gate"))
        await until(lambda: holds(log.running == {"a", "b"}))
        for source, target in ("ab", "ba"):
            await bus.dispatch(Transfer(source=source, target=target, note="never"), command_id=f"c-{source}")
            assert await bus.commands.cancel(f"c-{source}")
        await bus.dispatch_batch([Deposit(account=each, note="1") for each in "ab"])
        await asyncio.sleep(0.2)
        assert not any(log.ended.values())
        log.gates["gate"].set()
        await until(lambda: is_empty(bus))
    assert log.ended == {"a": ["gate", "1"], "b": ["gate", "1"]}


async def test_pairs_that_share_nothing_run_at_once_after_a_jam(sandbox: Sandbox, log: Log) -> None:
    """solid_queue 694: what was blocked is let go one by one, and most workers have nothing to do."""
    async with sandbox.bus() as bus, bus.worker(concurrency=20):
        commands = [Transfer(source=f"s-{n}", target=f"t-{n}", note=f"gate {turn}") for turn in range(3) for n in range(10)]
        await bus.dispatch_batch(commands)
        for turn in range(3):
            await until(lambda: holds(len(log.running) == 20))
            log.gates[f"gate {turn}"].set()
        await until(lambda: is_empty(bus))


async def test_a_delayed_one_holds_up_nobody(sandbox: Sandbox, log: Log) -> None:
    """procrastinate 1599: a job for later stalls all that share its lock."""
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Transfer(source="a", target="b", note="later"), delay=3600, command_id="c-1")
        await bus.dispatch_batch(
            [*(Deposit(account=each, note="1") for each in "ab"), Transfer(source="b", target="a", note="2")]
        )
        await until(lambda: holds(log.ended == {"a": ["1", "2"], "b": ["1", "2"]}))
        assert await bus.commands.cancel("c-1")
        assert await is_empty(bus)


async def test_all_lines_are_let_go_at_the_end(sandbox: Sandbox, log: Log) -> None:
    """argo-workflows 14461: of four mutexes some stay locked when their workflow has succeeded."""
    async with sandbox.bus() as bus, bus.worker():
        for turn in range(5):
            names = "abcdefgh"[turn:] + "abcdefgh"[:turn]
            await bus.dispatch(Many(**dict(zip(Many.model_fields, names, strict=True))))
        await bus.dispatch_batch([Deposit(account=each, note="last") for each in "abcdefgh"])
        await until(lambda: is_empty(bus))
    assert log.ended == {each: [*["many"] * 5, "last"] for each in "abcdefgh"}
