"""Bank accounts: fire and forget, a call with a typed reply, a business refusal, a dead letter. Run `python -m examples.bank`.

It needs no server. In earnest the balances are in a database and workers are processes of their own: `command-bus worker`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from uuid import uuid4

from command_bus import Command, CommandBus, CommandRejected, EntityId, HandlerRegistry, Query, Reject, RetryPolicy

registry = HandlerRegistry()
balances: dict[str | int, int] = defaultdict(int)  # no lock: the bus runs one command of an account at a time, in order


class Deposit(Command[int], entity="account"):
    account_id: EntityId
    amount: int


class Withdraw(Command[int], entity="account"):
    account_id: EntityId
    amount: int


class GetBalance(Query[int], entity="account"):
    account_id: EntityId


class PrintStatement(Command[None], entity="account", retry=RetryPolicy(attempts=2, delay=0.05)):
    account_id: EntityId


@registry.handles(Deposit)
async def deposit(command: Deposit) -> int:
    balances[command.account_id] += command.amount
    return balances[command.account_id]


@registry.handles(Withdraw)
async def withdraw(command: Withdraw) -> int:
    if balances[command.account_id] < command.amount:
        raise Reject("insufficient funds", code="insufficient_funds")
    balances[command.account_id] -= command.amount
    return balances[command.account_id]


@registry.handles(GetBalance)
async def get_balance(query: GetBalance) -> int:
    return balances[query.account_id]


@registry.handles(PrintStatement)
async def print_statement(command: PrintStatement) -> None:
    raise OSError(f"no paper for {command.account_id}")


async def main() -> None:
    async with CommandBus(namespace="bank-example", registry=registry) as bus, bus.worker():
        slip = uuid4()
        for _ in range(2):
            receipt = await bus.dispatch(Deposit(account_id="a-1", amount=100), command_id=slip)
            print("deposit of 100 under the same id:", receipt.status)
        print("balance after a withdrawal of 30:", await bus.call(Withdraw(account_id="a-1", amount=30)))
        try:
            await bus.call(Withdraw(account_id="a-1", amount=1000))
        except CommandRejected as refusal:
            print(f"withdrawal of 1000 refused: {refusal.message} ({refusal.code})")
        await bus.dispatch(PrintStatement(account_id="a-1"))
        print("balance, after the statement in line before it:", await bus.call(GetBalance(account_id="a-1")))
        async for letter in bus.dead_letters.list():
            print(f"dead letter: {letter.name} of {letter.entity}: {letter.error_message} ({letter.attempts} attempts)")
            await bus.dead_letters.discard(letter.id)


if __name__ == "__main__":
    asyncio.run(main())
