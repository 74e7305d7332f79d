"""The reply of a message is typed from its class to its caller.

Read by mypy and pyright, never run; see `registration.py`.
"""

from __future__ import annotations

from typing import Any, Literal, assert_type

from pydantic import BaseModel

from command_bus import Command, CommandBus, EntityId, Query, Receipt


class Statement(BaseModel):
    balance: int


class Deposit(Command[int], entity="account"):
    account_id: EntityId
    amount: int


class Close(Command[None], entity="account"):
    account_id: EntityId


class GetStatement(Query[Statement], entity="account"):
    account_id: EntityId


class FindAccounts(Query[list[str]]):
    text: str


class Owner(Query[str | None], entity="account"):
    account_id: EntityId


class State(Query[Literal["open", "closed"]], entity="account"):
    account_id: EntityId


class Untyped(Command[Any]): ...


class BigDeposit(Deposit): ...


async def calls(bus: CommandBus) -> None:
    assert_type(await bus.call(Deposit(account_id="a-1", amount=5)), int)
    assert_type(await bus.call(Deposit(account_id="a-1", amount=5), timeout=5.0), int)
    assert_type(await bus.call(BigDeposit(account_id="a-1", amount=5)), int)
    assert_type(await bus.call(GetStatement(account_id=7)), Statement)
    assert_type((await bus.call(GetStatement(account_id=7))).balance, int)
    assert_type(await bus.call(FindAccounts(text="a")), list[str])
    assert_type(await bus.call(Owner(account_id=7)), str | None)
    assert_type(await bus.call(State(account_id=7)), Literal["open", "closed"])
    assert_type(await bus.call(Untyped()), Any)
    assert_type(await bus.call_raw("account", "a-1", "Deposit", {"amount": 5}, timeout=5), Any)
    await bus.call(Close(account_id=7))

    wrong: str = await bus.call(Deposit(account_id="a-1", amount=5))  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]
    print(wrong)
    await bus.call("Deposit")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await bus.call(Deposit)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    receipt = await bus.dispatch(Owner(account_id="a"), keep_result=True)
    assert_type(receipt, Receipt[str | None])
    assert_type(await receipt.result(timeout=5), str | None)
    assert_type(await (await bus.entity("account", "a").dispatch(Deposit(account_id="a", amount=1))).result(), int)
    assert_type(await (await bus.dispatch_raw(None, None, "Ping", {}, keep_result=True)).result(), Any)
    await bus.dispatch(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
