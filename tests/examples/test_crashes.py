"""The examples' handlers under crashes, with the project's own testing kit: what must bear being run twice does."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from command_bus import HandlerRegistry, Message, Reject
from command_bus.testing import CRASH_POINTS, CrashPoint, TestBus
from examples.bank import __main__ as bank
from examples.flights import handlers as flights
from examples.flights.commands import Depart
from examples.flights.model import Aircraft
from examples.retail import handlers as retail
from examples.retail.commands import RecordPurchase
from examples.retail.model import Account


class Kept(dict[str, tuple[Aircraft, int]]):
    """Stands for the hangar."""

    async def load(self, tail: str) -> tuple[Aircraft, int]:
        return self.get(tail, (Aircraft(), 0))

    async def store(self, tail: str, aircraft: Aircraft, fence: int) -> None:
        self[tail] = aircraft, fence


class Books(dict[str, Account]):
    """Stands for the ledger."""

    async def load(self, customer: str) -> Account:
        return self.get(customer, Account())

    async def store(self, customer: str, account: Account) -> None:
        self[customer] = account

    async def provider_answers(self) -> bool:
        return True


async def run(registry: HandlerRegistry, commands: list[Message[Any]], point: CrashPoint | None) -> TestBus:
    async with TestBus(registry) as bus:
        if point is not None:
            bus.crash_after(point, nth=2)
        await bus.dispatch_batch(commands)
        await bus.run_until_idle()
        assert bus.crashed == (point is not None)
    return bus


@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_an_aircraft_is_where_it_would_be_without_the_crash(point: CrashPoint) -> None:
    commands: list[Message[Any]] = [Depart(tail="N1", seq=seq, airport="EWR", ts=seq * 10, delay=seq) for seq in range(1, 5)]
    states = []
    for crash in (None, point):
        hangar = Kept()
        await run(flights.registry_for(hangar), commands, crash)  # type: ignore[arg-type]  # all that the handlers use
        states.append(hangar["N1"][0])
    assert states[1].violations == 0
    assert (states[0].seq, states[0].chain, states[0].flights) == (states[1].seq, states[1].chain, states[1].flights)
    assert states[1].repeats == (point == "handled")


@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_an_account_is_charged_once(point: CrashPoint) -> None:
    commands: list[Message[Any]] = [
        RecordPurchase(customer="1", line=line, day=date(1997, 1, line), discs=1, dollars=Decimal(line)) for line in range(1, 5)
    ]
    books = Books()
    await run(retail.registry_for(books), commands, point)  # type: ignore[arg-type]  # as above
    assert books["1"].cents == 1000


class TestBank:
    """Its handlers add to a dictionary, and are not made for crashes: its test says so."""

    @pytest.fixture
    def command_bus_registry(self) -> HandlerRegistry:
        bank.balances.clear()
        return bank.registry

    @pytest.fixture
    async def opened(self, command_bus: TestBus) -> TestBus:
        await command_bus.dispatch(bank.Deposit(account_id="a-1", amount=100))
        return command_bus

    async def test_a_refusal(self, opened: TestBus) -> None:
        await opened.dispatch(bank.Withdraw(account_id="a-1", amount=1000))
        await opened.run_until_idle()
        balance, refusal = opened.replies
        assert balance == 100
        assert isinstance(refusal, Reject)
        assert refusal.code == "insufficient_funds"

    async def test_a_statement_without_paper_ends_as_a_dead_letter(self, opened: TestBus) -> None:
        await opened.dispatch(bank.PrintStatement(account_id="a-1"))
        await opened.run_until_idle()
        (letter,) = [letter async for letter in opened.bus.dead_letters.list()]
        assert (letter.name, letter.attempts) == ("PrintStatement", 2)

    async def test_a_deposit_that_is_run_again_counts_twice(self, opened: TestBus) -> None:
        opened.crash_after("handled", bank.Deposit)
        assert await opened.call(bank.GetBalance(account_id="a-1"), timeout=120) == 200
