"""Public reports about other outboxes, each as a program against this one, on a PostgreSQL with settings that outboxes have stumbled on.

Lost locks: JasperFx/wolverine#2602, oban-bg/oban#1488. Transactions that commit in another order: kamu-data/kamu-cli#1398,
MassTransit/MassTransit#3512. Several parts of one transaction: Particular/NServiceBus.Persistence.Sql#1193.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from command_bus.embedded import EmbeddedServer
from command_bus.sql import OutboxRelay
from scripts.postgres import postgres, programs
from tests.sql.conftest import Stage
from tests.sql.outbox_shop import Ship, Shop

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("outbox_reports")]  # one database for all

_HARD = {
    "max_prepared_transactions": "10",
    "default_transaction_isolation": "repeatable read",
    "statement_timeout": "5s",
    "idle_in_transaction_session_timeout": "1s",
}


@pytest.fixture(scope="module")
def hard_url() -> Iterator[str]:
    """Start a server with settings that others have stumbled on."""
    found = programs()
    if found is None:
        pytest.skip("no PostgreSQL runs here")
    with postgres(found, _HARD) as url:
        yield url


@pytest.fixture
async def hard(hard_url: str, server: EmbeddedServer) -> AsyncIterator[Shop]:
    stage = Stage("postgresql", hard_url, create_engine(hard_url), create_async_engine(hard_url))
    stage.create()
    stage.clear()
    yield Shop(stage, server)
    await stage.awaited.dispose()
    stage.engine.dispose()


async def test_savepoints(hard: Shop) -> None:
    with Session(hard.stage.engine) as session, session.begin():
        hard.outbox.add(session, Ship(order="o-1", n=0))
        for number, fails in ((90, True), (1, False), (91, True)):
            inner = session.begin_nested()
            hard.outbox.add(session, Ship(order="o-1", n=number))
            session.flush()
            (inner.rollback if fails else inner.commit)()
        hard.outbox.add(session, Ship(order="o-1", n=2))
    async with hard.bus, hard.relay() as relay:
        await relay.drained()
        assert await hard.handled() == [0, 1, 2]


@pytest.mark.parametrize("ends", ["COMMIT PREPARED 'one'", "ROLLBACK PREPARED 'one'"])
async def test_two_phase_commits(hard: Shop, ends: str) -> None:
    connection = hard.stage.engine.connect()
    hard.outbox.add(connection, Ship(order="o-1", n=0))
    connection.exec_driver_sql("PREPARE TRANSACTION 'one'")
    connection.close()
    async with hard.bus, hard.relay() as relay:
        later = asyncio.create_task(asyncio.to_thread(hard.add, 1))
        await asyncio.to_thread(hard.add, 0, order="other")
        await relay.drained()
        assert relay.sent == 1
        with hard.stage.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(ends)
        await later
        await relay.drained()
        await hard.handled()
    assert [n for order, n in hard.seen if order == "o-1"] == ([0, 1] if ends.startswith("COMMIT") else [1])


async def test_constraints_are_checked_early_and_rows_are_changed_or_deleted(hard: Shop) -> None:
    async with hard.bus, hard.relay() as relay:
        with Session(hard.stage.engine) as session, session.begin():
            hard.outbox.add(session, Ship(order="o-1", n=0), command_id="a")
            hard.outbox.add(session, Ship(order="o-1", n=9), command_id="gone")
            session.flush()
            session.execute(text("SET CONSTRAINTS ALL IMMEDIATE"))
            session.execute(text("DELETE FROM command_outbox WHERE command_id = 'gone'"))
            hard.outbox.add(session, Ship(order="o-1", n=1), command_id="b")
            session.flush()
            session.execute(text("SET CONSTRAINTS ALL DEFERRED"))
            hard.outbox.add(session, Ship(order="o-1", n=8), command_id="gone too")
            session.flush()
            session.execute(text("DELETE FROM command_outbox WHERE command_id = 'gone too'"))
            session.execute(text("UPDATE command_outbox SET added_ms = 1 WHERE command_id = 'a'"))
            hard.outbox.add(session, Ship(order="o-1", n=2), command_id="c")
        await relay.drained()
        assert await hard.handled() == [0, 1, 2]


async def test_the_table_is_emptied_while_rows_are_kept(hard: Shop) -> None:
    async with hard.bus, hard.relay(keep=0.5) as relay:
        await asyncio.to_thread(hard.add, 0, 1)
        await relay.drained()
        hard.stage.ask_nothing("TRUNCATE command_outbox RESTART IDENTITY")
        await asyncio.to_thread(hard.add, 2, 3)
        await relay.drained()
        await hard.emptied()
        assert await hard.handled() == [0, 1, 2, 3]


async def test_a_lock_is_lost_with_its_backend(hard: Shop) -> None:
    async with hard.bus, hard.relay(keep=0.1), hard.relay(keep=0.1):
        for number in range(30):
            await asyncio.to_thread(hard.add, number)
            if number % 6 == 0:
                hard.stage.ask(
                    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND pid <> pg_backend_pid()"
                )
        await hard.emptied()
        assert await hard.handled() == list(range(30))


async def test_two_schemas_with_an_outbox_each(hard: Shop, server: EmbeddedServer) -> None:
    for schema in ("one", "two"):
        hard.stage.ask_nothing(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        hard.stage.ask_nothing(f"CREATE SCHEMA {schema}")
    relays, stages = list[OutboxRelay](), list[Stage]()
    for schema in ("one", "two"):
        url = make_url(hard.stage.url).update_query_dict({"options": f"-csearch_path={schema}"})
        stage = Stage("postgresql", str(url), create_engine(url), create_async_engine(url))
        stage.create()
        stages.append(stage)
        with Session(stage.engine) as session, session.begin():
            hard.outbox.add(session, Ship(order=schema, n=0))
        relays.append(OutboxRelay(hard.bus, stage.awaited, name=schema, keep=0.1))
    async with hard.bus, relays[0], relays[1]:
        await relays[0].drained()
        await relays[1].drained()
        assert sorted(await hard.handled()) == [0, 0]
    for stage in stages:
        await stage.awaited.dispose()
        stage.engine.dispose()


async def test_a_commit_of_thousands_of_rows(hard: Shop) -> None:
    async with hard.bus, hard.relay(keep=0.1) as relay:
        with hard.stage.engine.begin() as connection:
            for at in range(0, 6000, 3000):
                connection.execute(hard.outbox.insert([Ship(order=f"o-{n % 7}", n=n) for n in range(at, at + 3000)]))
        await relay.drained()
        await hard.handled()
    for entity in range(7):
        assert [n for order, n in hard.seen if order == f"o-{entity}"] == list(range(entity, 6000, 7))
