"""States of entities and handlers of many commands on a test bus: in virtual time, and through crashes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from command_bus import Command, CommandContext, EntityId, EntityState, HandlerRegistry
from command_bus.testing import TestBus


class Account(EntityState, entity="account"):
    balance: int = 0


class Deposit(Command[int], entity="account"):
    account: EntityId
    amount: int


class Close(Command[None], entity="account"):
    account: EntityId


class Insert(Command[int], entity="row"):
    row: EntityId


@pytest.fixture
def registry() -> HandlerRegistry:
    made = HandlerRegistry()

    @made.handles(Deposit)
    async def deposit(command: Deposit, account: Account) -> int:
        account.balance += command.amount
        return account.balance

    @made.handles(Close)
    async def close(command: Close, account: Account, context: CommandContext) -> None:
        context.delete_state()

    @made.handles_many(Insert, size=10, wait=60)
    async def insert(commands: Sequence[Insert]) -> Sequence[int]:
        return [len(commands)] * len(commands)

    return made


@pytest.mark.parametrize("step", ["claimed", "executed", "settled"])
async def test_a_crash_changes_a_state_once(registry: HandlerRegistry, step: str) -> None:
    async with TestBus(registry) as bus:
        bus.crash_after(step, Deposit)
        for amount in (5, 7, 1):
            await bus.dispatch(Deposit(account="a-17", amount=amount))
        await bus.run_until_idle()
        assert await bus.bus.states.get(Account, "a-17") == Account(balance=13)
        await bus.dispatch(Close(account="a-17"))
        await bus.run_until_idle()
        assert await bus.bus.states.get(Account, "a-17") is None


async def test_a_batch_waits_in_virtual_time(registry: HandlerRegistry) -> None:
    async with TestBus(registry) as bus:
        for number in range(13):
            await bus.dispatch(Insert(row=f"r{number}"))
        await bus.run_until_idle()
        assert sorted(bus.replies) == [3] * 3 + [10] * 10


async def test_a_handler_with_a_state_is_a_plain_function(registry: HandlerRegistry) -> None:
    async def deposit(command: Deposit, account: Account) -> int:
        account.balance += command.amount
        return account.balance

    assert await deposit(Deposit(account="a", amount=5), Account(balance=2)) == 7
