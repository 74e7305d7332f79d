"""A dead letter is replayed with another payload: checked, at its place, under its id, signed again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from command_bus import (
    Command,
    CommandBus,
    CommandContext,
    EntityId,
    EntityPolicy,
    HandlerRegistry,
    IdempotencyConflict,
    InvalidCommand,
    InvalidSettings,
    RetryPolicy,
)
from command_bus.transport.records import StoredDeadLetter
from tests.conformance.conftest import Sandbox
from tests.conformance.list_server import ListServer
from tests.conformance.list_transport import lists
from tests.conformance.put_service import until

PARK = {"till": EntityPolicy(on_poison="park")}
KEYS = {"one": "a secret of some length"}


class Charge(Command[int], entity="till", retry=RetryPolicy(attempts=1)):
    till: EntityId
    amount: int
    at: datetime | None = None


class Other(Command[None], entity="till"):
    till: EntityId


class Till:
    """Handles charges, refuses negative ones by an error, and notes what it saw."""

    def __init__(self, registry: HandlerRegistry) -> None:
        self.seen: list[tuple[str, int]] = []
        self.headers: list[str | None] = []
        registry.handles(Charge)(self.charge)

    async def charge(self, command: Charge, context: CommandContext) -> int:
        if command.amount < 0:
            raise RuntimeError("below zero")
        self.seen.append((context.command_id, command.amount))
        self.headers.append(context.headers.get("edited_letter"))
        return command.amount


async def the_letter(bus: CommandBus) -> str:
    await until(bus.dead_letters.count)
    [letter] = [each async for each in bus.dead_letters.list()]
    return letter.id


async def edit_a_parked_one(bus: CommandBus, till: Till, *, queued_first: bool) -> None:
    """Park an entity with followers behind; edit; check that all run in order."""
    if queued_first:  # then the head stands in the stream, else its envelope is the lone one
        await bus.dispatch_batch([Charge(till="a", amount=-1), Charge(till="a", amount=1), Charge(till="a", amount=2)])
    else:
        await bus.dispatch(Charge(till="a", amount=-1), command_id="bad")
    async with bus.worker():
        letter = await the_letter(bus)
        if not queued_first:
            await bus.dispatch(Charge(till="a", amount=1))
            await bus.dispatch(Charge(till="a", amount=2))
        with pytest.raises(InvalidCommand, match="amount"):
            await bus.dead_letters.replay(letter, payload={"till": "a", "amount": "much"})
        with pytest.raises(InvalidCommand, match="another entity"):
            await bus.dead_letters.replay(letter, payload={"till": "b", "amount": 7})
        assert await bus.dead_letters.count()
        command_id = await bus.dead_letters.replay(letter, payload={"till": "a", "amount": 7})
        await bus.wait_idle(timeout=20)
    assert till.seen[0] == (command_id, 7)
    assert [amount for _, amount in till.seen] == [7, 1, 2]
    assert till.headers == [letter, None, None]
    assert (await bus.stats()).depth == 0
    assert not await bus.dead_letters.count()


@pytest.mark.promise("An operator edits a dead letter")
@pytest.mark.parametrize("queued_first", [True, False])
async def test_a_parked_command_is_edited_at_its_place(sandbox: Sandbox, queued_first: bool) -> None:
    till = Till(sandbox.registry)
    async with sandbox.bus(entities=PARK) as bus:
        await edit_a_parked_one(bus, till, queued_first=queued_first)
    assert not await sandbox.entity_keys()


async def test_on_lists() -> None:
    registry = HandlerRegistry()
    till = Till(registry)
    async with CommandBus("redis://unused", open_transport=lists(ListServer()), registry=registry, entities=PARK) as bus:
        await edit_a_parked_one(bus, till, queued_first=False)


@pytest.mark.parametrize("signing", [{}, {"signing_keys": KEYS, "require_signatures": True}], ids=["plain", "signed"])
async def test_another_joins_the_end_of_its_line(sandbox: Sandbox, signing: dict[str, Any]) -> None:
    till = Till(sandbox.registry)
    async with sandbox.bus(**signing) as bus, bus.worker():
        await bus.dispatch(Charge(till="a", amount=-1), command_id="bad")
        letter = await the_letter(bus)
        edited = Charge(till="a", amount=5, at=datetime(2026, 1, 2, tzinfo=UTC))
        assert await bus.dead_letters.replay(letter, payload=edited) == "bad"
        await bus.wait_idle(timeout=20)
        assert till.seen == [("bad", 5)]
        with pytest.raises(IdempotencyConflict):
            await bus.dispatch(Charge(till="a", amount=-1), command_id="bad")
        assert (await bus.dispatch(edited, command_id="bad")).status == "duplicate"


async def test_one_that_fails_again_says_that_it_was_edited(sandbox: Sandbox) -> None:
    Till(sandbox.registry)
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Charge(till="a", amount=-1))
        letter = await the_letter(bus)
        await bus.dead_letters.replay(letter, payload={"till": "a", "amount": -2})
        second = await the_letter(bus)
        found = await bus.dead_letters.get(second)
        assert found.payload == {"till": "a", "amount": -2}
        assert found.headers == {"edited_letter": letter}


async def test_94_what_cannot_be_edited_stays_as_it_is(sandbox: Sandbox) -> None:
    Till(sandbox.registry)
    async with sandbox.bus(signing_keys=KEYS) as bus, bus.worker():
        await bus.dispatch(Charge(till="a", amount=-1))
        letter = await the_letter(bus)
        letters = bus.dead_letters
        for wrong, told in (
            (Other(till="a"), "'Charge'"),
            ([1], "mapping"),
            ({1: 2}, "mapping"),
            ({"till": "a"}, "amount"),
            ({"till": "a", "amount": 1, "more": 2}, "more"),
            ({"till": "a", "amount": object()}, "amount"),
            ({}, "till"),
        ):
            with pytest.raises(InvalidCommand, match=told):
                await letters.replay(letter, payload=wrong)  # type: ignore[arg-type]
        async with sandbox.bus() as keyless:
            with pytest.raises(InvalidSettings, match="signing_keys"):
                await keyless.dead_letters.replay(letter, payload={"till": "a", "amount": 1})
        assert (await letters.get(letter)).id == letter
        store = bus.session.transport.operator.dead_letters
        stored = await store.get(letter)
        assert isinstance(stored, StoredDeadLetter)
        with pytest.raises(InvalidCommand, match="cannot be edited"):
            await letters._edited(replace(stored, raw=b"\xc1garbage"), letters._envelope(replace(stored, raw=b"")), {})


async def test_too_much_behind_it_is_refused(sandbox: Sandbox) -> None:
    Till(sandbox.registry)
    async with sandbox.bus(entities=PARK) as bus:
        await bus.dispatch_batch([Charge(till="a", amount=-1), Charge(till="a", amount=1)])
        async with bus.worker():
            letter = await the_letter(bus)
        keys = bus.session.redis.keys.shards[0]
        client = sandbox.client()
        await client.xadd(keys.mailbox("till:a"), {"e": b"x" * 9 * 1024 * 1024})
        before = await client.xrange(keys.mailbox("till:a"))
        with pytest.raises(InvalidCommand, match="8 MiB"):
            await bus.dead_letters.replay(letter, payload={"till": "a", "amount": 1})
        assert await client.xrange(keys.mailbox("till:a")) == before
        assert (await bus.dead_letters.get(letter)).parked
        await client.aclose()


async def test_ids_stay(sandbox: Sandbox) -> None:
    """What a mailbox holds keeps its ids, which are times of acceptance."""
    Till(sandbox.registry)
    async with sandbox.bus(entities=PARK) as bus:
        await bus.dispatch_batch([Charge(till="a", amount=-1), *(Charge(till="a", amount=1) for _ in range(250))])
        async with bus.worker():
            letter = await the_letter(bus)
        key, client = bus.session.redis.keys.shards[0].mailbox("till:a"), sandbox.client()
        before = await client.xrange(key)
        await bus.dead_letters.replay(letter, payload={"till": "a", "amount": 1})
        after = await client.xrange(key)
        assert [entry for entry, _ in after] == [entry for entry, _ in before]
        assert after[1:] == before[1:]
        assert after[0] != before[0]
        await client.aclose()
