"""Faults of other inboxes, from their public bug reports, tried on this one. Those that `test_bus.py` and `test_races.py` hold are not repeated:
effect and id in two transactions (wolverine#1677), what a consumer sent is sent twice (MassTransit#3791), one message at two instances at a
time (NServiceBus#6583, #4086)."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from command_bus import Command, CommandContext, CommandFailed, EntityId, HandlerRegistry, RetryPolicy, Snooze
from command_bus.sql import Inbox, WrongTransaction
from command_bus.testing import TestBus
from tests.sql.conftest import ADD, Stage
from tests.sql.test_blocks import context


class Charge(Command[int], entity="account", retry=RetryPolicy(attempts=3, delay=0.0)):
    account: EntityId


class Ship(Command[None], entity="parcel"):
    parcel: EntityId


def test_removals_do_not_wait_for_each_other_nor_for_a_long_block(server_stage: Stage) -> None:
    """wolverine#3116, NServiceBus.Persistence.Sql#778 and #8: cleaners of several instances that lock each other out, in one unbounded DELETE."""
    inbox = Inbox(keep=3600)
    with (
        Session(server_stage.engine) as session,
        inbox.batch(session, [context(f"c-{n}", entity=None) for n in range(1000)]) as block,
    ):
        block.results()
    server_stage.ask("UPDATE command_inbox SET done_ms = 0 RETURNING 1")
    with server_stage.engine.connect() as slow, slow.begin():
        slow.execute(text("SELECT 1 FROM command_inbox WHERE command_id IN ('c-300', 'c-301') FOR UPDATE"))
        with ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(_removed, server_stage, inbox) for _ in range(4)]
            assert sum(job.result(10) for job in jobs) == 998
    assert _removed(server_stage, inbox) == 2


def _removed(stage: Stage, inbox: Inbox) -> int:
    with stage.engine.connect() as connection:
        return sum(itertools.takewhile(bool, (inbox.remove_old(connection, most=100) for _ in range(9))))


async def test_a_command_that_is_put_off_holds_no_row(stage: Stage) -> None:
    """MassTransit#4299: a redelivery is awaited within the transaction, and the database is locked so long."""
    registry, snoozes = HandlerRegistry(), [Snooze(3600)]

    @registry.handles(Charge)
    async def charge(command: Charge, context: CommandContext) -> int:
        async with AsyncSession(stage.awaited) as session, Inbox().once(session, context) as once:
            (balance,) = (await session.execute(ADD, {"id": "a-1", "sum": 1})).one()
            if snoozes:
                raise snoozes.pop()
            return once.remember(balance)

    async with TestBus(registry) as bus:
        await bus.dispatch(Charge(account="a-1"))
        await bus.advance(60)
        assert stage.ask("SELECT * FROM command_fence") == []
        stage.ask("INSERT INTO account VALUES ('a-1', 10) RETURNING 1")  # waits for nobody
        await bus.run_until_idle()
    assert stage.balance("a-1") == 11


@pytest.mark.parametrize("isolation", ["SERIALIZABLE", "REPEATABLE READ"])
async def test_a_handler_that_tries_again_after_a_serialization_failure(server_stage: Stage, isolation: str) -> None:
    """MassTransit#4470: the driver's retry meets the state of the first try. Here a block that failed may be entered again, in the same run."""
    engine = create_engine(server_stage.url, isolation_level=isolation)
    registry, tries = HandlerRegistry(), list[str]()

    @registry.handles(Charge)
    def charge(command: Charge, context: CommandContext) -> int:
        while True:
            try:
                with Session(engine) as session, Inbox().once(session, context) as once:
                    context.send(Ship(parcel="p-1"))
                    session.execute(text("SELECT * FROM account")).all()
                    if not tries:  # somebody else writes what this one has read
                        server_stage.ask("UPDATE account SET balance = balance + 10 RETURNING 1")
                    return once.remember(session.execute(ADD, {"id": "a-1", "sum": 1}).scalar_one())
            except DBAPIError as error:
                tries.append(type(error.orig).__name__)

    @registry.handles(Ship)
    async def ship(command: Ship) -> None:
        tries.append("shipped")

    server_stage.ask("INSERT INTO account VALUES ('a-1', 0) RETURNING 1")
    async with TestBus(registry) as bus:
        assert await bus.call(Charge(account="a-1")) == 11
        await bus.run_until_idle()
    engine.dispose()
    assert tries == [
        "SerializationFailure",
        "shipped",
        "shipped",
    ]  # `send` was called twice: a handler that loops sends outside of its loop


