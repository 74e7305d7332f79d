"""Commands and handlers. They know nothing of HTTP: a worker process imports this module alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from pydantic import Field

from command_bus import Command, CommandContext, EntityId, HandlerRegistry, Query, Reject

__all__ = ["Deposit", "GetBalance", "Withdraw", "registry_for"]

Amount = Annotated[int, Field(gt=0)]


class Deposit(Command[int], entity="account"):
    """Gives the new balance."""

    account_id: EntityId
    amount: Amount


class Withdraw(Command[int], entity="account"):
    """Gives the new balance."""

    account_id: EntityId
    amount: Amount


class GetBalance(Query[int], entity="account"):
    """Returns the balance. It sees the effect of all commands accepted before it."""

    account_id: EntityId


_TABLES = """
CREATE TABLE IF NOT EXISTS accounts (id TEXT PRIMARY KEY, balance INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS applied (command_id TEXT PRIMARY KEY, balance INTEGER NOT NULL);
"""


class Books:
    """The database. One transaction holds a command's effect and its id, so a command that runs again changes nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path  # opened by each command: importing a program makes no file

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        database = sqlite3.connect(self._path, timeout=30)
        try:
            database.executescript(_TABLES)
            with database:
                yield database
        finally:
            database.close()

    def balance(self, account: str) -> int:
        with self._transaction() as database:
            row = database.execute("SELECT balance FROM accounts WHERE id = ?", (account,)).fetchone()
        return 0 if row is None else int(row[0])

    def add(self, account: str, amount: int, command_id: str) -> int:
        with self._transaction() as database:
            done = database.execute("SELECT balance FROM applied WHERE command_id = ?", (command_id,)).fetchone()
            if done is not None:
                return int(done[0])
            row = database.execute("SELECT balance FROM accounts WHERE id = ?", (account,)).fetchone()
            balance = (0 if row is None else int(row[0])) + amount
            if balance < 0:
                raise Reject("insufficient funds", code="insufficient_funds", details={"short": -balance})
            database.execute("INSERT OR REPLACE INTO accounts VALUES (?, ?)", (account, balance))
            database.execute("INSERT INTO applied VALUES (?, ?)", (command_id, balance))
        return balance


def registry_for(path: Path) -> HandlerRegistry:
    """Return the handlers over the database at that path. They are synchronous, so they run in threads."""
    registry, books = HandlerRegistry(), Books(path)

    @registry.handles(Deposit)
    def deposit(command: Deposit, context: CommandContext) -> int:
        return books.add(str(command.account_id), command.amount, context.command_id)

    @registry.handles(Withdraw)
    def withdraw(command: Withdraw, context: CommandContext) -> int:
        return books.add(str(command.account_id), -command.amount, context.command_id)

    @registry.handles(GetBalance)
    def get_balance(query: GetBalance) -> int:
        return books.balance(str(query.account_id))

    return registry
