"""A bank behind a gateway: commands with every kind of end, and who may send them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Annotated

from pydantic import Field

from command_bus import Command, CommandBus, CommandContext, EntityId, Event, HandlerRegistry, Query, Reject, RetryPolicy
from command_bus.gateway import Grant, Tokens, tokens

__all__ = ["TOKENS", "Bank", "allowed", "open_bank", "token_of"]

ONCE = RetryPolicy(attempts=1)


class Deposit(Command[int], entity="account"):
    """Puts money on an account."""

    account_id: EntityId
    amount: Annotated[int, Field(gt=0)]
    note: str = ""


class Withdraw(Command[int], entity="account"):
    account_id: EntityId
    amount: int


class GetBalance(Query[int], entity="account"):
    account_id: EntityId


class Burn(Command[None], entity="account", retry=ONCE):
    account_id: EntityId


class Audit(Command[dict[str, float | None]], entity="account"):
    account_id: EntityId
    pages: int = 3


class Stamp(Command[str]):
    at: datetime
    price: Decimal
    tags: Annotated[list[str], Field(default_factory=list)]


class Deposited(Event, entity="account", name="account.deposited"):
    """Money was put on an account."""

    account_id: EntityId
    amount: Annotated[int, Field(gt=0)]
    price: Decimal = Decimal(0)


class Held(Command[str], entity="hold"):
    hold_id: EntityId


@dataclass
class Bank:
    """The application: what its handlers know."""

    registry: HandlerRegistry = field(default_factory=HandlerRegistry)
    balances: dict[str, int] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    held: asyncio.Event = field(default_factory=asyncio.Event)
    posted: list[tuple[str, str, int, Decimal, str | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        handles = self.registry.handles
        handles(Deposit)(self.deposit)
        handles(Withdraw)(self.withdraw)
        handles(GetBalance)(self.balance)
        handles(Burn)(self.burn)
        handles(Audit)(self.audit)
        handles(Stamp)(self.stamp)
        handles(Held)(self.hold)
        self.registry.subscribes("ledger", Deposited)(self.post)

    async def deposit(self, command: Deposit, context: CommandContext) -> int:
        account = str(command.account_id)
        self.headers[account] = dict(context.headers)
        self.balances[account] = self.balances.get(account, 0) + command.amount
        return self.balances[account]

    async def withdraw(self, command: Withdraw) -> int:
        account = str(command.account_id)
        if self.balances.get(account, 0) < command.amount:
            raise Reject("not that much", code="insufficient_funds", details={"missing": command.amount})
        self.balances[account] -= command.amount
        return self.balances[account]

    async def balance(self, query: GetBalance) -> int:
        return self.balances.get(str(query.account_id), 0)

    async def burn(self, command: Burn) -> None:
        raise ConnectionError("the vault at 10.0.0.7 is on fire")

    async def audit(self, command: Audit, context: CommandContext) -> dict[str, float | None]:
        for page in range(command.pages):
            context.progress((page + 1) / (command.pages + 1), f"page {page}")
            await asyncio.sleep(0.15)
        return {"pages": command.pages, "ratio": float("nan")}

    async def stamp(self, command: Stamp) -> str:
        return f"{command.at.isoformat()} {command.price} {','.join(command.tags)}"

    async def post(self, event: Deposited, context: CommandContext) -> None:
        tenant = context.headers.get("tenant")
        self.posted.append((context.event_id, str(event.account_id), event.amount, event.price, tenant))

    async def hold(self, command: Held) -> str:
        await self.held.wait()
        return "released"


TOKENS = {
    name: f"cb_test_token_of_{name}_0123456789"
    for name in ("ops", "ci", "caller", "publisher", "looker", "canceller", "hearer", "reader", "slow")
}


def token_of(name: str) -> str:
    return TOKENS.get(name, name)


def allowed() -> Tokens:
    return tokens(
        {
            "ops": Grant(TOKENS["ops"], ("*",)),
            "ci": Grant(TOKENS["ci"], ("send:Deposit",)),
            "caller": Grant(TOKENS["caller"], ("call:Deposit", "call:GetBalance")),
            "publisher": Grant(TOKENS["publisher"], ("publish:account.deposited",)),
            "looker": Grant(TOKENS["looker"], ("look",)),
            "canceller": Grant(TOKENS["canceller"], ("cancel",)),
            "hearer": Grant(TOKENS["hearer"], ("events",)),
            "reader": Grant(TOKENS["reader"], ("inspect",)),
            "slow": Grant(TOKENS["slow"], ("send", "look"), rate=2.0),
        }
    )


@asynccontextmanager
async def open_bank(url: str, namespace: str) -> AsyncGenerator[tuple[CommandBus, Bank]]:
    """Yield the bus of a bank whose worker runs."""
    bank = Bank()
    async with CommandBus(url, namespace=namespace, registry=bank.registry, grace=1.0) as bus, bus.worker(concurrency=50):
        yield bus, bank
        bank.held.set()
