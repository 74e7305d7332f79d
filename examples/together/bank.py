"""Accounts in SQLite, and transfers between two of them: whoever has too little sends nothing, so the balances show the order."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from command_bus import Command, CommandContext, EntityId, RetryPolicy

__all__ = ["FILE", "Transfer", "balances", "by_hand", "move", "open_accounts", "transfers"]

FILE, _ACCOUNTS, _START = "bank.sqlite", 10, 100


class Transfer(Command[None], entity="account", retry=RetryPolicy(attempts=1_000, delay=0.05, max_delay=0.2)):
    source: EntityId
    target: EntityId
    cents: int
    number: int


def transfers() -> Iterator[Transfer]:
    """Yield transfers between accounts, the same in each run."""
    chance, number = random.Random(12), 0
    while True:
        source, target = chance.sample(range(_ACCOUNTS), 2)
        yield Transfer(source=f"a-{source}", target=f"a-{target}", cents=chance.randrange(1, 80), number=number)
        number += 1


def open_accounts(file: Path) -> None:
    """Open the accounts in a new database."""
    file.unlink(missing_ok=True)
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("PRAGMA journal_mode = wal")
        db.execute("CREATE TABLE account (id TEXT PRIMARY KEY, cents INTEGER, fence INTEGER)")
        db.execute("CREATE TABLE done (number INTEGER PRIMARY KEY)")
        db.executemany("INSERT INTO account VALUES (?, ?, 0)", [(f"a-{number}", _START) for number in range(_ACCOUNTS)])


def move(file: Path, command: Transfer, context: CommandContext) -> None:
    """Carry out a transfer, once: in one transaction, and not for a worker that has lost its lease.

    Raises:
        RuntimeError: A later command of one of the accounts was here before.
    """
    with closing(sqlite3.connect(file, timeout=30)) as db, db:
        db.execute("BEGIN IMMEDIATE")
        if not db.execute("INSERT OR IGNORE INTO done VALUES (?)", [command.number]).rowcount:
            return
        accounts = (command.source, command.target)
        query = "UPDATE account SET fence = ? WHERE id IN (?, ?) AND fence <= ?"
        if db.execute(query, (context.fence, *accounts, context.fence)).rowcount != len(accounts):
            raise RuntimeError("a later command was here before")
        paid = "UPDATE account SET cents = cents - ? WHERE id = ? AND cents >= ?"
        if db.execute(paid, (command.cents, command.source, command.cents)).rowcount:
            db.execute("UPDATE account SET cents = cents + ? WHERE id = ?", (command.cents, command.target))


def balances(file: Path) -> dict[str, int]:
    """Return what the accounts have."""
    with closing(sqlite3.connect(file)) as db:
        return dict(db.execute("SELECT id, cents FROM account"))


def by_hand(sent: list[Transfer]) -> dict[str, int]:
    """Return what the accounts have if the transfers are carried out one by one, in the order in which they were accepted."""
    book = {f"a-{number}": _START for number in range(_ACCOUNTS)}
    for each in sent:
        if book[str(each.source)] >= each.cents:
            book[str(each.source)] -= each.cents
            book[str(each.target)] += each.cents
    return book
