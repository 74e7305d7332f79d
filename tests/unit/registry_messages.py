"""Messages for tests of the registry."""

# mypy: disable-error-code="empty-body"
# Most of these functions are only registered, never called.

from __future__ import annotations

import asyncio
from typing import Any

from command_bus.handlers.registry import HandlerRegistry
from command_bus.messages.context import CommandContext
from command_bus.messages.message import Command, EntityId, Query

__all__ = ["DEPOSIT", "WITHDRAW", "Accounts", "Balance", "Deposit", "Withdraw", "marks", "run"]


class Deposit(Command[int], entity="account"):
    account_id: EntityId
    amount: int = 5


class Withdraw(Command[int], entity="account", name="account.withdraw"):
    account_id: EntityId
    amount: int = 3


class Balance(Query[int], entity="account"):
    account_id: EntityId


DEPOSIT = Deposit(account_id="a-1")


WITHDRAW = Withdraw(account_id="a-1")


async def run(registry: HandlerRegistry, command: Any, context: CommandContext | None = None) -> Any:
    """Call the handler as a worker does: on the loop, or in a thread, within its scope if it has one."""
    handler = registry.lookup(type(command).spec().name)
    assert handler is not None
    if handler.is_async:
        assert handler.scope is None
        return await handler.invoke(command, context)
    if handler.scope is None:
        return await asyncio.to_thread(handler.invoke, command, context)
    async with handler.scope() as invoke:
        return await asyncio.to_thread(invoke, command, context)


marks = HandlerRegistry()


class Accounts:
    """Methods of every kind, marked."""

    made = 0

    def __init__(self, bonus: int = 0) -> None:
        type(self).made += 1
        self.bonus = bonus

    @marks.handles(Deposit)
    async def deposit(self, command: Deposit) -> int:
        return command.amount + self.bonus

    @marks.handles(Withdraw)
    def withdraw(self, command: Withdraw, context: CommandContext) -> int:
        return context.attempt + self.bonus
