"""The dashboard at the end of the flights: what it shows, who gets in, and how it ends."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

pytest.importorskip("rich", reason="the demo's set-up: pip install -e .[demo]")

from redis.asyncio import Redis

from command_bus import CommandBus
from command_bus.embedded import EmbeddedServer
from examples.flights.handlers import registry_for
from examples.flights.hangar import Hangar
from examples.flights.tower import leave_trouble

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.server
async def test_there_is_something_to_look_into() -> None:
    with EmbeddedServer.start() as server:
        async with (
            Redis.from_url(server.url) as client,
            Hangar(client, "tower") as hangar,
            CommandBus(server.url, namespace="tower", registry=registry_for(hangar), unknown_grace=600) as bus,
            bus.worker(),
        ):
            await leave_trouble(bus)
            async with asyncio.timeout(15):
                while True:
                    found = {
                        each.entity.entity_id: each.state for each in (await bus.views.standing_still(patience=0.0)).entities
                    }
                    letters = [letter.entity_id async for letter in bus.dead_letters.list()]
                    if found == {"DEMO-HELD": "paused", "DEMO-NEW": "no_handler"} and letters == ["DEMO-WRONG"]:
                        break
                    await asyncio.sleep(0.05)
            assert (await bus.history.search(entity=("aircraft", "DEMO-01"))).entries
            assert [each.name async for each in bus.schedules.list()] == ["shuttle"]


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(120)
async def test_the_demo_ends_with_the_dashboard(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.flights", "--lite", "--sample", "5", "--no-kill", "--dashboard"]
    environment = {**os.environ, "COLUMNS": "140", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*command, "--out", str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as demo:
        try:
            assert demo.stdout is not None
            said, found = [], None
            while found is None and (line := demo.stdout.readline()):
                said.append(line)
                found = re.search(r"Dashboard: (http://127\.0\.0\.1:\d+)  user: demo  password: (\S+)", line)
            assert found is not None, said
            assert any("Everything agrees" in line for line in said)
            async with httpx.AsyncClient(base_url=found[1], trust_env=False, follow_redirects=True) as client:
                assert (await client.get("/")).url.path == "/sign-in"
                fields = {"name": "demo", "password": found[2], "next": "/"}
                page = await client.post("/sign-in", data=fields, headers={"Origin": found[1]})
                assert "a tyre is being changed" in page.text
        finally:
            demo.send_signal(signal.SIGINT)
        assert demo.wait(30) == 0
