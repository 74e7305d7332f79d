"""`command-bus command`, `signal`, `cancel --running` and `doctor` on durable commands, as a person uses them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

pytest.importorskip("typer")

from command_bus import Command, CommandBus, DurableContext, EntityId, HandlerRegistry
from command_bus.embedded import EmbeddedServer
from tests.conformance.put_service import until

pytestmark = pytest.mark.server


class Charge(Command[int], entity="account"):
    account: EntityId


class Order(Command[int], entity="order", durable=True):
    order: EntityId
    calls: bool = False


def _registry() -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handles(Order)
    async def order(command: Order, context: DurableContext) -> int:
        context.progress(0.5, "half")
        context.log("looked", rows=3)
        await context.step("look", _looked)
        if command.calls:
            return await context.call(Charge(account="a-1"))
        return int(await context.signal("approved", timeout=3600))

    return registry


def _looked() -> int:
    return 1


class Shop:
    """A bus with a worker, and the program beside it."""

    def __init__(self, bus: CommandBus, url: str) -> None:
        self.bus = bus
        self.url = url

    async def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "COMMAND_BUS_URL": self.url, "COMMAND_BUS_NAMESPACE": "shop", "NO_COLOR": "1"}
        line = [sys.executable, "-m", "command_bus", *words]
        return await asyncio.to_thread(
            subprocess.run, line, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    async def json(self, *words: str) -> Any:
        done = await self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    async def suspended(self, command_id: str) -> None:
        async def is_there() -> bool:
            return (await self.bus.commands.status(command_id)).state == "suspended"

        await until(is_there)


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    server = EmbeddedServer.start()
    try:
        async with CommandBus(server.url, namespace="shop", registry=_registry()) as bus, bus.worker():
            yield Shop(bus, server.url)
    finally:
        server.stop()


async def test_a_command_is_shown_and_signalled(shop: Shop) -> None:
    await shop.bus.dispatch(Order(order="o-1"), command_id="c-1")
    await shop.suspended("c-1")
    shown = (await shop.run("command", "c-1")).stdout
    for text in (
        "Order c-1",
        "order:o-1",
        "suspended",
        "waits for the signal approved",
        "50%: half",
        "look#1",
        "looked",
        "rows=3",
    ):
        assert text in shown
    found = await shop.json("command", "c-1")
    assert (found["status"]["state"], found["progress"]["share"]) == ("suspended", 0.5)
    assert found["status"]["suspension"]["waits_for"] == [{"kind": "signal", "name": "approved", "command_id": "", "entity": ""}]
    assert [step["name"] for step in found["steps"]] == ["look#1"]
    wrong = await shop.run("signal", "c-1", "approved", "yes")
    assert (wrong.returncode, "is no JSON" in wrong.stderr) == (2, True)
    assert await shop.json("signal", "c-1", "approved", "7", "--id", "s-1") == {
        "command_id": "c-1",
        "signal": "approved",
        "taken": True,
    }
    assert await shop.bus.result("c-1", Order, timeout=10) == 7
    assert "settled: completed" in (await shop.run("command", "c-1")).stdout
    for words in (("command", "no-such"), ("signal", "c-1", "approved")):
        assert (await shop.run(*words)).returncode == 1


@pytest.mark.slow
async def test_entities_say_what_is_waited_for_and_cancel_ends_it(shop: Shop) -> None:
    await shop.bus.entity("account", "a-1").pause()  # what is called does not start
    await shop.bus.dispatch(Order(order="o-2", calls=True), command_id="c-2")
    await shop.suspended("c-2")
    listed = " ".join((await shop.run("entities", "--state", "suspended")).stdout.split())
    assert "order:o-2 suspended" in listed
    assert "waits for Charge " in listed
    assert " on account:a-1" in listed
    assert " waits for Charge " in (await shop.run("entity", "order:o-2")).stdout
    assert "1 suspended" in (await shop.run("stats")).stdout
    assert (await shop.json("stats"))["suspensions"] == 1
    tree = await shop.bus.commands.tree("c-2")
    (called,) = tree.calls
    assert (tree.status.state, called.status.name, called.status.state, called.status.causation_id) == (
        "suspended",
        "Charge",
        "paused",
        "c-2",
    )
    assert (tree.complete, (await shop.bus.commands.tree("c-2", limit=1)).complete) == (True, False)
    shown = (await shop.run("command", "c-2", "--tree")).stdout.splitlines()
    assert shown[1].startswith("Order ")
    assert shown[2].startswith("  Charge "), shown
    assert "caused by  c-2" in (await shop.run("command", called.status.command_id)).stdout
    assert "not cancelled: it has started" in (await shop.run("cancel", "c-2")).stdout
    ended = await shop.run("cancel", "c-2", "--running", "--reason", "wrong day")
    assert (ended.returncode, ended.stdout) == (0, "c-2: cancelled\n")

    async def is_settled() -> bool:
        return (await shop.bus.commands.status("c-2")).outcome == "cancelled"

    await until(is_settled)
    acts = (await shop.json("command", "c-2"))["acts"]
    assert [(each["act"], each["outcome"], each["why"]) for each in acts] == [
        ("Cancel command", "done", "wrong day"),
        ("Cancel command", "nothing to change", ""),
    ]
    assert not await shop.bus.audit.about(["c", "2", "c-22", ""])
    stats = await shop.bus.stats()
    assert (stats.suspended, stats.cancelled, stats.completed) == (0, 1, 0)


async def test_doctor_tells_of_what_waits_for_long_and_of_steps_that_nobody_knows(shop: Shop) -> None:
    await shop.bus.dispatch(Order(order="o-3"), command_id="c-3")
    await shop.suspended("c-3")
    client: Redis = Redis.from_url(shop.url)
    await client.hset("{shop:0}:x:lost-1", "m", "1-1")
    await client.hset("{shop:0}:x:early-1", "gi:a", "1")  # a signal before the command, which expires
    await client.expire("{shop:0}:x:early-1", 100)
    await client.aclose()
    found = {each["about"]: each for each in (await shop.json("doctor", "--suspended-hours", "0"))["findings"]}
    assert found["suspended for long"]["found"].endswith("s: waits for the signal approved")
    assert "command-bus command" in found["suspended for long"]["advice"]
    assert found["stored steps"]["found"] == "of 1 unknown commands: lost-1"
    found = {each["about"]: each for each in (await shop.json("doctor"))["findings"]}
    assert "suspended for long" not in found
