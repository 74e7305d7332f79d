"""A command that kills its worker, in a run with others: it is found, and dead-lettered alone; the others take effect once, in order."""

from __future__ import annotations

import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from command_bus import CommandBus
from command_bus.embedded import EmbeddedServer
from tests.integration.entity_batch_app import KILLS, LEASE, Append, Log

ROOT = Path(__file__).parents[2]
COUNT = 8


@pytest.mark.slow
@pytest.mark.promise("Order per entity", "A worker is killed")
@pytest.mark.server
async def test_one_of_a_run_that_kills_its_worker_is_found() -> None:
    namespace, called = f"run-{secrets.token_hex(4)}", list[list[int]]()
    with EmbeddedServer.start() as server:
        async with CommandBus(server.url, namespace=namespace, lease=LEASE) as bus:
            await bus.dispatch_batch(Append(log="a", n=n) for n in range(COUNT))
            command = [sys.executable, "-m", "tests.integration.entity_batch_app", server.url, namespace]
            deaths = 0
            while (await bus.stats()).depth and deaths < 15:
                with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as worker:
                    assert worker.stdout is not None
                    for line in worker.stdout:
                        called.append([int(number) for number in line.split()[1:]])
                        if called[-1][-1] == COUNT - 1:
                            break
                    await bus.wait_idle(20) if called[-1][-1] == COUNT - 1 else None
                    worker.kill()
                deaths += called[-1].count(KILLS)
            letters = [(letter.payload, letter.reason, letter.attempts) async for letter in bus.dead_letters.list()]
            state = await bus.states.get(Log, "a")
    assert letters == [({"log": "a", "n": KILLS}, "interrupted", 1)]
    assert state == Log(numbers=[n for n in range(COUNT) if n != KILLS]), "each effect once, in order"
    sizes = [len(call) for call in called if KILLS in call]
    assert sizes == [4, 4, 2, 1], "half as many after a death, twice as many after a success"
