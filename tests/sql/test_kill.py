"""A worker process that is killed between COMMIT and settlement: the effect is there once, and its follow-up was sent once."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from command_bus import CommandBus
from command_bus.embedded import EmbeddedServer
from tests.sql.conftest import ADD, Stage
from tests.sql.kill_app import Charge

ROOT = Path(__file__).parents[2]


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start() as server:
        yield server


@pytest.mark.promise("An inbox's effect happens once")
@pytest.mark.server
async def test_a_worker_that_is_killed_behind_the_commit(dear_stage: Stage, server: EmbeddedServer) -> None:
    stage = dear_stage
    with stage.engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS noted"))
        connection.execute(text("CREATE TABLE noted (text text)"))
        connection.execute(ADD, {"id": "a-1", "sum": 100})
    namespace, database = f"kill-{secrets.token_hex(4)}", stage.awaited.url.render_as_string(hide_password=False)

    def worker(mode: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.sql.kill_app", server.url, namespace, database, mode]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    async with CommandBus(server.url, namespace=namespace) as bus:
        first = worker("stop")
        try:
            receipt = await bus.dispatch(Charge(account="a-1", cents=5), command_id="c-1")
            assert receipt.command_id == "c-1"
            assert first.stdout is not None
            assert first.stdout.readline() == "committed\n"
        finally:
            first.kill()  # SIGKILL
            first.wait()
            first.stdout.close()  # type: ignore[union-attr]
        assert (stage.balance("a-1"), stage.ask("SELECT * FROM noted")) == (105, [])
        second = worker("go")
        try:
            assert await bus.result("c-1", timeout=30) == 105
            await bus.wait_idle(30)
        finally:
            second.terminate()
            second.wait()
            second.stdout.close()  # type: ignore[union-attr]
    assert stage.balance("a-1") == 105
    assert stage.ask("SELECT text FROM noted") == [("charged 5 by stop",)]  # what the first run sent
