"""The outbox: what commits is sent once, in the order of the commits; what does not is never sent."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any
from unittest.mock import ANY

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from command_bus import Command, CommandBus, EntityId, EntityPolicy, HandlerRegistry, Unique, lanes
from command_bus.cli.app import app
from command_bus.embedded import EmbeddedServer
from command_bus.errors import InvalidCommand, InvalidSettings, OutboxMissing, WrongTransaction
from command_bus.sql import Outbox, OutboxRelay
from command_bus.sql.outbox_admin import figures
from tests.sql.conftest import Stage

pytestmark = pytest.mark.server


class Ship(Command[None], entity="order"):
    order: EntityId
    n: int


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start() as server:
        yield server


class Shop:
    """A bus, its outbox on a database, and what was handled."""

    def __init__(self, stage: Stage, server: EmbeddedServer, **options: Any) -> None:
        self.stage = stage
        self.seen: list[tuple[str, int]] = []
        registry = HandlerRegistry()

        @registry.handles(Ship)
        async def ship(command: Ship) -> None:
            self.seen.append((str(command.order), command.n))

        self.bus = CommandBus(server.url, namespace=f"outbox-{secrets.token_hex(4)}", registry=registry, **options)
        self.outbox = Outbox(self.bus)

    def relay(self, **options: Any) -> OutboxRelay:
        return OutboxRelay(self.bus, self.stage.awaited, **{"keep": 0.2, **options})

    def add(self, *numbers: int, order: str = "o-1", ends: str = "commit") -> None:
        with Session(self.stage.engine) as session:
            for number in numbers:
                self.outbox.add(session, Ship(order=order, n=number))
            getattr(session, ends)()

    def rows(self) -> int:
        return int(self.stage.ask("SELECT count(*) FROM command_outbox")[0][0])

    async def emptied(self) -> None:
        async with asyncio.timeout(20):
            while self.rows():
                await asyncio.sleep(0.05)

    async def handled(self) -> list[int]:
        async with self.bus.worker():
            await self.bus.wait_idle(20)
        return [number for _, number in self.seen]


@pytest.fixture
def shop(stage: Stage, server: EmbeddedServer) -> Shop:
    return Shop(stage, server)


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
        shop.add(5)
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
        shop.outbox.add(session, Ship(order="o-1", n=0), delay=0.6)
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
            await shop.emptied()
            await shop.bus.wait_idle(20)
    assert [n for order, n in shop.seen if order == "full"] == list(range(12))
    assert ("other", 0) in shop.seen


async def test_what_the_server_loses_within_keep_is_sent_again_in_order(shop: Shop, server: EmbeddedServer) -> None:
    shop.add(*range(20))
    async with shop.bus, shop.relay(keep=60.0) as relay:
        await relay.drained()
        assert shop.rows() == 20, "kept"
        client: Any = shop.bus.session.transport.connections.commands  # type: ignore[attr-defined]
        async for name in client.scan_iter(f"{{{shop.bus.settings.namespace}:*"):
            await client.delete(name)
        shop.add(20)
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


async def test_commits_of_many_writers_are_sent_in_their_order(server_stage: Stage, server: EmbeddedServer) -> None:
    """Each writer holds its entity's lock when it draws its number, begins early, and commits late."""
    shop, stage = Shop(server_stage, server, shards=2), server_stage
    with stage.engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS drawn"))
        connection.execute(text("CREATE TABLE drawn (entity text PRIMARY KEY, n bigint)"))
        connection.execute(text("INSERT INTO drawn SELECT 'e' || x, 0 FROM generate_series(0, 4) AS x"))

    def write(seed: int) -> None:
        random = Random(seed)
        for _ in range(40):
            with Session(stage.engine) as session:
                shop.outbox.add(session, Ship(order=f"z{random.randrange(5)}", n=-1))
                session.flush()  # it has begun to write, and has an id, before it waits for the lock
                entities = sorted(random.sample(range(5), 2))
                for each in entities:
                    number = session.execute(
                        text("UPDATE drawn SET n = n + 1 WHERE entity = :e RETURNING n"), {"e": f"e{each}"}
                    ).scalar_one()
                    shop.outbox.add(session, Ship(order=f"e{each}", n=number))
                session.execute(text("SELECT pg_sleep(:s)"), {"s": random.choice((0, 0, 0.001, 0.01))})
                if random.random() < 0.1:
                    session.rollback()
                else:
                    session.commit()

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(6)]
    async with shop.bus, shop.relay(poll=0.001) as relay, shop.bus.worker():
        for each in threads:
            each.start()
        while any(each.is_alive() for each in threads):
            await asyncio.sleep(0.05)
        await relay.drained()
        await shop.bus.wait_idle(30)
    for entity, count in stage.ask("SELECT entity, n FROM drawn"):
        assert [n for order, n in shop.seen if order == entity] == list(range(1, count + 1)), "each commit once, in order"


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
    assert figures(server_stage.url)["unnumbered"] == 5
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
        with pytest.raises(InvalidCommand, match="at least one"):
            shop.outbox.insert([])
    with pytest.raises(WrongTransaction, match="neither"):
        shop.outbox.add(object(), Ship(order="o", n=1))
    for options in ({"keep": -1}, {"poll": 0}, {"name": "two words"}):
        with pytest.raises(InvalidSettings):
            shop.relay(**options)
    with pytest.raises(InvalidSettings, match="mysql"):
        OutboxRelay(shop.bus, _Mysql())  # type: ignore[arg-type]
    async with shop.bus:
        async with _without_table(stage):
            with pytest.raises(OutboxMissing, match="outbox ddl"):
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