async def test_an_id_that_is_sent_again_later_sends_again_under_the_same_ids(stage: Stage) -> None:
    """NServiceBus#3070: a duplicate sends what the first one has sent. Nobody knows whether that arrived: the first settlement may be lost. So it
    is sent, under the same ids, and an inbox there finds them."""
    registry, shipped = HandlerRegistry(), list[str]()

    @registry.handles(Charge)
    async def charge(command: Charge, context: CommandContext) -> int:
        async with AsyncSession(stage.awaited) as session, Inbox().once(session, context) as once:
            if not once.repeated:
                context.send(Ship(parcel="p-1"))
                once.remember((await session.execute(ADD, {"id": "a-1", "sum": 1})).scalar_one())
            return int(once.reply)

    @registry.handles(Ship)
    async def ship(command: Ship, context: CommandContext) -> None:
        shipped.append(context.command_id)
        async with AsyncSession(stage.awaited) as session, Inbox().once(session, context) as once:
            if not once.repeated:
                await session.execute(ADD, {"id": "p-1", "sum": 1})

    for _ in range(2):  # the second server has no mark of the id any more
        async with TestBus(registry, namespace="later") as bus:
            assert await bus.call(Charge(account="a-1"), command_id="c-1") == 1
            await bus.run_until_idle()
    assert len(shipped) == 2
    assert len(set(shipped)) == 1
    assert (stage.balance("a-1"), stage.balance("p-1")) == (1, 1)


def test_an_error_that_is_swallowed_within_the_block_commits_nothing(stage: Stage) -> None:
    """A duplicate key that is caught without a savepoint leaves PostgreSQL's transaction aborted, whose COMMIT is a ROLLBACK without an error
    (getsentry/sentry#119534). The block must not end as if it had committed."""
    stage.ask("INSERT INTO account VALUES ('a-1', 5) RETURNING 1")
    inbox = Inbox()

    def run() -> None:
        with Session(stage.engine) as session, inbox.once(session, context("c-1")):
            session.execute(ADD, {"id": "a-2", "sum": 1})
            with suppress(IntegrityError):
                session.execute(text("INSERT INTO account VALUES ('a-1', 7)"))

    if stage.name == "sqlite":  # there only the statement is undone
        run()
        assert stage.balance("a-2") == 1
    else:
        with pytest.raises(SQLAlchemyError, match="aborted"):
            run()
        assert stage.balance("a-2") == 0
        assert stage.ask("SELECT * FROM command_inbox") == []


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_194_a_transaction_that_is_ended_within_the_block_is_an_error(stage: Stage, end: str) -> None:
    """An effect that the handler commits by itself, or undoes after an error that it swallows, would be parted from its id."""
    with pytest.raises(WrongTransaction, match="ended within"):
        with Session(stage.engine) as session, Inbox().once(session, context("c-1")):
            session.execute(ADD, {"id": "a-1", "sum": 1})
            getattr(session, end)()
    with pytest.raises(WrongTransaction, match="ended within"):
        with stage.engine.connect() as connection, Inbox().once(connection, context("c-2", 2)):
            connection.execute(ADD, {"id": "a-1", "sum": 1})
            getattr(connection, end)()
    with pytest.raises(WrongTransaction, match="ended within"):
        async with AsyncSession(stage.awaited) as awaited, Inbox().once(awaited, context("c-3", 3)):
            await awaited.execute(ADD, {"id": "a-1", "sum": 1})
            await getattr(awaited, end)()
    assert stage.balance("a-1") == (3 if end == "commit" else 0)


async def test_a_savepoint_within_the_block_may_be_rolled_back(stage: Stage) -> None:
    async with AsyncSession(stage.awaited) as session, Inbox().once(session, context("c-1")) as once:
        await session.execute(ADD, {"id": "a-1", "sum": 1})
        with pytest.raises(OSError):
            async with session.begin_nested():
                await session.execute(ADD, {"id": "a-1", "sum": 5})
                raise OSError
        once.remember(1)
    assert (stage.balance("a-1"), stage.ask("SELECT count(*) FROM command_inbox")) == (1, [(1,)])


async def test_nothing_is_dropped_while_the_database_is_away(stage: Stage) -> None:
    """wolverine#3767: messages are gone whose inbox could not be reached. Here that is an error of the handler as any other."""
    registry, away = HandlerRegistry(), list[Any]()
    lost = create_async_engine("sqlite+aiosqlite:////nowhere/at/all.db")

    @registry.handles(Charge)
    async def charge(command: Charge, context: CommandContext) -> int:
        engine = lost if len(away) < 5 else stage.awaited
        away.append(1)
        async with AsyncSession(engine) as session, Inbox().once(session, context) as once:
            return once.remember((await session.execute(ADD, {"id": "a-1", "sum": 1})).scalar_one())

    async with TestBus(registry) as bus:
        with pytest.raises(CommandFailed, match="unable to open"):
            await bus.call(Charge(account="a-1"))
        (letter,) = [each async for each in bus.bus.dead_letters.list()]
        await bus.bus.dead_letters.replay(letter.id)
        await bus.run_until_idle()
    assert stage.balance("a-1") == 1
    await lost.dispose()
