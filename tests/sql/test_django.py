"""The inbox on connections of Django: its migrations, `with inbox.once(connection, context)`, in a project of its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.sql.conftest import Stage

pytest.importorskip("django")

ROOT = Path(__file__).parents[2]
_PROJECT = """
import asyncio, sys
import django
from django.conf import settings
engine, name, host, port, user, password = sys.argv[1:]
database = {"ENGINE": f"django.db.backends.{engine}", "NAME": name, "HOST": host, "PORT": port, "USER": user, "PASSWORD": password}
settings.configure(INSTALLED_APPS=["command_bus.sql.django"], DATABASES={"default": database, "other": database}, USE_TZ=True)
django.setup()
from django.core.management import call_command
from django.db import connection, connections, transaction
call_command("migrate", verbosity=0)
call_command("makemigrations", "--check", "--dry-run", verbosity=0)
with connection.cursor() as cursor:
    cursor.execute("CREATE TABLE IF NOT EXISTS stock (id text PRIMARY KEY, pieces integer)")
    cursor.execute("INSERT INTO stock VALUES ('lamp', 10)")

from command_bus import Command, CommandContext, EntityId, HandlerRegistry, Reject
from command_bus.sql import Inbox, StaleFence, WrongTransaction
from command_bus.sql.django.models import CommandFence, CommandInbox
from command_bus.testing import TestBus

registry, inbox = HandlerRegistry(), Inbox()

class Take(Command[int], entity="article"):
    article: EntityId
    pieces: int

@registry.handles(Take)
def take(command: Take, context: CommandContext) -> int:
    try:
        with inbox.once(connection, context) as once, connection.cursor() as cursor:
            if once.repeated:
                return once.reply
            sql = "UPDATE stock SET pieces = pieces - %s WHERE id = %s RETURNING pieces"
            cursor.execute(sql, [command.pieces, str(command.article)])
            left = cursor.fetchone()[0]
            if left < 0:
                raise Reject("none left")
            return once.remember(left)
    finally:
        connections.close_all()

async def main():
    async with TestBus(registry) as bus:
        bus.crash_after("handled", Take)
        print(await bus.call(Take(article="lamp", pieces=3), timeout=600))
        try:
            await bus.call(Take(article="lamp", pieces=8))
        except Exception as error:
            print(type(error).__name__)
asyncio.run(main())
with connection.cursor() as cursor:
    cursor.execute("SELECT pieces FROM stock")
    print(cursor.fetchall())
print(CommandInbox.objects.count(), CommandFence.objects.values_list("mailbox", flat=True)[0])
newest = CommandFence.objects.get().fence
context = CommandContext(command_id="c-1", entity_type="article", entity_id="x", name="Take", fence=5)
with inbox.batch(connections["other"], [context]) as batch:
    print(batch.fresh, batch.results({0: 7}))
with inbox.once(connection, context) as once:
    print(once.repeated, once.reply)
with transaction.atomic():
    try:
        inbox.once(connection, context).__enter__()
    except WrongTransaction as error:
        print("wrong", "durable" in str(error))
try:
    inbox.once(connection, CommandContext(command_id="c-2", entity_type="article", entity_id="x", fence=4)).__enter__()
except StaleFence:
    print("stale", connection.in_atomic_block)
print(inbox.remove_old(connection))

from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.engine import URL
from command_bus.sql import Outbox, OutboxRelay
from command_bus.sql.django.models import CommandOutbox

async def relayed():
    seen = []
    class Note(Command[None], entity="article"):
        article: EntityId
        number: int
    @registry.handles(Note)
    async def note(command: Note) -> None:
        seen.append(command.number)
    driver = "postgresql+psycopg" if engine == "postgresql" else "sqlite+aiosqlite"
    url = URL.create(driver, user or None, password or None, host or None, int(port or 0) or None, name)
    async with TestBus(registry) as bus:
        outbox = Outbox(bus.bus)
        def write():
            try:
                outbox.add(connection, Note(article="x", number=0))
            except WrongTransaction as error:
                print("wrong", "atomic" in str(error))
            with transaction.atomic():
                outbox.add(connection, Note(article="x", number=1), priority="high")
                outbox.add(connection, Note(article="x", number=2), command_id="n-2")
            try:
                with transaction.atomic():
                    outbox.add(connection, Note(article="x", number=3))
                    raise ValueError
            except ValueError:
                pass
            connections.close_all()
        await asyncio.to_thread(write)
        database = create_async_engine(url)
        async with OutboxRelay(bus.bus, database, keep=0.0) as relay:
            await relay.drained()
        await database.dispose()
        await bus.run_until_idle()
    print(seen)
asyncio.run(relayed())
print(CommandOutbox.objects.filter(error=None).count() <= 2)
"""
_PRINTED = """7
CommandRejected
[(7,)]
1 command_bus:article:lamp
[0] [7]
True 7
wrong True
stale False
0
wrong True
[1, 2]
True
"""


@pytest.mark.parametrize("vendor", [pytest.param("sqlite3", marks=pytest.mark.slow), "postgresql"])
def test_in_a_project(vendor: str, stages: Callable[[str], Stage], tmp_path: Path) -> None:
    arguments = ["sqlite3", str(tmp_path / "django.db"), "", "", "", ""]
    if vendor == "postgresql":
        stage = stages("postgresql")
        with stage.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for statement in ("DROP DATABASE IF EXISTS django", "CREATE DATABASE django"):
                connection.execute(text(statement))
        url = stage.engine.url
        host, port = str(url.query.get("host") or url.host), str(url.port or "")
        arguments = ["postgresql", "django", host, port, url.username or "", str(url.password or "")]
    done = subprocess.run(
        [sys.executable, "-c", _PROJECT, *arguments],
        check=False,
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (done.stdout, done.returncode) == (_PRINTED, 0), done.stderr
