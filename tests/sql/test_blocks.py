"""Blocks of an inbox on contexts made by hand: each kind of session, repeats, fences, conflicts, batches, removal, wrong use."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from command_bus import CommandContext, Reject, Snooze
from command_bus.errors import BadResult, InvalidCommand, InvalidSettings
from command_bus.sql import Inbox, InboxConflict, Once, StaleFence, WrongTransaction, metadata
from command_bus.sql.tables import beginning
from tests.sql.conftest import ADD, Stage

Way = Callable[[Stage, Inbox, CommandContext], Any]


def context(command_id: str, fence: int = 1, entity: str | None = "a-1", name: str = "Charge") -> CommandContext:
    return CommandContext(
        command_id=command_id, name=name, entity_type=entity and "account", entity_id=entity, fence=fence
    )  # fmt: skip


@asynccontextmanager
async def by_session(stage: Stage, inbox: Inbox, of: CommandContext) -> AsyncIterator[tuple[Once, Any]]:
    with Session(stage.engine) as session, inbox.once(session, of) as once:
        yield once, lambda: session.execute(ADD, {"id": of.entity_id or "-", "sum": 1}).scalar_one()


@asynccontextmanager
async def by_connection(stage: Stage, inbox: Inbox, of: CommandContext) -> AsyncIterator[tuple[Once, Any]]:
    with stage.engine.connect() as connection, inbox.once(connection, of) as once:
        yield once, lambda: connection.execute(ADD, {"id": of.entity_id or "-", "sum": 1}).scalar_one()


class _Awaited:
    """An effect that is made when it is awaited."""

    def __init__(self, database: Any, of: CommandContext) -> None:
        self._database, self._of = database, of

    async def __call__(self) -> int:
        return (await self._database.execute(ADD, {"id": self._of.entity_id or "-", "sum": 1})).scalar_one()


@asynccontextmanager
async def by_async_session(stage: Stage, inbox: Inbox, of: CommandContext) -> AsyncIterator[tuple[Once, Any]]:
    async with AsyncSession(stage.awaited) as session, inbox.once(session, of) as once:
        yield once, _Awaited(session, of)


@asynccontextmanager
async def by_async_connection(stage: Stage, inbox: Inbox, of: CommandContext) -> AsyncIterator[tuple[Once, Any]]:
    async with stage.awaited.connect() as connection, inbox.once(connection, of) as once:
        yield once, _Awaited(connection, of)


WAYS = [by_session, by_connection, by_async_session, by_async_connection]
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


async def charge(
    way: Way, stage: Stage, of: CommandContext, fails: BaseException | None = None, inbox: Inbox | None = None
) -> Any:
    """Add 1 to the account once; return the reply, and whether it was repeated."""
    async with way(stage, inbox or Inbox(), of) as (once, effect):
        if once.repeated:
            return once.reply, True
        made = effect()
        balance = made if isinstance(made, int) else await made
        if fails is not None:
            raise fails
        return once.remember(balance), False


@every_way
async def test_an_effect_happens_once_and_a_repeat_has_its_reply(stage: Stage, way: Way) -> None:
    assert await charge(way, stage, context("c-1")) == (1, False)
    assert await charge(way, stage, context("c-1", fence=2)) == (1, True)
    assert await charge(way, stage, context("c-2", fence=3)) == (2, False)
    assert stage.balance("a-1") == 2
    assert stage.ask("SELECT mailbox, fence FROM command_fence") == [("account:a-1", 3)]


@every_way
async def test_what_fails_or_is_rejected_leaves_nothing(stage: Stage, way: Way) -> None:
    for error in (Reject("no"), OSError("away"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            await charge(way, stage, context("c-1"), fails=error)
    assert (
        stage.ask("SELECT * FROM command_inbox")
        == stage.ask("SELECT * FROM command_fence")
        == stage.ask("SELECT * FROM account")
        == []
    )
    assert await charge(way, stage, context("c-1")) == (1, False)


@every_way
async def test_an_older_fence_is_refused_and_the_same_one_is_not(stage: Stage, way: Way) -> None:
    await charge(way, stage, context("c-1", fence=20_000_000))
    await charge(way, stage, context("c-2", fence=20_000_000))
    with pytest.raises(StaleFence) as caught:
        await charge(way, stage, context("c-3", fence=5_000_000))
    assert caught.value.seconds == 15
    with pytest.raises(StaleFence) as caught:
        await charge(way, stage, context("c-3", fence=0, entity="a-1"))
    assert isinstance(caught.value, Snooze)
    assert stage.balance("a-1") == 2
    assert await charge(way, stage, context("c-4", fence=1, entity="a-2")) == (1, False)


async def test_a_wait_for_a_clock_has_an_end(stage: Stage) -> None:
    await charge(by_connection, stage, context("c-1", fence=10**15))
    with pytest.raises(StaleFence) as caught:
        await charge(by_connection, stage, context("c-2", fence=1))
    assert caught.value.seconds * caught.value.most == 600
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), copy.seconds, str(copy)) == (StaleFence, 60, str(caught.value))


async def test_a_known_command_is_found_whatever_its_fence(stage: Stage) -> None:
    await charge(by_connection, stage, context("c-1", fence=5))
    await charge(by_connection, stage, context("c-2", fence=6))
    assert await charge(by_connection, stage, context("c-1", fence=5)) == (1, True)


async def test_without_an_entity_there_is_no_fence(stage: Stage) -> None:
    assert await charge(by_connection, stage, context("c-1", fence=9, entity=None)) == (1, False)
    assert await charge(by_connection, stage, context("c-2", fence=8, entity=None)) == (2, False)
    assert await charge(by_connection, stage, context("c-1", fence=7, entity=None)) == (1, True)
    assert stage.ask("SELECT * FROM command_fence") == []


@every_way
async def test_an_id_of_another_command_is_a_conflict(stage: Stage, way: Way) -> None:
    await charge(way, stage, context("c-1"))
    with pytest.raises(InboxConflict, match="other fields") as caught:
        await charge(way, stage, context("c-1", entity="a-2"))
    assert caught.value.command_id == "c-1"
    assert not caught.value.retryable
    assert stage.balance("a-2") == 0


@pytest.mark.parametrize("odd", ["a\0b", "x" * 1000, "'; DROP TABLE account; --", "%(ids)s :now", "\U0001f600 %"])
async def test_ids_may_be_any_text(stage: Stage, odd: str) -> None:
    for entity in (odd, None):
        for fence, repeated in ((1, False), (2, True)):
            with Session(stage.engine) as session, Inbox().once(session, context(f"{odd}{entity}", fence, entity)) as once:
                assert once.repeated is repeated


async def test_what_is_not_remembered_is_none(stage: Stage) -> None:
    for repeated in (False, True):
        with stage.engine.connect() as connection, Inbox().once(connection, context("c-1")) as once:
            assert (once.repeated, once.reply) == (repeated, None)


async def test_a_reply_that_cannot_be_kept_commits_nothing(stage: Stage) -> None:
    with pytest.raises(BadResult), stage.engine.connect() as connection, Inbox().once(connection, context("c-1")) as once:
        connection.execute(ADD, {"id": "a-1", "sum": 1})
        once.remember(object())
    assert stage.balance("a-1") == 0


async def test_a_repeat_has_one_reply(stage: Stage) -> None:
    await charge(by_connection, stage, context("c-1"))
    with pytest.raises(InvalidCommand, match="first reply"), stage.engine.connect() as connection:
        with Inbox().once(connection, context("c-1")) as once:
            once.remember(7)


def batch(stage: Stage, contexts: list[CommandContext], replies: Mapping[int, Any] | None = None) -> tuple[list[int], list[Any]]:
    with Session(stage.engine) as session, Inbox().batch(session, contexts) as block:
        for index in block.fresh:
            session.execute(ADD, {"id": contexts[index].entity_id or "-", "sum": 1})
        return block.fresh, block.results({index: f"r{index}" for index in block.fresh} if replies is None else replies)


def test_a_batch_has_fresh_repeated_stale_and_other_commands(stage: Stage) -> None:
    batch(stage, [context("c-1", 5, "a-1"), context("c-2", 5, "a-2"), context("c-3", entity=None)])
    mixed = [
        context("c-9", 9, "a-9"),
        context("c-4", 4, "a-2"),
        context("c-1", 7, "a-1"),
        context("c-5", 8, "a-1"),
        context("c-3", 8, "a-3"),
        context("c-6", entity=None),
    ]
    fresh, results = batch(stage, mixed)
    assert fresh == [0, 3, 5]
    assert results[:1] + results[2:4] + results[5:] == ["r0", "r0", "r3", "r5"]
    assert [type(results[index]) for index in (1, 4)] == [StaleFence, InboxConflict]
    assert stage.ask("SELECT mailbox, fence FROM command_fence ORDER BY mailbox") == [
        ("account:a-1", 8), ("account:a-2", 5), ("account:a-3", 8), ("account:a-9", 9),
    ]  # fmt: skip
    assert batch(stage, mixed)[0] == []
    assert [stage.balance(f"a-{number}") for number in (1, 2, 3, 9)] == [2, 1, 0, 1]


async def test_a_batch_is_awaited_too(stage: Stage) -> None:
    contexts = [context(f"c-{number}", entity=f"a-{number}") for number in range(500)]
    for expected in (list(range(500)), []):
        async with AsyncSession(stage.awaited) as session, Inbox().batch(session, contexts) as block:
            assert block.fresh == expected
            assert block.results({index: index for index in expected}) == list(range(500))
    assert stage.ask("SELECT count(*) FROM command_inbox") == [(500,)]


def test_a_batch_that_fails_leaves_nothing(stage: Stage) -> None:
    with pytest.raises(StaleFence):
        batch(stage, [context("c-1"), context("c-1")])
    with pytest.raises(BadResult):
        batch(stage, [context("c-1"), context("c-2")], {0: 1, 1: object()})
    assert stage.ask("SELECT * FROM command_inbox") == stage.ask("SELECT * FROM account") == []


def test_an_empty_batch_is_nothing(stage: Stage) -> None:
    assert batch(stage, []) == ([], [])


def test_old_commands_are_removed(stage: Stage) -> None:
    inbox = Inbox(keep="1 day")
    batch(stage, [context(f"c-{number}", entity=None) for number in range(300)])
    stage.ask("UPDATE command_inbox SET done_ms = done_ms - 86400000 * 2 WHERE command_id <> 'c-7' RETURNING 1")
    with stage.engine.connect() as connection:
        assert inbox.remove_old(connection, most=50) == 50
    for number in range(120):  # each hundredth removes two hundred, the first one does, too
        with stage.engine.connect() as connection, inbox.once(connection, context(f"d-{number}", number)):
            pass
    assert stage.ask("SELECT command_id FROM command_inbox WHERE command_id LIKE 'c-%'") == [("c-7",)]
    assert stage.ask("SELECT count(*) FROM command_inbox") == [(121,)]


@pytest.mark.parametrize("keep", ["", "30 fortnights", 0, -1, None, float("nan")])
def test_197_a_time_that_is_none_is_refused(keep: Any) -> None:
    with pytest.raises(InvalidSettings):
        Inbox(keep=keep)


async def test_194_wrong_use_says_what_to_do(stage: Stage) -> None:
    inbox, of = Inbox(), context("c-1")
    with Session(stage.engine) as session, session.begin(), pytest.raises(WrongTransaction, match="has begun"):
        with inbox.once(session, of):
            pass
    with stage.engine.begin() as connection, pytest.raises(WrongTransaction, match="has begun"), inbox.once(connection, of):
        pass
    async with AsyncSession(stage.awaited) as awaited:
        with pytest.raises(WrongTransaction, match="async with"), inbox.once(awaited, of):
            pass
        await awaited.begin()
        with pytest.raises(WrongTransaction, match="has begun"):
            async with inbox.once(awaited, of):
                pass
    with Session(stage.engine) as blocking, pytest.raises(WrongTransaction, match="write `with`"):
        async with inbox.once(blocking, of):
            pass
    with pytest.raises(WrongTransaction, match="neither"), inbox.once("postgresql://", of):
        pass


def test_194_an_engine_that_commits_each_statement_is_refused(server_stage: Stage) -> None:
    engine = create_engine(server_stage.url, isolation_level="AUTOCOMMIT")
    with (
        engine.connect() as connection,
        pytest.raises(WrongTransaction, match="AUTOCOMMIT"),
        Inbox().once(connection, context("c")),
    ):
        pass
    engine.dispose()


def test_197_another_database_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="not in mysql"):
        next(beginning("mysql", {}, []))


def test_without_its_tables_the_database_says_which_is_missing(stage: Stage) -> None:
    metadata.drop_all(stage.engine)
    try:
        with pytest.raises(Exception, match="command_fence"), stage.engine.connect() as connection:
            with Inbox().once(connection, context("c-1")):
                pass
    finally:
        metadata.create_all(stage.engine)


def test_a_reply_of_a_command_that_is_not_fresh_is_refused(stage: Stage) -> None:
    batch(stage, [context("c-1")])
    with pytest.raises(InvalidCommand, match="first reply"):
        batch(stage, [context("c-1")], {0: 7})
