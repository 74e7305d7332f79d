"""Commands whose entities are of several shards: they hold the lines of each shard in turn, and run once, with one fence. Over every server."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from command_bus import (
    Command,
    CommandBus,
    CommandCancelled,
    CommandContext,
    CommandExpired,
    CommandFailed,
    CommandRejected,
    DurableContext,
    EntityId,
    InvalidCommand,
    RegistrationError,
    Reject,
    RetryPolicy,
)
from command_bus.workflows import chain, node
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until
from tests.conformance.several.commands import ONCE, Deposit, Log, Skipped, are, has_letters, is_empty

SHARDS = 4
A, B, C = "a-4", "a-0", "a-1"
"""Accounts in shards of growing numbers; the test below looks."""
BESIDE_C = "a-3"
"""An account in the shard of `C`."""


class Move(Command[str], entity="account", retry=RetryPolicy(attempts=3, delay=0.01), on_poison="park", across_shards=True):
    source: EntityId
    target: EntityId
    note: str = ""


class Drop(Command[str], entity="account", retry=ONCE, on_poison="skip", across_shards=True):
    source: EntityId
    target: EntityId
    note: str = ""


class Round(Command[str], entity="account", retry=RetryPolicy(attempts=3, delay=0.01), across_shards=True):
    first: EntityId
    second: EntityId
    third: EntityId
    note: str = ""


@pytest.fixture
def moves(sandbox: Sandbox, log: Log) -> Log:
    async def run(command: Any, context: CommandContext) -> str:
        async with log.run(
            command.note, context, *dict.fromkeys([str(command.entity_id()), *(of for _, of in command.entity_ids())])
        ):
            if command.note == "rejected":
                raise Reject("too much", code="too_much", details={"most": 5})
            assert context.entity_id == command.entity_id()
            return f"{command.note} {context.command_id}"

    for each in (Move, Drop, Round):
        sandbox.registry.handles(each)(run)
    return log


def bus_of(sandbox: Sandbox, **settings: Any) -> CommandBus:
    return sandbox.bus(shards=SHARDS, **settings)


def shard(bus: CommandBus, account: str) -> int:
    return bus.session.transport.shard_of(f"account:{account}")


async def test_the_accounts_of_these_tests_are_of_three_shards(sandbox: Sandbox) -> None:
    async with bus_of(sandbox) as bus:
        assert shard(bus, A) < shard(bus, B) < shard(bus, C) == shard(bus, BESIDE_C)


@pytest.mark.parametrize("seed", [1, 2])
async def test_random_moves_are_never_two_at_once_and_keep_order_and_fences(sandbox: Sandbox, moves: Log, seed: int) -> None:
    chance = random.Random(seed)
    accounts = [f"a-{number}" for number in range(8)]
    sent: list[Command[str]] = []
    for number in range(120):
        source, target, third = chance.sample(accounts, 3)
        note = str(number)
        kinds: list[Command[str]] = [
            Move(source=source, target=target, note=note), Deposit(account=source, note=note),
            Round(first=source, second=target, third=third, note=note), Move(source=source, target=source, note=note),
        ]  # fmt: skip
        sent.append(chance.choice(kinds))
        if chance.random() < 0.2 and not isinstance(sent[-1], Deposit):
            moves.failing[note] = 1
    async with bus_of(sandbox) as bus:
        assert (await bus.dispatch_batch(sent)).accepted == len(sent)
        async with bus.worker(), bus.worker():
            await until(lambda: is_empty(bus), 60)
        for account in accounts:
            wanted = [each.note for each in sent if account in {each.entity_id(), *(of for _, of in each.entity_ids())}]  # type: ignore[attr-defined]
            assert sorted(moves.ended[account], key=int) == wanted, "each once"
            assert moves.fences[account] == sorted(set(moves.fences[account]))
        assert not [key for key in await sandbox.entity_keys() if "}:relayed:" not in key]


async def test_the_order_holds_in_the_lines_of_the_first_shard(sandbox: Sandbox, moves: Log) -> None:
    sent = [
        Deposit(account=A, note="1"), Move(source=B, target=A, note="2"), Deposit(account=A, note="3"),
        Move(source=A, target=C, note="4"), Deposit(account=A, note="5"),
    ]  # fmt: skip
    async with bus_of(sandbox) as bus:
        await bus.dispatch_batch(sent)
        async with bus.worker():
            await until(lambda: is_empty(bus))
    assert moves.ended[A] == ["1", "2", "3", "4", "5"]


async def test_all_that_is_asked_of_it_goes_by_the_id_that_was_dispatched(sandbox: Sandbox, moves: Log) -> None:
    async with bus_of(sandbox) as bus, bus.worker():
        await bus.dispatch(Move(source=C, target=A, note="1"), command_id="m-1", history="1 hour")
        assert await bus.result("m-1", timeout=5) == "1 m-1"
        assert (await bus.dispatch(Move(source=C, target=A, note="1"), command_id="m-1")).status == "duplicate"
        assert (await bus.commands.status("m-1")).outcome == "completed"
        found = await bus.history.search(entity=("account", C))
        assert [(each.command_id, each.name) for each in found.entries] == [("m-1", Move.spec().name)]
        assert await bus.call(Round(first=C, second=B, third=A, note="2"), timeout=5)


async def test_how_it_ends_is_how_the_whole_ends(sandbox: Sandbox, moves: Log) -> None:
    moves.failing["fails"] = 1
    async with bus_of(sandbox) as bus, bus.worker():
        with pytest.raises(CommandRejected, match="too much") as refused:
            await bus.call(Move(source=A, target=C, note="rejected"), timeout=5)
        assert (refused.value.code, refused.value.details) == ("too_much", {"most": 5})
        with pytest.raises(CommandFailed, match="fails"):
            await bus.call(Drop(source=A, target=C, note="fails"), timeout=5)
        assert await has_letters(bus, 1)
        await bus.dispatch(Deposit(account=C, note="gate"))
        late = await bus.dispatch(Move(source=A, target=C, note="late"), expires=0.2, keep_result=True)
        await asyncio.sleep(0.4)
        moves.gates["gate"].set()
        with pytest.raises(CommandExpired):
            await late.result(timeout=5)
        await until(lambda: is_empty(bus))
        assert await bus.call(Deposit(account=A, note="after"), timeout=5) == "after"


async def test_what_waits_in_a_later_shard_holds_the_lines_before_and_can_be_cancelled(sandbox: Sandbox, moves: Log) -> None:
    async with bus_of(sandbox) as bus, bus.worker():
        await bus.dispatch(Deposit(account=C, note="gate"))
        await until(lambda: are(bus, {f"account:{C}": "running"}))
        await bus.dispatch(Move(source=A, target=C, note="moved"), command_id="held")
        await bus.dispatch(Deposit(account=A, note="behind"))
        await until(lambda: is_suspended(bus, A))
        assert (await bus.entity("account", A).show()).handlers == 1, "every worker has what handles it"
        assert moves.ended[A] == []
        assert await bus.commands.cancel("held", reason="no more", running=True)
        await until(lambda: has_ended(moves, A, "behind"))
        with pytest.raises(CommandCancelled, match="no more"):
            await bus.result("held", timeout=5)
        moves.gates["gate"].set()
        await until(lambda: is_empty(bus))
        assert moves.ended[C] == ["gate"]


async def is_suspended(bus: CommandBus, account: str) -> bool:
    return (await bus.entity("account", account).show()).entity.state == "suspended"


async def has_ended(log: Log, account: str, note: str) -> bool:
    return note in log.ended[account]


async def test_one_that_is_parked_holds_all_lines_until_its_letter_is_replayed_or_discarded(sandbox: Sandbox, moves: Log) -> None:
    async with bus_of(sandbox) as bus, bus.worker():
        for note, ends in (("replayed", "replay"), ("discarded", "discard")):
            moves.failing[note] = 3
            await bus.dispatch(Move(source=A, target=C, note=note), command_id=note)
            await until(lambda: has_letters(bus, 1))
            await bus.dispatch_batch([Deposit(account=A, note=f"{note} 2"), Deposit(account=C, note=f"{note} 3")])
            await asyncio.sleep(0.2)
            assert not await has_ended(moves, A, f"{note} 2")
            assert not await has_ended(moves, C, f"{note} 3")
            (letter,) = [each async for each in bus.dead_letters.list()]
            await getattr(bus.dead_letters, ends)(letter.id)
            await until(lambda: is_empty(bus))
    assert moves.ended[A] == ["replayed", "replayed 2", "discarded 2"]
    assert moves.ended[C] == ["replayed", "replayed 3", "discarded 3"]


async def test_a_letter_that_is_replayed_later_stands_in_all_lines_again(sandbox: Sandbox, moves: Log) -> None:
    moves.failing["again"] = 1
    async with bus_of(sandbox) as bus:
        async with bus.worker():
            await bus.dispatch(Drop(source=A, target=C, note="again"), command_id="d-1")
            await until(lambda: has_letters(bus, 1))
            await until(lambda: is_empty(bus))
        await bus.dispatch(Deposit(account=A, note="first"))
        (letter,) = [each async for each in bus.dead_letters.list()]
        replayed = await bus.dead_letters.replay(letter.id)
        assert await has_letters(bus, 0)
        await bus.dispatch(Deposit(account=A, note="last"))
        async with bus.worker():
            assert await bus.result(replayed, timeout=5) == f"again {replayed}"
            await until(lambda: is_empty(bus))
    assert moves.ended[A] == ["first", "again", "last"]
    assert moves.ended[C] == ["again"]


@pytest.mark.parametrize("ahead", [A, C])
async def test_one_fence_holds_for_all_whatever_the_clocks_of_the_shards(sandbox: Sandbox, moves: Log, ahead: str) -> None:
    async with bus_of(sandbox) as bus, bus.worker():
        await bus.call(Deposit(account=B, note="agreed"), timeout=5)
        number = shard(bus, ahead)
        client = sandbox.client(number)
        key = f"{{{sandbox.namespace}:{number}}}:fence"
        seconds, _ = await client.time()
        await client.set(key, (seconds + 1_000_000) * 1_000_000)
        await client.aclose()
        for note in range(3):
            await bus.call(Move(source=A, target=C, note=f"m{note}"), timeout=5)
            await bus.call(Deposit(account=A, note=f"a{note}"), timeout=5)
            await bus.call(Deposit(account=C, note=f"c{note}"), timeout=5)
    for account in (A, C):
        assert moves.fences[account] == sorted(set(moves.fences[account])), account


async def test_entities_of_one_shard_are_held_by_nothing(sandbox: Sandbox, moves: Log) -> None:
    async with sandbox.bus(shards=1) as bus, bus.worker():
        assert await bus.call(Round(first=A, second=B, third=C, note="1"), timeout=5)
    async with sandbox.bus(shards=1) as bus:
        receipt = await bus.dispatch(Round(first=A, second=B, third=C, note="2"))
        assert (await bus.commands.status(receipt)).name == Round.spec().name


async def test_who_did_not_say_so_is_refused(sandbox: Sandbox, moves: Log) -> None:
    async with bus_of(sandbox) as bus, bus.worker():
        with pytest.raises(InvalidCommand, match="across_shards=True"):
            await bus.dispatch(Skipped(source=A, target=C))
        raw = {"source": A, "target": C, "note": "raw"}
        with pytest.raises(InvalidCommand, match="across_shards=True"):
            await bus.dispatch_raw("account", A, Move.spec().name, raw, others=[("account", C)])
        await bus.dispatch_raw("account", A, Move.spec().name, raw, others=[("account", C)], across_shards=True)
        await bus.dispatch_raw("account", A, Skipped.spec().name, raw, others=[("account", C)], across_shards=True)
        await until(lambda: has_letters(bus, 1))
        await until(lambda: is_empty(bus))
        (letter,) = [each async for each in bus.dead_letters.list()]
        assert letter.reason == "invalid"
        assert "across_shards=False" in letter.error_message
        assert moves.ended[C] == ["raw"]


def test_what_a_class_may_not_say() -> None:
    with pytest.raises(RegistrationError, match="names one"):
        type("One", (Command[None],), {"__annotations__": {"account": EntityId}}, entity="account", across_shards=True)
    with pytest.raises(RegistrationError, match="durable"):

        class Lasting(Command[None], entity="account", across_shards=True, durable=True):
            source: EntityId
            target: EntityId


class Start(Command[str], entity="order", durable=True):
    order: EntityId
    how: str


@pytest.mark.parametrize("how", ["called", "sent", "undone"])
async def test_handlers_call_and_send_commands_of_several_entities(sandbox: Sandbox, moves: Log, how: str) -> None:
    @sandbox.registry.handles(Start)
    async def start(command: Start, context: DurableContext) -> str:
        if how == "sent":
            context.send(Move(source=A, target=C, note="sent"))
            context.send(Round(first=A, second=C, third=BESIDE_C, note="round"))
            context.send(Skipped(source=C, target=BESIDE_C, note="one"))
            return "done"
        undo = Move(source=C, target=A, note="back") if how == "undone" else None
        answer = await context.call(Move(source=A, target=C, note="called"), undo=undo)
        if undo is not None:
            raise Reject("no")
        return answer[:6]

    async with bus_of(sandbox) as bus, bus.worker():
        if how == "undone":
            with pytest.raises(CommandRejected):
                await bus.call(Start(order="o-1", how=how), timeout=10)
        else:
            assert await bus.call(Start(order="o-1", how=how), timeout=10) in ("done", "called")
        await until(lambda: is_empty(bus))
    wanted = {"called": ["called"], "sent": ["one", "round", "sent"], "undone": ["back", "called"]}[how]
    assert sorted(moves.ended[C]) == wanted
    assert sorted(moves.ended[A]) == [each for each in wanted if each != "one"]
    assert sorted(moves.ended[BESIDE_C]) == [each for each in wanted if each in ("one", "round")]


async def test_the_node_of_a_chain_stands_in_all_its_lines(sandbox: Sandbox, moves: Log) -> None:
    async with bus_of(sandbox) as bus, bus.worker():
        there, back = Move(source=A, target=C, note="1"), Move(source=C, target=B, note="2")
        assert (await bus.call(chain(node(there), back), timeout=10)).startswith("2 ")
        await until(lambda: is_empty(bus))
    assert (moves.ended[A], moves.ended[B], moves.ended[C]) == (["1"], ["2"], ["1", "2"])
