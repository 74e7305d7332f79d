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


class Post(Command[int], entity="account"):
    account: EntityId
    number: int


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


@pytest.mark.parametrize("step", ["claimed", "handled", "settled"])
@pytest.mark.parametrize("nth", [1, 2, 7])
async def test_a_crash_in_a_run_of_one_entity_changes_its_state_once(registry: HandlerRegistry, step: str, nth: int) -> None:
    sizes: list[int] = []

    @registry.handles_many(Post, of="entity", size=5)
    async def post(commands: Sequence[Post], account: Account) -> Sequence[int]:
        sizes.append(len(commands))
        for each in commands:
            assert each.number == account.balance, "in order"
            account.balance += 1
        return [each.number for each in commands]

    async with TestBus(registry) as bus:
        bus.crash_after(step, Post, nth=nth)
        for number in range(12):
            await bus.dispatch(Post(account="a-17", number=number))
        await bus.run_until_idle()
        assert await bus.bus.states.get(Account, "a-17") == Account(balance=12)
        assert bus.crashed == 1
    assert max(sizes) == 5


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
