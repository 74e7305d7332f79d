"""Durable handlers whose code changes while they run: workers of two releases beside each other, and somebody who kills them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_bus import CommandBus, Envelope
from command_bus.embedded import EmbeddedServer
from tests.integration.conftest import ROOT
from tests.integration.durable_deploy_app import Order

pytestmark = pytest.mark.timeout(120)

ORDERS = 40
LEASE = 1.0


class Deployment:
    """Worker processes of several releases in one namespace."""

    def __init__(self, url: str, log: Path) -> None:
        self.url = url
        self.namespace = f"deploy-{secrets.token_hex(4)}"
        self.processes: list[subprocess.Popen[bytes]] = []
        self._log = log

    def start(self, *releases: str) -> None:
        for release in releases:
            command = [sys.executable, "-m", "tests.integration.durable_deploy_app", self.url, self.namespace, str(self._log)]
            with self._log.with_suffix(".err").open("ab") as errors:
                process = subprocess.Popen([*command, str(LEASE), release], cwd=ROOT, env=os.environ, stderr=errors)
            self.processes.append(process)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        self.processes.remove(process)

    def kill_all(self) -> None:
        for process in tuple(self.processes):
            self.kill(process)

    async def disturb(self, releases: tuple[str, ...], over: asyncio.Event) -> None:
        """Kill a worker now and then, and start one of any release in its place."""
        while not over.is_set():
            await asyncio.sleep(random.uniform(0.3, 0.6))
            self.kill(random.choice(self.processes))
            self.start(random.choice(releases))

    async def ready(self, bus: CommandBus) -> None:
        """Wait until all workers read."""
        pids = {process.pid for process in self.processes}
        async with asyncio.timeout(30):
            while not pids <= {worker.pid for worker in (await bus.stats()).workers}:
                await asyncio.sleep(0.05)

    def events(self) -> list[dict[str, str]]:
        if not self._log.exists():
            return []
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    async def told(self, count: int, what: str) -> None:
        """Wait until so many orders have such an event."""
        async with asyncio.timeout(60):
            while len({each["order"] for each in self.events() if each["ev"] == what}) < count:
                await asyncio.sleep(0.05)


@pytest.fixture
def deployment(server: EmbeddedServer, tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(server.url, tmp_path / "events.log")
    yield deployment
    deployment.kill_all()


def of_steps(events: list[dict[str, str]]) -> dict[tuple[str, str], list[dict[str, str]]]:
    """Group the events by order and step."""
    found: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for each in events:
        if each["step"]:
            found[each["order"], each["step"]].append(each)
    return found


def assert_stored_once(events: list[dict[str, str]]) -> None:
    """Check that whatever was stored was not done again, and that all runs got the one result."""
    for what, each in of_steps(events).items():
        kinds = [event["ev"] for event in each]
        assert "stored" not in kinds or "effect" not in kinds[kinds.index("stored") :], f"{what} was done again: {each}"
        assert len({event["value"] for event in each if event["ev"] == "stored"}) <= 1, f"{what} has two results: {each}"


async def dispatched(bus: CommandBus) -> None:
    commands = [Envelope(Order(order=str(number)), command_id=f"c-{number}") for number in range(ORDERS)]
    assert (await bus.dispatch_batch(commands)).accepted == ORDERS


async def let_go(bus: CommandBus) -> None:
    for number in range(ORDERS):
        await bus.commands.signal(f"c-{number}", "go", signal_id="once")


@pytest.mark.promise("Releases finish each other's commands")
@pytest.mark.parametrize(
    ("release", "steps"),
    [
        ("longer", {"t"}),
        pytest.param("shorter", set[str](), marks=pytest.mark.slow),
        pytest.param("swapped", set[str](), marks=pytest.mark.slow),
    ],
)
async def test_two_releases_that_fit_finish_each_other_s_orders(deployment: Deployment, release: str, steps: set[str]) -> None:
    both, over = ("first", release), asyncio.Event()
    async with CommandBus(deployment.url, namespace=deployment.namespace, lease=LEASE) as bus:
        await dispatched(bus)
        deployment.start(*both, *both)
        await deployment.told(ORDERS // 4, "stored")
        killing = asyncio.create_task(deployment.disturb(both, over))
        await suspended(bus)
        await let_go(bus)
        await deployment.told(ORDERS, "end")
        over.set()
        await killing
        await bus.wait_idle(60)
        results = [await bus.result(f"c-{number}", Order, timeout=5) for number in range(ORDERS)]
        stats = await bus.stats()
    assert (stats.completed, stats.dead_letters) == (ORDERS, 0)
    assert set(results) <= set(both)
    events = deployment.events()
    assert_stored_once(events)
    done = of_steps(events)
    for number, result in enumerate(results):
        order = str(number)
        last = next(each for each in reversed(events) if each["ev"] == "end" and each["order"] == order)
        assert last["release"] == result
        own = {step for line, step in done if line == order}
        assert {"1", "2", "s"} <= own  # what both do
        if result == release:
            assert steps <= own
    by_two = [what for what, each in done.items() if len({event["release"] for event in each}) == 2]
    assert by_two, "no order was carried on by the other release"


@pytest.mark.promise("Releases finish each other's commands")
@pytest.mark.slow
async def test_a_step_that_has_changed_is_refused_and_goes_on_with_the_code_that_fits(deployment: Deployment) -> None:
    async with CommandBus(deployment.url, namespace=deployment.namespace, lease=LEASE) as bus:
        await dispatched(bus)
        deployment.start("first", "first")
        await suspended(bus)  # all have begun with the first release
        deployment.kill(deployment.processes[0])
        deployment.start("reordered", "reordered")
        await deployment.ready(bus)
        over = asyncio.Event()
        killing = asyncio.create_task(deployment.disturb(("first", "reordered"), over))
        await settled_or_parked(bus)
        over.set()
        await killing
        letters = [each async for each in bus.dead_letters.list()]
        assert {each.reason for each in letters} == {"failed"}
        assert all(each.error_type.endswith("StepMismatch") and "write#1" in each.error_message for each in letters)
        assert all(each.parked for each in letters)
        assert 0 < len(letters) < ORDERS, "one release has met all orders"
        deployment.kill_all()
        deployment.start("first", "first")
        for each in letters:
            await bus.dead_letters.replay(each.id)
        await bus.wait_idle(60)
        stats = await bus.stats()
        results = {await bus.result(f"c-{number}", Order, timeout=5) for number in range(ORDERS)}
    assert (stats.completed, stats.dead_letters) == (ORDERS, 0)
    assert results == {"first"}
    events = deployment.events()
    assert_stored_once(events)
    assert {each["step"] for each in events if each["release"] == "reordered"} == {"h"}


async def suspended(bus: CommandBus) -> None:
    async with asyncio.timeout(60):
        while (await bus.stats()).suspended < ORDERS:
            await asyncio.sleep(0.05)


async def settled_or_parked(bus: CommandBus) -> None:
    """Let all orders go on, and wait until none is left that will."""
    await let_go(bus)
    async with asyncio.timeout(60):
        while True:
            stats: Any = await bus.stats()
            if stats.completed + stats.dead_letters == ORDERS:
                return
            await asyncio.sleep(0.05)
