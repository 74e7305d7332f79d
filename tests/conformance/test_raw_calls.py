"""`call_raw`: a call without the command's class is answered and fails as one with it, over every server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from command_bus import (
    CallCycle,
    Command,
    CommandBus,
    CommandExpired,
    CommandFailed,
    CommandInterrupted,
    CommandRejected,
    CommandTimeout,
    EntityId,
    IdempotencyConflict,
    InvalidCommand,
    Middleware,
    NoHandler,
    Query,
    Reject,
    RetryPolicy,
)
from command_bus.messages.outgoing import OutgoingMessage
from tests.conformance.conftest import Sandbox

SINCE = datetime(2026, 11, 21, tzinfo=UTC)


class Statement(BaseModel):
    balance: Decimal
    since: datetime


class Deposit(Command[Statement], entity="account", name="deposit", retry=RetryPolicy(attempts=1)):
    account_id: EntityId
    amount: Decimal


class Search(Query[list[str]], name="search"):
    text: str


class Relay(Command[None], entity="account", name="relay"):
    account_id: EntityId


class Reach(Command[str], entity="account", name="reach", delivery="at_most_once"):
    account_id: EntityId


@pytest.fixture
def balances(sandbox: Sandbox) -> dict[str, Decimal]:
    balances: dict[str, Decimal] = {}

    @sandbox.registry.handles(Deposit)
    async def deposit(command: Deposit) -> Statement:
        if command.amount < 0:
            raise Reject("negative", code="negative", details={"amount": command.amount})
        if not command.amount:
            raise OSError("no paper")
        account = str(command.account_id)
        balances[account] = balances.get(account, Decimal(0)) + command.amount
        return Statement(balance=balances[account], since=SINCE)

    @sandbox.registry.handles(Search)
    async def search(command: Search) -> list[str]:
        return [account for account in balances if command.text in account]

    return balances


async def letters(bus: CommandBus) -> list[str]:
    return [letter.reason async for letter in bus.dead_letters.list()]


async def test_the_reply_is_plain_data(sandbox: Sandbox, balances: dict[str, Decimal]) -> None:
    async with sandbox.bus() as bus, bus.worker():
        fields = {"account_id": 7, "amount": Decimal("2.50")}
        assert await bus.call_raw("account", 7, "deposit", fields, timeout=5) == {"balance": Decimal("2.50"), "since": SINCE}
        assert await bus.call_raw(None, None, "search", {"text": ""}, timeout=5) == ["7"]


async def test_a_failed_result_raises_like_a_call(sandbox: Sandbox, balances: dict[str, Decimal]) -> None:
    async with sandbox.bus(unknown_grace=0.0) as bus, bus.worker():
        with pytest.raises(CommandRejected, match="negative") as rejected:
            await bus.call_raw("account", "a", "deposit", {"account_id": "a", "amount": Decimal(-1)}, timeout=5)
        assert (rejected.value.code, rejected.value.details) == ("negative", {"amount": Decimal(-1)})
        with pytest.raises(CommandFailed, match="no paper"):
            await bus.call_raw("account", "a", "deposit", {"account_id": "a", "amount": Decimal(0)}, timeout=5)
        with pytest.raises(NoHandler):
            await bus.call_raw("account", "a", "withdraw", {"account_id": "a"}, timeout=5)
        with pytest.raises(InvalidCommand, match="amount"):  # the worker says so
            await bus.call_raw("account", "a", "deposit", {"account_id": "a"}, timeout=5)
        for wrong in ({"payload": [1]}, {"timeout": 0}, {"command_id": ""}, {"entity_id": None}):  # and these have not left
            arguments: dict[str, Any] = {"entity_type": "account", "entity_id": "a", "name": "deposit", "payload": {}, **wrong}
            with pytest.raises(InvalidCommand):
                await bus.call_raw(**arguments)
    assert balances == {}


async def test_a_repeat_gets_the_stored_reply_also_from_the_class(sandbox: Sandbox, balances: dict[str, Decimal]) -> None:
    async with sandbox.bus() as bus, bus.worker():
        fields = {"account_id": "a", "amount": Decimal(5)}
        first = await bus.call_raw("account", "a", "deposit", fields, timeout=5, command_id="once")
        assert await bus.call_raw("account", "a", "deposit", fields, timeout=5, command_id="once") == first
        assert await bus.result("once") == first
        typed = await bus.call(Deposit(account_id="a", amount=Decimal(5)), timeout=5, command_id="once")
        assert typed == Statement(balance=Decimal(5), since=SINCE)
        with pytest.raises(IdempotencyConflict):
            await bus.call_raw("account", "a", "deposit", {**fields, "amount": Decimal(6)}, timeout=5, command_id="once")
    assert balances == {"a": Decimal(5)}


async def test_an_expired_command_is_not_started_and_leaves_no_dead_letter(
    sandbox: Sandbox, balances: dict[str, Decimal]
) -> None:
    async with sandbox.bus() as bus:
        with pytest.raises(CommandTimeout) as timeout:
            await bus.call_raw("account", "a", "deposit", {"account_id": "a", "amount": Decimal(5)}, timeout=0.05)
        async with bus.worker():
            await bus.wait_idle(5)
            with pytest.raises(CommandExpired):
                await bus.result(timeout.value.command_id)
        assert await letters(bus) == []
    assert balances == {}


async def test_the_contract_is_that_of_the_handler(sandbox: Sandbox) -> None:
    """A worker is stopped after it started an at-most-once command: the caller gets the error, with or without the class."""
    started = asyncio.Event()

    @sandbox.registry.handles(Reach)
    async def reach(command: Reach) -> str:
        started.set()
        await asyncio.sleep(60)
        return "done"

    async with sandbox.bus(grace=0.05) as bus:
        async with bus.worker():
            asked = asyncio.create_task(bus.call_raw("account", "a", "reach", {"account_id": "a"}, timeout=10))
            await asyncio.wait_for(started.wait(), 5)
        with pytest.raises(CommandInterrupted):
            await asked
        assert await letters(bus) == ["interrupted"]


async def test_a_handler_that_calls_its_own_entity_is_refused(sandbox: Sandbox, balances: dict[str, Decimal]) -> None:
    async with sandbox.bus() as bus:

        @sandbox.registry.handles(Relay)
        async def relay(command: Relay) -> None:
            await bus.call_raw("account", command.account_id, "deposit", {"account_id": command.account_id, "amount": Decimal(1)})

        async with bus.worker():
            with pytest.raises(CallCycle, match="holds itself"):
                await bus.call_raw("account", "a", "relay", {"account_id": "a"}, timeout=5)


async def test_middleware_is_around_it(sandbox: Sandbox, balances: dict[str, Decimal]) -> None:
    log: list[str] = []

    class Trace(Middleware):
        async def call(self, outgoing: OutgoingMessage, proceed: Callable[[OutgoingMessage], Awaitable[Any]]) -> Any:
            log.append(f"call {outgoing.name} {outgoing.headers} {outgoing.command}")
            return await proceed(outgoing)

    async with sandbox.bus(middleware=[Trace()]) as bus, bus.worker():
        await bus.call_raw(None, None, "search", {"text": "a"}, timeout=5, headers={"who": "me"})
    assert log == ["call search {'who': 'me'} None"]
