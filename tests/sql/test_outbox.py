"""The outbox: what commits is sent once, in the order of the commits; what does not is never sent."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from command_bus import Command, CommandBus, EntityId, EntityPolicy, Unique, lanes
from command_bus.embedded import EmbeddedServer
from command_bus.errors import InvalidCommand, InvalidSettings, OutboxUnavailable, WrongTransaction
from command_bus.sql import Outbox, OutboxRelay
from command_bus.sql.outbox_admin import figures
from command_bus.sql.outbox_table import OUTBOX
from tests.selection import quick
from tests.sql.conftest import Stage
from tests.sql.outbox_shop import Both, Ship, Shop

pytestmark = pytest.mark.server


async def test_what_commits_is_sent_in_order_and_what_does_not_is_not(shop: Shop) -> None:
    shop.add(0, 1, 2)
    shop.add(90, 91, ends="rollback")
    with Session(shop.stage.engine) as session, session.begin():
        shop.outbox.add(session, Ship(order="o-1", n=3))
        with pytest.raises(ValueError), session.begin_nested():
            shop.outbox.add(session, Ship(order="o-1", n=92))
            session.flush()
            raise ValueError
        shop.outbox.add(session, Ship(order="o-1", n=4))
    async with shop.bus, shop.relay() as relay:
        await asyncio.to_thread(shop.add, 5)
        await relay.drained()
        assert await shop.handled() == [0, 1, 2, 3, 4, 5]
        assert relay.sent == 6
        await shop.emptied()
        assert (await shop.bus.stats()).depth == 0


async def test_every_way_into_the_transaction(shop: Shop) -> None:
    async with AsyncSession(shop.stage.awaited) as session, session.begin():
        assert shop.outbox.add(session, Ship(order="o-1", n=0), command_id="first") == "first"
    with shop.stage.engine.begin() as connection:
        shop.outbox.add(connection, Ship(order="o-1", n=1))
        connection.execute(shop.outbox.insert([Ship(order="o-1", n=2), Ship(order="o-1", n=3)]))
    async with shop.stage.awaited.begin() as awaited:
        await awaited.execute(shop.outbox.insert([Ship(order="o-1", n=4)]))
        with pytest.raises(WrongTransaction, match=r"outbox\.insert"):
            shop.outbox.add(awaited, Ship(order="o-1", n=5))
    async with shop.bus, shop.relay() as relay:
        await relay.drained()
        assert await shop.handled() == [0, 1, 2, 3, 4]


async def test_a_given_id_is_sent_once_and_another_command_of_that_id_is_set_aside(shop: Shop) -> None:
    with Session(shop.stage.engine) as session, session.begin():
        for number, command_id in ((0, "a"), (0, "a"), (7, "a"), (1, "b")):
            shop.outbox.add(session, Ship(order="o-1", n=number), command_id=command_id)
    async with shop.bus, shop.relay() as relay:
        await relay.drained()
        assert await shop.handled() == [0, 1]
        async with asyncio.timeout(20):
            while shop.rows() > 1:
                await asyncio.sleep(0.05)
    ((error,),) = shop.stage.ask("SELECT error FROM command_outbox")
    assert "used with other fields" in error


async def test_a_delay_counts_from_the_add_and_priority_goes_along(shop: Shop) -> None:
    with Session(shop.stage.engine) as session, session.begin():
        shop.outbox.add(session, Ship(order="o-1", n=0), delay=2.5)
        shop.outbox.add(session, Ship(order="o-1", n=1), priority="high")
    await asyncio.sleep(0.3)
    async with shop.bus, shop.relay() as relay:
        await relay.drained()
        assert (await shop.bus.stats()).delayed == 1
        assert await shop.handled() == [1, 0]


async def test_a_full_entity_waits_alone_and_keeps_its_order(stage: Stage, server: EmbeddedServer) -> None:
    shop = Shop(stage, server, entities={"order": EntityPolicy(max_depth=5)})
    shop.add(*range(12), order="full")
    shop.add(0, order="other")
    async with shop.bus, shop.relay() as relay:
        await asyncio.sleep(0.5)
        assert relay.sent == 6
        async with shop.bus.worker():
            while len(shop.seen) < 6:
                await asyncio.sleep(0.001)
            await asyncio.to_thread(shop.add, *range(12, 15), order="full")  # while the rows before them wait
            await shop.emptied()
            await shop.bus.wait_idle(20)
    assert [n for order, n in shop.seen if order == "full"] == list(range(15))
    assert ("other", 0) in shop.seen


async def test_what_the_server_loses_within_keep_is_sent_again_in_order(shop: Shop, server: EmbeddedServer) -> None:
    shop.add(*range(20))
    async with shop.bus, shop.relay(keep=60.0) as relay:
        await relay.drained()
        assert shop.rows() == 20, "kept"
        client: Any = shop.bus.session.transport.connections.commands  # type: ignore[attr-defined]
        async for name in client.scan_iter(f"{{{shop.bus.settings.namespace}:*"):
            await client.delete(name)
        await asyncio.to_thread(shop.add, 20)
        await relay.drained()
        assert relay.again == 20
        assert await shop.handled() == list(range(21))


async def test_relays_that_die_and_come_back_send_nothing_twice(shop: Shop) -> None:
    random = Random(7)
    async with shop.bus:
        for round_ in range(8):
            shop.add(*range(round_ * 10, round_ * 10 + 10))
            relay = shop.relay(poll=0.005)
            task = asyncio.ensure_future(relay.run())
            await asyncio.sleep(random.uniform(0.0, 0.3))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        async with shop.relay() as relay:
            await relay.drained()
            await shop.emptied()
        assert await shop.handled() == list(range(80))


async def test_two_relays_at_a_time_send_nothing_twice(shop: Shop) -> None:
    async with shop.bus, shop.relay(poll=0.001), shop.relay(poll=0.001):
        for number in range(0, 200, 10):
            await asyncio.to_thread(shop.add, *range(number, number + 10))
        await shop.emptied()
        assert await shop.handled() == list(range(200))


_SLOW = """
DROP TABLE IF EXISTS drawn, decided, slow;
CREATE TABLE drawn (entity text PRIMARY KEY, n bigint);
CREATE TABLE decided (entity text, n bigint, number bigint);
CREATE TABLE slow (seconds double precision);
CREATE OR REPLACE FUNCTION wait_in_commit() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_sleep(NEW.seconds); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION wait_in_commit();
INSERT INTO drawn SELECT 'e' || x, 0 FROM generate_series(0, 2) AS x
"""
"""Tables that say in which order transactions committed, and let a commit last, behind the numbering of its rows."""


class Writers:
    """Threads that add rows at once: they begin to write in another order than they commit in."""

    def __init__(self, shop: Shop, *, locks: bool) -> None:
        with shop.stage.engine.begin() as connection:
            for statement in _SLOW.split(";\n"):
                connection.execute(text(statement))
        self.shop, self.locks = shop, locks
        self.threads = [threading.Thread(target=self.write, args=(seed,)) for seed in range(6)]

    def write(self, seed: int) -> None:
        random = Random(seed)
        for round_ in range(30):
            entity, number = f"e{random.randrange(3)}", 1000 * seed + round_
            with Session(self.shop.stage.engine) as session:
                self.shop.outbox.add(session, Ship(order=entity, n=number))
                session.flush()
                session.execute(text("SELECT pg_sleep(:s)"), {"s": random.choice((0, 0.002, 0.01))})
                if self.locks:  # held to the end of the commit, so that its numbers are in the order of the commits
                    draw = "UPDATE drawn SET n = n + 1 WHERE entity = :e RETURNING n"
                    n = session.execute(text(draw), {"e": entity}).scalar_one()
                    session.execute(text("INSERT INTO decided VALUES (:e, :n, :x)"), {"e": entity, "n": n, "x": number})
                session.execute(text("INSERT INTO slow VALUES (:s)"), {"s": random.choice((0, 0.002, 0.01))})
                session.rollback() if random.random() < 0.1 else session.commit()

    async def run(self) -> None:
        for each in self.threads:
            each.start()
        while any(each.is_alive() for each in self.threads):
            await asyncio.sleep(0.02)


@pytest.mark.promise("An outbox sends what commits, once, in order")
async def test_commits_of_many_writers_are_sent_in_their_order(server_stage: Stage, server: EmbeddedServer) -> None:
    shop = Shop(server_stage, server, shards=2)
    async with shop.bus, shop.relay(poll=0.001) as relay, shop.bus.worker():
        await Writers(shop, locks=True).run()
        await relay.drained()
        await shop.bus.wait_idle(30)
    for entity in ("e0", "e1", "e2"):
        decided = server_stage.ask("SELECT number FROM decided WHERE entity = :e ORDER BY n", e=entity)
        assert [n for order, n in shop.seen if order == entity] == [number for (number,) in decided], "each commit once, in order"


async def test_no_row_becomes_visible_behind_a_higher_number_of_its_entity(server_stage: Stage, server: EmbeddedServer) -> None:
    shop = Shop(server_stage, server)
    seen, late = dict[str, set[int]](), list[tuple[str, int]]()
    writing = asyncio.ensure_future(Writers(shop, locks=False).run())
    while not writing.done():
        found = dict[str, set[int]]()
        for mailbox, n in server_stage.ask("SELECT mailbox, n FROM command_outbox"):
            found.setdefault(mailbox, set()).add(n)
        for mailbox, numbers in found.items():
            before = seen.get(mailbox, set())
            late += [(mailbox, n) for n in numbers - before if before and n < max(before)]
        seen = found
        await asyncio.sleep(0)
    assert late == []
    assert sum(map(len, seen.values())) > 100


async def test_rows_that_were_added_without_the_trigger_are_numbered_and_sent(
    server_stage: Stage, server: EmbeddedServer
) -> None:
    shop = Shop(server_stage, server)
    with server_stage.engine.begin() as connection:
        connection.execute(text("ALTER TABLE command_outbox DISABLE TRIGGER command_outbox_number"))
    try:
        shop.add(*range(5))
    finally:
        with server_stage.engine.begin() as connection:
            connection.execute(text("ALTER TABLE command_outbox ENABLE TRIGGER command_outbox_number"))
    assert figures(server_stage.url).unnumbered == 5
    async with shop.bus, shop.relay() as relay:
        await relay.drained()
        assert await shop.handled() == list(range(5))


async def test_the_database_and_the_server_may_be_away(server_stage: Stage, server: EmbeddedServer) -> None:
    shop = Shop(server_stage, server)
    async with shop.bus, shop.relay(keep=0.05) as relay:
        for round_ in range(3):
            shop.add(round_)
            server_stage.ask(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database() "
                "AND backend_type = 'client backend'"
            )
            server_stage.engine.dispose()
            await asyncio.sleep(0.2)
        async with asyncio.timeout(20):
            while relay.sent < 3:
                await asyncio.sleep(0.05)
        assert await shop.handled() == [0, 1, 2]


@asynccontextmanager
async def _without_table(stage: Stage) -> AsyncIterator[None]:
    stage.ask_nothing("ALTER TABLE command_outbox RENAME TO hidden_outbox")
    try:
        yield
    finally:
        stage.ask_nothing("ALTER TABLE hidden_outbox RENAME TO command_outbox")


async def test_what_is_refused(shop: Shop, stage: Stage) -> None:
    with Session(stage.engine) as session:
        with pytest.raises(InvalidCommand, match="unique key"):
            shop.outbox.add(session, Ship(order="o", n=1), unique=Unique("k"))
        with pytest.raises(InvalidCommand, match="takes 1 to 4,000"):
            shop.outbox.insert([])
        with pytest.raises(InvalidCommand, match="lines of several entities"):
            shop.outbox.insert([Ship(order="o", n=1), Both(one="a", other="b")])
    with pytest.raises(WrongTransaction, match="neither"):
        shop.outbox.add(object(), Ship(order="o", n=1))
    for options in ({"keep": -1}, {"poll": 0}, {"name": "two words"}):
        with pytest.raises(InvalidSettings):
            shop.relay(**options)
    with pytest.raises(InvalidSettings, match="mysql"):
        OutboxRelay(shop.bus, _Mysql())  # type: ignore[arg-type]
    async with shop.bus:
        async with _without_table(stage):
            with pytest.raises(OutboxUnavailable, match="outbox ddl"):
                async with shop.relay():
                    pass


class _Mysql:
    class dialect:
        name = "mysql"


async def test_who_adds_with_other_mailboxes_is_set_aside(stage: Stage, server: EmbeddedServer) -> None:
    shop = Shop(stage, server)
    other = CommandBus("redis://x", entities={"order": EntityPolicy(mailbox=lanes(2))})
    with Session(stage.engine) as session, session.begin():
        Outbox(other).add(session, Ship(order="o-1", n=1))
    async with shop.bus, shop.relay() as relay:
        await relay.drained()
    ((error,),) = stage.ask("SELECT error FROM command_outbox")
    assert "other settings" in error


@pytest.mark.parametrize("count", quick([520, 1_010], [1_010]))
async def test_many_rows_of_one_small_entity_keep_their_order(stage: Stage, server: EmbeddedServer, count: int) -> None:
    shop = Shop(stage, server, entities={"order": EntityPolicy(max_depth=5)})
    shop.add(*range(count))
    async with shop.bus, shop.relay(poll=0.001, keep=0.05) as relay, shop.bus.worker():
        async with asyncio.timeout(50):
            while relay.sent < count:
                for waits in relay._apart.values():
                    waits.until = min(
                        waits.until, time.monotonic() + 0.005
                    )  # so that the test does not take as long as its waits
                await asyncio.sleep(0.002)
        await shop.bus.wait_idle(20)
    assert [n for _, n in shop.seen] == list(range(count))


async def test_a_known_id_of_a_full_entity_drops_nothing_that_waits(stage: Stage, server: EmbeddedServer) -> None:
    shop = Shop(stage, server, entities={"order": EntityPolicy(max_depth=3)})
    async with shop.bus, shop.relay() as relay:
        for number in range(3):
            await shop.bus.dispatch(Ship(order="o-1", n=number), command_id=f"known-{number}")
        await asyncio.to_thread(shop.add, 7)
        await asyncio.sleep(0.3)
        await asyncio.to_thread(shop.add, 0, command_id="known-0")
        await relay.drained()
        async with shop.bus.worker():
            await shop.emptied()
            await shop.bus.wait_idle(20)
    assert [n for _, n in shop.seen] == [0, 1, 2, 7]


async def test_a_full_entity_of_many_rows_holds_up_no_other(stage: Stage, server: EmbeddedServer) -> None:
    shop = Shop(stage, server, entities={"order": EntityPolicy(max_depth=5)})
    shop.add(*range(1_100), order="full")
    async with shop.bus, shop.relay() as relay:
        while relay.sent < 5:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(shop.add, 0, order="other")
        async with asyncio.timeout(20):
            while relay.sent < 6:
                await asyncio.sleep(0.01)


async def test_a_table_that_is_made_again_has_other_rows(shop: Shop, stage: Stage) -> None:
    async with shop.bus:
        shop.add(0, 1, 2)
        async with shop.relay(keep=60.0) as relay:
            await relay.drained()
        OUTBOX.drop(stage.engine)
        OUTBOX.create(stage.engine)
        shop.add(3, 4, 5)  # with the ids of those before
        async with shop.relay(keep=0.1) as relay:
            await relay.drained()
            await shop.emptied()
        assert await shop.handled() == [0, 1, 2, 3, 4, 5]


async def test_a_relay_that_ends_leaves_its_turn_to_another(server_stage: Stage, server: EmbeddedServer) -> None:
    shop = Shop(server_stage, server)
    async with shop.bus:
        async with shop.relay() as first:
            await first.drained()
        shop.add(0)
        async with asyncio.timeout(10), shop.relay() as second:
            await second.drained()
        assert second.sent == 1


async def test_one_relay_runs_again_after_a_cancel(shop: Shop) -> None:
    shop.add(0, 1, 2)
    relay, place = shop.relay(), None
    async with shop.bus:
        outboxes: Any = shop.bus.session.transport.outboxes
        place, asked = outboxes.place, asyncio.Event()

        async def hanging(*_: Any) -> Any:
            asked.set()
            await asyncio.sleep(60)

        outboxes.place = hanging
        task = asyncio.ensure_future(relay.run())
        await asked.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        outboxes.place = place
        async with relay:
            await relay.drained()
        assert await shop.handled() == [0, 1, 2]


async def test_one_type_too_many_holds_up_no_other(stage: Stage, server: EmbeddedServer) -> None:
    class Big(Command[None], entity="big"):
        big: EntityId

    shop = Shop(stage, server, max_entity_types=1)
    with Session(stage.engine) as session, session.begin():
        shop.outbox.add(session, Ship(order="o-1", n=0))
        shop.outbox.add(session, Big(big="b"))
        shop.outbox.add(session, Ship(order="o-1", n=1))
    async with shop.bus, shop.relay():
        async with asyncio.timeout(20):
            while len(await shop.handled()) < 2:
                await asyncio.sleep(0.05)
    assert shop.rows() >= 1


async def test_a_database_in_memory_is_refused(shop: Shop) -> None:
    with pytest.raises(InvalidSettings, match="is in a file"):
        OutboxRelay(shop.bus, create_async_engine("sqlite+aiosqlite://"))


async def test_a_scoped_session_is_one(shop: Shop) -> None:
    scoped = scoped_session(sessionmaker(shop.stage.engine))
    shop.outbox.add(scoped, Ship(order="o-1", n=0))
    scoped.commit()
    scoped.remove()
    assert shop.rows() == 1
