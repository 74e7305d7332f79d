"""Starts that race, on real servers: eight writers with old and new fences, a start that wakes beyond its lease, a pause that is ended."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from command_bus import CommandContext
from command_bus.sql import Inbox, StaleFence
from tests.sql.conftest import ADD, Stage
from tests.sql.test_blocks import context

LOG = "INSERT INTO effect (mailbox, fence, command_id) VALUES (:m, :f, :c)"


@pytest.fixture
def log(dear_stage: Stage) -> Stage:
    stage = dear_stage
    identity = (
        "INTEGER PRIMARY KEY AUTOINCREMENT" if stage.name == "sqlite" else "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    )
    with stage.engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS effect"))
        connection.execute(text(f"CREATE TABLE effect (n {identity}, mailbox text, fence bigint, command_id text)"))
    return stage


def starts(number: int) -> list[tuple[str, str, int]]:
    """Return starts of commands of a few entities: each command starts one to three times, with growing fences, which then race."""
    fences, chosen = itertools.count(1), random.Random(number)
    lines: list[tuple[str, str, int]] = []
    for command in range(number):
        entity = f"a-{chosen.randrange(4)}"
        lines += [(entity, f"c-{command}", next(fences)) for _ in range(chosen.randint(1, 3))]
    for index in range(len(lines)):  # late ones: each may be as much as a dozen places behind its turn
        other = min(index + chosen.randrange(12), len(lines) - 1)
        lines[index], lines[other] = lines[other], lines[index]
    return lines


@pytest.mark.promise("An inbox's effect happens once")
def test_eight_racing_starters_make_each_effect_once_and_in_the_order_of_fences(log: Stage) -> None:
    inbox, lines, lock, ends = Inbox(), iter(starts(150)), threading.Lock(), Counter[str]()

    def work() -> None:
        while True:
            with lock:
                if (start := next(lines, None)) is None:
                    return
            entity, command_id, fence = start
            try:
                with Session(log.engine) as session, inbox.once(session, context(command_id, fence, entity)) as once:
                    if not once.repeated:
                        session.execute(text(LOG), {"m": entity, "f": fence, "c": command_id})
                        once.remember(fence)
                    ends["repeated" if once.repeated else "made"] += 1
            except StaleFence:
                ends["stale"] += 1

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work) for _ in range(8)]:
            done.result()
    effects = log.ask("SELECT mailbox, fence, command_id FROM effect ORDER BY n")
    assert max(Counter(command_id for _, _, command_id in effects).values()) == 1
    for entity in {mailbox for mailbox, _, _ in effects}:
        fences = [fence for mailbox, fence, _ in effects if mailbox == entity]
        assert fences == sorted(fences)
    assert len(effects) == log.ask("SELECT count(*) FROM command_inbox")[0][0] > 0
    assert ends["stale"] > 0 < ends["repeated"]


def test_two_starts_of_one_command_that_overlap(server_stage: Stage) -> None:
    """The later one waits for the first, has not seen its id, and is put off by the id; started again it finds the reply."""
    inbox, within, other = Inbox(), threading.Event(), threading.Event()

    def start(fence: int, entered: threading.Event, go: threading.Event) -> Any:
        with Session(server_stage.engine) as session, inbox.once(session, context("c-1", fence)) as once:
            entered.set()
            if once.repeated:
                return once.reply
            reply = session.execute(ADD, {"id": "a-1", "sum": 1}).scalar_one()
            assert go.wait(20)
            return once.remember(reply)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(start, 1, within, other)
        assert within.wait(20)
        second = pool.submit(start, 2, threading.Event(), other)
        _until_blocked(server_stage)
        other.set()
        assert first.result(20) == 1
        with pytest.raises(StaleFence) as caught:
            second.result(20)
    assert caught.value.seconds == 0
    assert start(2, within, other) == 1
    assert server_stage.balance("a-1") == 1


def test_two_starts_without_an_entity_that_overlap(server_stage: Stage) -> None:
    """No fence holds them apart: both make the effect, and one is rolled back."""
    inbox, both = Inbox(), threading.Barrier(2, timeout=20)

    def start(number: int) -> str:
        try:
            with Session(server_stage.engine) as session, inbox.once(session, context("c-1", number, entity=None)) as once:
                session.execute(ADD, {"id": f"own-{number}", "sum": 1})
                both.wait()
                once.remember(1)
        except StaleFence:
            return "rolled back"
        return "made"

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(start, (1, 2))) == ["made", "rolled back"]
    assert server_stage.balance("own-1") + server_stage.balance("own-2") == 1


async def test_a_start_that_sleeps_beyond_its_lease_is_refused_when_it_wakes(stage: Stage) -> None:
    """It slept before its block, or at its first statement: the successor has committed by then."""
    inbox, late, successor = Inbox(), context("c-1", 1), context("c-1", 2)
    async with AsyncSession(stage.awaited) as session, inbox.once(session, successor) as once:
        await session.execute(ADD, {"id": "a-1", "sum": 1})
        once.remember(1)
    async with AsyncSession(stage.awaited) as session, inbox.once(session, late) as once:
        assert once.repeated
    async with AsyncSession(stage.awaited) as session:
        with pytest.raises(StaleFence):
            async with inbox.once(session, context("c-0", 1)):
                pytest.fail("an older command of the entity must not run now")


def test_one_that_sleeps_within_its_transaction_is_ended_by_the_server(server_stage: Stage) -> None:
    """`idle_in_transaction_session_timeout` is what ends it; until then it holds the entity's row, and its successor waits."""
    inbox, given = Inbox(), server_stage.engine.url.query.get("options", "")
    engine = create_engine(server_stage.url, connect_args={"options": f"{given} -c idle_in_transaction_session_timeout=300"})
    with (
        pytest.raises(DBAPIError, match="idle-in-transaction"),
        Session(engine) as sleeper,
        inbox.once(sleeper, context("c-1", 1)),
    ):
        sleeper.execute(ADD, {"id": "a-1", "sum": 1})
        with (
            Session(server_stage.engine) as session,
            inbox.once(session, context("c-1", 2)) as once,
        ):  # waits for a third of a second
            assert not once.repeated
            once.remember(session.execute(ADD, {"id": "a-1", "sum": 10}).scalar_one())
        sleeper.execute(text("SELECT 1"))
    engine.dispose()
    assert server_stage.balance("a-1") == 10


