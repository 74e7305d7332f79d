"""The state of an entity: what its handlers get and leave, what is seen beside the line, and what is refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import Field

from command_bus import (
    BadState,
    Command,
    CommandBus,
    CommandContext,
    CommandFailed,
    CommandRejected,
    DurableContext,
    EntityBusy,
    EntityId,
    EntityState,
    HandlerRegistry,
    InvalidCommand,
    Query,
    RegistrationError,
    Reject,
    RetryPolicy,
    Snooze,
    StateConflict,
    lanes,
    upcasts,
)
from command_bus.clock import wall_ms
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.test_durable_signals import Mirror

pytestmark = pytest.mark.server
registry = HandlerRegistry()
ONCE = RetryPolicy(attempts=1)


class Account(EntityState, entity="account"):
    balance: int = 0
    notes: list[str] = Field(default_factory=list[str])


class Deposit(Command[int], entity="account", retry=RetryPolicy(attempts=2, delay=0.01)):
    account: EntityId
    amount: int
    fails: str = ""


class Balance(Query[int], entity="account"):
    account: EntityId


class Close(Command[None], entity="account"):
    account: EntityId


class Wait(Command[int], entity="account", durable=True):
    account: EntityId
    amount: int


failed: list[int] = []


@registry.handles(Deposit)
async def deposit(command: Deposit, context: CommandContext, account: Account) -> int:
    assert context.state is account
    account.balance += command.amount
    account.notes.append(f"+{command.amount}")
    match command.fails:
        case "reject":
            raise Reject("no")
        case "raise":
            raise ValueError("no")
        case "once" if context.attempt == 1:
            failed.append(account.balance)
            raise ValueError("no")
        case "snooze" if not failed:
            failed.append(account.balance)
            raise Snooze(0.01)
        case "large":
            account.notes.append("x" * 70_000)
        case "wrong":
            account.notes.append(7)  # type: ignore[arg-type]
        case _:
            pass
    return account.balance


@registry.handles(Balance)
def balance(command: Balance, account: Account) -> int:
    return account.balance


@registry.handles(Close)
async def close(command: Close, account: Account, context: CommandContext) -> None:
    account.balance = 77
    context.delete_state()


@registry.handles(Wait)
async def wait(command: Wait, context: DurableContext, account: Account) -> int:
    before = account.balance
    account.balance += command.amount
    await context.sleep(0.05)
    assert account.balance == before + command.amount
    return account.balance


@pytest.fixture
async def bus(sandbox: Sandbox) -> AsyncIterator[CommandBus]:
    failed.clear()
    async with sandbox.bus(registry=registry) as bus, bus.worker(concurrency=4):
        yield bus


async def test_a_call_leaves_its_effect_where_it_is_seen_at_once(bus: CommandBus) -> None:
    assert await bus.states.get(Account, "a") is None
    for number in range(1, 6):
        assert await bus.call(Deposit(account="a", amount=1)) == number
        assert await bus.states.get(Account, "a") == Account(balance=number, notes=["+1"] * number)
    assert await bus.call(Balance(account="a")) == 5
    await bus.dispatch_batch(Deposit(account=each, amount=2) for _ in range(40) for each in ("a", "b"))
    assert await bus.call(Balance(account="b")) == 80
    assert await bus.call(Balance(account="a")) == 85
    found = await bus.states.get_many(Account, ["a", "b", "c"])
    assert {name: each.balance for name, each in found.items()} == {"a": 85, "b": 80}


@pytest.mark.parametrize("fails", ["reject", "raise"])
async def test_what_is_not_completed_changes_nothing(bus: CommandBus, fails: str) -> None:
    await bus.call(Deposit(account="a", amount=1))
    before = await bus.states.find(Account, "a")
    with pytest.raises(CommandRejected if fails == "reject" else CommandFailed):
        await bus.call(Deposit(account="a", amount=100, fails=fails))
    assert await bus.states.find(Account, "a") == before
    assert await bus.call(Deposit(account="a", amount=1)) == 2


@pytest.mark.parametrize("fails", ["once", "snooze"])
async def test_each_attempt_gets_the_state_anew(bus: CommandBus, fails: str) -> None:
    await bus.call(Deposit(account="a", amount=1))
    assert await bus.call(Deposit(account="a", amount=10, fails=fails)) == 11
    assert failed == [11]


async def test_a_query_alone_stores_nothing(bus: CommandBus) -> None:
    assert await bus.call(Balance(account="new")) == 0
    assert await bus.states.get(Account, "new") is None


async def test_a_state_is_deleted_with_the_settlement(bus: CommandBus) -> None:
    await bus.call(Deposit(account="a", amount=1))
    await bus.call(Close(account="a"))
    assert await bus.states.get(Account, "a") is None
    assert await bus.call(Balance(account="a")) == 0
    await bus.call(Close(account="a"))


async def test_a_durable_handler_changes_it_with_its_end(bus: CommandBus) -> None:
    await bus.call(Deposit(account="a", amount=1))
    waits = await bus.dispatch(Wait(account="a", amount=5), keep_result=True)
    behind = await bus.dispatch(Deposit(account="a", amount=1), keep_result=True)
    assert await waits.result(timeout=20) == 6
    assert await behind.result(timeout=20) == 7


@pytest.mark.parametrize(("fails", "why"), [("large", "max_state"), ("wrong", "Account.notes.2")])
async def test_what_cannot_be_stored_fails_and_is_not_tried_again(bus: CommandBus, fails: str, why: str) -> None:
    await bus.call(Deposit(account="a", amount=1))
    with pytest.raises(CommandFailed, match=why):
        await bus.call(Deposit(account="a", amount=1, fails=fails))
    (letter,) = [each async for each in bus.dead_letters.list()]
    assert (letter.error_type, letter.attempts) == ("command_bus.errors.BadState", 1)
    assert await bus.states.get(Account, "a") == Account(balance=1, notes=["+1"])
    assert await bus.call(Deposit(account="a", amount=1)) == 2


async def test_a_wrong_value_is_refused_where_it_is_assigned() -> None:
    with pytest.raises(ValueError, match="balance"):
        Account().balance = "many"  # type: ignore[assignment]


async def test_operators_list_correct_and_delete(bus: CommandBus) -> None:
    for name in ("a", "b/ü", "x" * 600):
        await bus.call(Deposit(account=name, amount=len(name)))
    entries = {each.entity_id: each async for each in bus.states.list(Account)}
    long = next(name for name in entries if name.startswith("~"))
    assert {name: each.value.balance for name, each in entries.items()} == {"a": 1, "b/ü": 3, long: 600}
    assert [each.value["balance"] async for each in bus.states.list("account") if each.entity_id == "a"] == [1]
    found = entries["a"]
    assert abs(found.changed_ms / 1000 - time.time()) < 60
    revision = await bus.states.put("a", Account(balance=50), expected=found.revision)
    assert revision > found.revision
    with pytest.raises(StateConflict, match=f"revision {revision}"):
        await bus.states.put("a", Account(balance=51), expected=found.revision)
    with pytest.raises(StateConflict):
        await bus.states.put("a", Account(balance=51), expected=0)
    await bus.states.put("new", Account(balance=9), expected=0)
    assert await bus.call(Deposit(account="a", amount=1)) == 51
    assert await bus.states.delete(Account, "a")
    assert not await bus.states.delete("account", "a")
    assert await bus.call(Deposit(account="a", amount=1)) == 1


async def test_nobody_changes_it_under_a_handler(sandbox: Sandbox) -> None:
    own, begun, go = HandlerRegistry(), asyncio.Event(), asyncio.Event()

    @own.handles(Deposit)
    async def slowly(command: Deposit, account: Account) -> int:
        account.balance += command.amount
        begun.set()
        await go.wait()
        return account.balance

    async with sandbox.bus(registry=own) as bus, bus.worker():
        receipt = await bus.dispatch(Deposit(account="a", amount=1), keep_result=True)
        await begun.wait()
        with pytest.raises(EntityBusy, match="account:a runs or is suspended"):
            await bus.states.put("a", Account())
        with pytest.raises(EntityBusy):
            await bus.states.delete(Account, "a")
        go.set()
        assert await receipt.result(timeout=10) == 1


class Kept(EntityState, entity="kept", keep="1 s"):
    count: int = 0


class Count(Command[int], entity="kept"):
    kept: EntityId


async def test_what_is_kept_no_longer_is_not_seen(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    own = HandlerRegistry()

    @own.handles(Count)
    async def count(command: Count, kept: Kept) -> int:
        kept.count += 1
        return kept.count

    async with sandbox.bus(registry=own) as bus, bus.worker():
        assert await bus.call(Count(kept="k")) == 1
        assert await bus.call(Count(kept="k")) == 2
        await asyncio.sleep(1.2)
        assert await bus.states.get(Kept, "k") is None
        assert await bus.call(Count(kept="k")) == 1
        assert await bus.states.get(Kept, "k") == Kept(count=1)


class OldState(EntityState, entity="thing"):
    euros: int = 0


class NewState(EntityState, entity="thing", version=2):
    cents: int = 0


@upcasts(NewState, since=1)
def cents_of_euros(fields: dict[str, Any]) -> dict[str, Any]:
    return {"cents": fields["euros"] * 100}


class Add(Command[int], entity="thing"):
    thing: EntityId


def registry_of(kind: Any) -> HandlerRegistry:
    own = HandlerRegistry()

    async def add(command: Add, state: Any) -> int:
        for name in type(state).model_fields:
            setattr(state, name, getattr(state, name) + 1)
            return int(getattr(state, name))
        raise AssertionError

    add.__annotations__["state"] = kind
    own.handles(Add)(add)
    return own


async def overwrite(sandbox: Sandbox, mailbox: str, value: bytes) -> bytes:
    """Write bytes where a state is stored; return those of the entity `thing:t`."""
    client, key = sandbox.client(), f"{{{sandbox.namespace}:0}}:states"
    await client.hset(key, mailbox, value)  # type: ignore[misc,arg-type]
    found: Any = await client.hget(key, "thing:t")  # type: ignore[misc]
    await client.aclose()
    return bytes(found or b"")


async def test_older_versions_are_brought_up_and_newer_ones_left_to_newer_workers(sandbox: Sandbox) -> None:
    old, new = sandbox.bus(registry=registry_of(OldState)), sandbox.bus(registry=registry_of(NewState))
    async with old, new:
        async with old.worker():
            assert await old.call(Add(thing="t")) == 1
        async with new.worker():
            assert await new.call(Add(thing="t")) == 101
        assert await new.states.get(NewState, "t") == NewState(cents=101)
        with pytest.raises(BadState, match="version 2, and the class here has version 1"):
            await old.states.get(OldState, "t")
        async with old.worker():
            receipt = await new.dispatch(Add(thing="t"), keep_result=True)
            await asyncio.sleep(0.3)
            assert (await new.commands.status(receipt.command_id, entity=("thing", "t"))).state != "completed"
            async with new.worker():
                assert await receipt.result(timeout=30) == 102


async def test_what_nobody_can_read_parks_the_entity_and_nothing_runs_on_defaults(sandbox: Sandbox) -> None:
    own = registry_of(NewState)
    async with sandbox.bus(registry=own, unknown_grace=0) as bus, bus.worker():
        await bus.call(Add(thing="t"))
        await overwrite(sandbox, "thing:t", b"\xc1 odd")
        with pytest.raises(CommandFailed, match="of a later release, or not what a bus has stored"):
            await bus.call(Add(thing="t"), timeout=10)
        (letter,) = [each async for each in bus.dead_letters.list()]
        assert letter.reason == "bad_state"
        assert letter.parked
        await bus.states.delete(NewState, "t")
        await bus.dead_letters.replay(letter.id)
        await bus.wait_idle(10)
        assert await bus.states.get(NewState, "t") == NewState(cents=1)


async def test_signed_and_encrypted_states_hold_for_their_entity_alone(sandbox: Sandbox) -> None:
    own = registry_of(NewState)
    async with sandbox.bus(registry=own, signing_keys={"k": "s" * 32}, cipher=Mirror(), unknown_grace=0) as bus, bus.worker():
        await bus.call(Add(thing="t"))
        await bus.call(Add(thing="t"))
        value = await overwrite(sandbox, "thing:x", b"")
        assert b"cents" not in value
        assert await bus.states.get(NewState, "t") == NewState(cents=2)
        await overwrite(sandbox, "thing:u", value)
        with pytest.raises(BadState, match="signed for another entity"):
            await bus.states.get(NewState, "u")
        with pytest.raises(CommandFailed, match="signed for another entity"):
            await bus.call(Add(thing="u"), timeout=10)
        await overwrite(sandbox, "thing:v", value[:-3])
        with pytest.raises(BadState):
            await bus.states.get(NewState, "v")
    async with sandbox.bus(registry=own) as plain:
        with pytest.raises(BadState, match="no cipher"):
            await plain.states.get(NewState, "t")


async def test_large_states_are_compressed_where_payloads_are(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=registry, compress_above=200) as bus:
        await bus.states.put("a", Account(notes=["x" * 5000]))
        found = await bus.states.find(Account, "a")
        assert found is not None
        assert found.size < 300
        assert found.value == Account(notes=["x" * 5000])


async def test_lanes_have_no_states(sandbox: Sandbox) -> None:
    from command_bus import EntityPolicy

    async with sandbox.bus(registry=registry, entities={"account": EntityPolicy(lanes(4))}) as bus:
        with pytest.raises(InvalidCommand, match="they have no states"):
            await bus.states.get(Account, "a")
        with pytest.raises(RegistrationError, match="has a state, but entities of type 'account' share"):
            await bus.worker().start()


async def test_a_key_that_expires_does_not_come_back_by_a_clock(bus: CommandBus) -> None:
    await bus.call(Deposit(account="a", amount=1))
    found = await bus.states.find("account", "a")
    assert found is not None
    assert abs(found.changed_ms - wall_ms()) < 60_000
