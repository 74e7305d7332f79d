"""`command-bus outbox`: what waits, what is set aside, and the statements that make the tables."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
from pathlib import Path
from typing import Any
from unittest.mock import ANY, AsyncMock

import pytest
from sqlalchemy import make_url
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from command_bus.cli.app import app
from command_bus.embedded import EmbeddedServer
from command_bus.sql import OutboxRelay
from tests.sql.conftest import Stage
from tests.sql.outbox_shop import Ship, Shop
from tests.telemetry.conftest import fetch

pytestmark = pytest.mark.server


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
            while len(json.loads(await run("list", "--json"))["rows"]) < 2:
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


@pytest.mark.parametrize(
    "url",
    [
        "mysql://x/y", "nothing", "postgresql://nobody@127.0.0.1:1/none", "postgresql://host:port/x", "sqlite+none:///x", "sqlite://a/b",
        "postgresql+no_such_driver://x/y", "postgresql+asyncpg://x/y",
    ],
)  # fmt: skip
def test_what_the_command_line_refuses(url: str) -> None:
    done = CliRunner().invoke(app, ["outbox", "status", "--database", url])
    assert done.exit_code == (1 if url.startswith("postgresql://nobody") else 2), done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)


def test_a_database_without_the_table_or_away_is_told_apart(server_stage: Stage, tmp_path: Path) -> None:
    def told(url: str) -> str:
        done = CliRunner().invoke(app, ["outbox", "status", "--database", url])
        assert done.exit_code == 1
        return done.output

    (tmp_path / "none.db").touch()
    assert "run what `command-bus outbox ddl` prints" in " ".join(told(f"sqlite:///{tmp_path / 'none.db'}").split())
    empty = make_url(server_stage.url).update_query_dict({"options": "-csearch_path=pg_catalog"})
    assert "run what `command-bus outbox ddl` prints" in " ".join(told(empty.render_as_string(hide_password=False)).split())
    assert "cannot be asked" in " ".join(told("postgresql://nobody@127.0.0.1:1/none").split())


def test_the_doctor_looks_at_an_outbox(stage: Stage, server: EmbeddedServer) -> None:
    shop = Shop(stage, server)

    def told(url: str = stage.url) -> str:
        done = CliRunner().invoke(app, ["doctor", "--outbox", url, "--url", server.url, "--namespace", "outbox-doctor"])
        return " ".join(done.output.split())

    assert "0 rows" in told()
    shop.add(1)
    assert "1 rows" in told()
    stage.ask("UPDATE command_outbox SET error = 'odd', added_ms = added_ms - 120000 RETURNING id")
    assert "1 rows are set aside" in told()
    assert "outbox list" in told()
    stage.ask("UPDATE command_outbox SET error = NULL RETURNING id")
    assert "the oldest row was added 2 m" in told()
    assert "is not installed" in told("postgresql+asyncpg://x/y")


@pytest.mark.parametrize("words", [["status"], ["list"], ["retry", "1"], ["discard", "1"]])
def test_a_path_that_is_mistyped_makes_no_database(words: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["outbox", *words, "--database", f"sqlite:///{tmp_path}/typo.db"])
    assert done.exit_code == 2
    assert "there is no file" in done.output
    assert not list(tmp_path.iterdir())


async def test_a_relay_as_a_program_serves_probes_and_logs(shop: Shop, stage: Stage, server: EmbeddedServer) -> None:
    bus = ["--url", server.url, "--namespace", shop.bus.settings.namespace]
    program = [sys.executable, "-m", "command_bus", "outbox", "relay", *bus, "--health-port", "0", "--health-host", "127.0.0.1"]
    async with shop.bus:
        running = await asyncio.create_subprocess_exec(
            *program, env={**os.environ, "COMMAND_BUS_DATABASE": stage.url}, stderr=asyncio.subprocess.PIPE
        )
        assert running.stderr is not None
        try:
            line = ""
            async with asyncio.timeout(20):
                while "health on port" not in line:
                    line = (await running.stderr.readline()).decode()
                    assert line
                port = int(line.split()[-1])
                shop.add(1)
                await shop.emptied()
                while (await fetch(port, "/readyz"))[0] != 200:
                    await asyncio.sleep(0.05)
            assert (await fetch(port, "/healthz"))[0] == 200
            assert "command_bus_outbox_sent_total 1.0" in (await fetch(port, "/metrics"))[1]
        finally:
            running.terminate()
            await running.communicate()
        assert running.returncode == 0


async def test_a_relay_is_not_ready_while_it_cannot_look(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("command_bus.sql.relay._TURN_WITHIN", 0.3)
    async with shop.bus, shop.relay() as relay:
        await relay.drained()
        assert await relay.why_not_ready() is None
        monkeypatch.setattr(OutboxRelay, "_round", AsyncMock(side_effect=OSError("away")))
        await asyncio.sleep(0.5)
        assert "for some seconds" in str(await relay.why_not_ready())


@pytest.mark.parametrize("row", ["0", str(2**63), "x"])
def test_what_is_no_row_id(row: str) -> None:
    assert CliRunner().invoke(app, ["outbox", "retry", row, "--database", "sqlite:///none.db"]).exit_code == 2
