"""The tables, and the command that posts to them."""

from __future__ import annotations

import os

from sqlalchemy import BigInteger, Column, Identity, Integer, MetaData, Table, Text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from command_bus import Command, EntityId

__all__ = ["ACCOUNT", "ACCOUNTS", "DATABASE", "ENTRY", "OWN", "TRANSFER", "Post", "engine_here"]

DATABASE = "LEDGER_DATABASE"
"""Variable: the URL of the database."""
ACCOUNTS = 12
OWN = MetaData()
TRANSFER = Table("transfer", OWN, Column("id", Text, primary_key=True), Column("cents", Integer, nullable=False))
ACCOUNT = Table(
    "account",
    OWN,
    Column("id", Text, primary_key=True),
    Column("asked", Integer, nullable=False),  # how many postings its transfers have asked for
    Column("balance", Integer, nullable=False),
)
ENTRY = Table(
    "entry",
    OWN,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("account", Text, nullable=False),
    Column("transfer", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("cents", Integer, nullable=False),
)


class Post(Command[None], entity="account"):
    """A posting: the `number`-th that was asked for of its account."""

    account: EntityId
    transfer: str
    number: int
    cents: int


def engine_here() -> AsyncEngine:
    """Return the engine of a process of the example."""
    try:
        return create_async_engine(os.environ[DATABASE], pool_pre_ping=True)
    except KeyError:
        raise SystemExit("the processes of the example are started by `python -m examples.ledger`") from None