def test_two_batches_that_overlap_do_not_wait_for_each_other(server_stage: Stage) -> None:
    """Each locks its entities in one order, whatever the order of its commands."""
    inbox, names = Inbox(), [f"a-{number}" for number in range(40)]

    def work(number: int) -> int:
        made = 0
        for turn in range(10):
            order = random.Random(number * 100 + turn).sample(names, len(names))
            contexts = [context(f"c-{number}-{turn}-{name}", 10**6, name) for name in order]
            with Session(server_stage.engine) as session, inbox.batch(session, contexts) as block:
                made += len(block.fresh)
                block.results()
        return made

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(work, range(6))) == [400] * 6


async def test_a_block_that_is_cancelled_is_rolled_back(stage: Stage) -> None:
    inbox, within = Inbox(), asyncio.Event()

    async def start(of: CommandContext) -> None:
        async with AsyncSession(stage.awaited) as session, inbox.once(session, of):
            await session.execute(ADD, {"id": "a-1", "sum": 1})
            within.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(start(context("c-1", 1)))
    await within.wait()
    task.cancel("lease lost")
    with pytest.raises(asyncio.CancelledError):
        await task
    async with AsyncSession(stage.awaited) as session, inbox.once(session, context("c-1", 2)) as once:
        assert not once.repeated
    assert stage.balance("a-1") == 0


def _until_blocked(stage: Stage) -> None:
    """Wait until one session of the server waits for another."""
    for _ in range(400):
        if stage.ask("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"):
            return
        threading.Event().wait(0.02)
    pytest.fail("none waits")