async def test_the_command_line_shows_retries_and_discards(shop: Shop, stage: Stage) -> None:
    with Session(stage.engine) as session, session.begin():
        for number, command_id in ((0, "a"), (7, "a"), (8, "a"), (1, "b")):
            shop.outbox.add(session, Ship(order="o-1", n=number), command_id=command_id)

    async def run(*words: str, code: int = 0) -> str:
        done = await asyncio.to_thread(CliRunner().invoke, app, ["outbox", *words, "--database", stage.url])
        assert done.exit_code == code, done.output
        return done.output

    async with shop.bus, shop.relay() as relay:
        await relay.drained()
        assert json.loads(await run("status", "--json")) | {"rows": 0} == {
            "rows": 0, "failed": 2, "unnumbered": 0, "numbered": True, "oldest_at": ANY
        }  # fmt: skip
        first, second = json.loads(await run("list", "--json"))["rows"]
        assert "used with other fields" in first["error"]
        assert "sent again" in await run("retry", str(first["row"]))
        async with asyncio.timeout(10):  # the same fields are under the id still, so it is set aside again
            while str(first["row"]) in (found := await run("list")) and "set aside" not in found:
                await asyncio.sleep(0.05)
        assert "is deleted" in await run("discard", str(second["row"]))
        assert "no row that is set aside" in await run("discard", str(second["row"]), "999999", code=1)
        assert await shop.handled() == [0, 1]


def test_the_printed_statements_make_the_tables(server_stage: Stage) -> None:
    printed = CliRunner().invoke(app, ["outbox", "ddl"])
    assert printed.exit_code == 0
    schema = f"printed_{secrets.token_hex(4)}"
    with server_stage.engine.begin() as connection:
        raw: Any = connection.connection.dbapi_connection
        raw.execute(f"CREATE SCHEMA {schema}; SET search_path = {schema}; {printed.output}")
        raw.execute(
            "INSERT INTO command_outbox (mailbox, command_id, envelope, flow, due_ms, added_ms) VALUES ('m', 'c', '', '', 0, 0)"
        )
        raw.execute("SET CONSTRAINTS ALL IMMEDIATE")
        assert raw.execute("SELECT n FROM command_outbox").fetchall() == [(1,)]
        raw.execute(f"DROP SCHEMA {schema} CASCADE")
        connection.rollback()
    with server_stage.engine.begin() as connection:
        connection.connection.dbapi_connection.execute("RESET search_path")  # type: ignore[union-attr]


@pytest.mark.parametrize("url", ["mysql://x/y", "nothing", "postgresql://nobody@127.0.0.1:1/none"])
def test_what_the_command_line_refuses(url: str) -> None:
    done = CliRunner().invoke(app, ["outbox", "status", "--database", url])
    assert done.exit_code == (1 if url.startswith("postgresql") else 2), done.output
