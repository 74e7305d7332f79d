"""Findings of type checkers on `@handles`: the reply is checked, and the function keeps its type.

Read by mypy and pyright, never run. Every line that must be an error carries the ignore comment of each checker; an ignore
comment that suppresses nothing is an error itself, so a mistake that goes unnoticed fails too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, assert_type

from command_bus.handlers.registry import HandlerRegistry, default_registry, handles
from command_bus.messages.context import CommandContext
from command_bus.messages.message import Command, EntityId, Query
from command_bus.messages.upcasting import upcasts


class Deposit(Command[int], entity="account"):
    account_id: EntityId
    amount: int


class Close(Command[None], entity="account", name="account.close"):
    account_id: EntityId


class Find(Query[str | None]):
    text: str


class Anything(Command[Any]): ...


class Renamed(Command[int], version=2, compress_above=1_000):
    amount: int


@upcasts(Renamed, since=1)
def renamed(fields: dict[str, Any]) -> dict[str, Any]:
    return fields


assert_type(renamed({}), dict[str, Any])


@upcasts(Renamed, since=1)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
def no_fields(fields: str) -> dict[str, Any]:
    return {}


registry = HandlerRegistry()
assert_type(default_registry, HandlerRegistry)


# Async functions.


@handles(Deposit)
async def deposit(command: Deposit) -> int:
    return command.amount


@registry.handles(Deposit)
async def deposit_with_context(command: Deposit, context: CommandContext) -> int:
    return context.attempt


@handles(Deposit)
async def narrower(command: Deposit) -> bool:
    return True


@handles(Close)
async def close(command: Close) -> None: ...


@handles(Find)
async def find(command: Find, *, limit: int = 3) -> str:
    return command.text


@handles(Anything)
async def anything(command: Anything) -> str:
    return ""


@handles(Deposit)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
async def wrong_reply(command: Deposit) -> str:
    return ""


@registry.handles(Deposit)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
async def wrong_reply_with_context(command: Deposit, context: CommandContext) -> str:
    return ""


@handles(Deposit)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
async def forgotten_reply(command: Deposit) -> None: ...


@handles(Deposit)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
async def perhaps_a_reply(command: Deposit) -> int | None:
    return None


@handles(Close)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
async def needless_reply(command: Close) -> int:
    return 1


# Sync functions.


@handles(Deposit)
def deposit_in_thread(command: Deposit, context: CommandContext) -> int:
    return context.attempt


@handles(Close)
def close_in_thread(command: Close) -> None: ...


@handles(Deposit)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
def wrong_reply_in_thread(command: Deposit) -> str:
    return ""


@handles(Close)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
def needless_reply_in_thread(command: Close) -> int:
    return 1


# Functions that return awaitables.


@handles(Deposit)
def coroutine(command: Deposit) -> Coroutine[Any, Any, int]:
    return deposit(command)


@handles(Deposit)
def future(command: Deposit) -> asyncio.Future[int]:
    return asyncio.ensure_future(deposit(command))


@handles(Deposit)
def task(command: Deposit) -> asyncio.Task[int]:
    return asyncio.create_task(deposit(command))


@handles(Deposit)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
def wrong_coroutine(command: Deposit) -> Coroutine[Any, Any, str]:
    raise NotImplementedError


@handles(Deposit)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
def wrong_future(command: Deposit) -> asyncio.Future[str]:
    raise NotImplementedError


@handles(Deposit)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
def some_awaitable(command: Deposit) -> Awaitable[int]:  # works, but checkers ask for the kind of awaitable; see Registration
    raise NotImplementedError


# Methods.


class Accounts:
    def __init__(self, bonus: int) -> None:
        self.bonus = bonus

    @handles(Deposit)
    async def deposit(self, command: Deposit) -> int:
        return command.amount + self.bonus

    @registry.handles(Deposit)
    def deposit_in_thread(self, command: Deposit, context: CommandContext) -> int:
        return context.attempt

    @staticmethod
    @handles(Close)
    def close(command: Close) -> None: ...

    @handles(Deposit)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    async def wrong_reply(self, command: Deposit) -> str:
        return ""

    @handles(Deposit)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    def wrong_reply_in_thread(self, command: Deposit) -> str:
        return ""


# Two messages, one function.


class Withdraw(Command[int], entity="account"):
    account_id: EntityId
    amount: int


@handles(Deposit)
@handles(Withdraw)
async def change(command: Deposit | Withdraw) -> int:
    return command.amount


# Only message classes are handled.

handles(int)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
handles(Deposit(account_id=1, amount=1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
registry.declare(Deposit, Close)
registry.declare(int)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# A registered function is called as if it were not: same parameters, same names, same reply.


async def plain_calls(accounts: Accounts, context: CommandContext) -> None:
    command = Deposit(account_id="a-1", amount=5)
    assert_type(await deposit(command), int)
    assert_type(await deposit(command=command), int)
    as_it_is: Callable[[Deposit], Coroutine[Any, Any, int]] = deposit
    assert_type(await as_it_is(command), int)
    assert_type(await deposit_with_context(command, context=context), int)
    await close(Close(account_id=7))
    assert_type(await change(Withdraw(account_id=7, amount=1)), int)
    assert_type(await find(Find(text="x"), limit=5), str | None)
    assert_type(deposit_in_thread(command, context), int)
    assert_type(await coroutine(command), int)
    assert_type(await future(command), int)
    assert_type(future(command), asyncio.Future[int])
    assert_type(await task(command), int)
    assert_type(await accounts.deposit(command), int)
    assert_type(await accounts.deposit(command=command), int)
    assert_type(accounts.deposit_in_thread(command, context), int)
    Accounts.close(Close(account_id=7))
    await deposit()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await deposit(Close(account_id=7))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await accounts.deposit(command, context)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# Messages are built with typed arguments.

Deposit(account_id="a-1", amount="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Deposit(account_id=None, amount=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Deposit(account_id="a-1", amuont=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
