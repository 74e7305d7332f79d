"""The command line with attempts of a command's own, a snoozed entity, and the deletion of a namespace."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("typer")

from command_bus import Command, CommandBus, CommandContext, EntityId, HandlerRegistry, Snooze, Unique
from command_bus.embedded import EmbeddedServer, find_server_binary
from tests.program import run_program

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]


class Sync(Command[int], entity="shop"):
    shop: EntityId
    seconds: float = 0.0


class Shop:
    """A namespace with a worker, and the program."""

    def __init__(self, url: str) -> None:
        self.url, self.namespace = url, f"cli-{secrets.token_hex(4)}"
        self.attempts: list[int] = []
        self.registry = HandlerRegistry()

        @self.registry.handles(Sync)
        async def sync(command: Sync, context: CommandContext) -> int:
            self.attempts.append(context.attempt)
            if command.shop == "busy":
                raise Snooze(600)
            await asyncio.sleep(command.seconds)
            raise ValueError("no")

    async def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        hidden = ("COMMAND_BUS_URL", "COMMAND_BUS_NAMESPACE", "REDIS_URL", "COMMAND_BUS_EMBEDDED_URL")
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        environment |= {"PYTHONPATH": str(ROOT), "COLUMNS": "300", "COMMAND_BUS_URL": self.url}
        return await asyncio.to_thread(run_program, *words, "-n", self.namespace, env=environment)


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    server = EmbeddedServer.start(binary=find_server_binary())
    try:
        yield Shop(server.url)
    finally:
        server.stop()


async def test_a_command_is_sent_with_attempts_and_a_time_of_its_own(shop: Shop) -> None:
    async with CommandBus(shop.url, namespace=shop.namespace, registry=shop.registry) as bus, bus.worker():
        sent = await shop.run("send", "Sync", '{"shop": "s-1"}', "--attempts", "2")
        assert sent.returncode == 0, sent.stderr
        await bus.wait_idle(10)
        assert shop.attempts == [1, 2]
        called = await shop.run("call", "Sync", '{"shop": "s-1", "seconds": 60.0}', "--attempts", "1", "--attempt-timeout", "0.1")
        assert called.returncode == 1
        assert "attempt_timeout of 0.1 s" in called.stderr
        assert shop.attempts == [1, 2, 1]
        wrong = await shop.run("send", "Sync", '{"shop": "s-1"}', "--attempt-timeout", "-1")
        assert "attempt_timeout is a positive number" in wrong.stderr
        assert (await shop.run("send", "Sync", '{"shop": "s-1"}', "--attempts", "0")).returncode == 2


async def test_a_snoozed_entity_is_shown_as_one(shop: Shop) -> None:
    async with CommandBus(shop.url, namespace=shop.namespace, registry=shop.registry) as bus, bus.worker():
        await bus.dispatch(Sync(shop="busy"))
        async with asyncio.timeout(10):
            while (await bus.entity("shop", "busy").show()).entity.state != "snoozed":
                await asyncio.sleep(0.01)
        listed = await shop.run("entities", "--state", "snoozed")
        assert "snoozed" in listed.stdout
        assert "again in" in listed.stdout
        assert "no worker knows" not in listed.stdout
        shown = await shop.run("entity", "shop:busy")
        assert "snoozed until" in shown.stdout
        found = json.loads((await shop.run("entity", "shop:busy", "--json")).stdout)["entity"]
        assert (found["state"], found["snoozes"], found["attempt"]) == ("snoozed", 1, 1)
        stats = json.loads((await shop.run("stats", "--json")).stdout)
        assert (stats["snoozed"], stats["retried"]) == (1, 0)


async def test_the_unique_keys_of_all_entities_are_listed(shop: Shop) -> None:
    async with CommandBus(shop.url, namespace=shop.namespace, registry=shop.registry) as bus:
        for name in ("s-1", "s-2", "x" * 600):
            await bus.dispatch(Sync(shop=name), unique=Unique(f"pull {name[:5]}"))
        first = await shop.run("entities", "--keys", "--limit", "2")
        assert first.returncode == 0, first.stderr
        assert "shop:s-1" in first.stdout
        assert "pull s-1" in first.stdout
        assert "more: command-bus" in first.stdout
        pages = [json.loads((await shop.run("entities", "shop", "--keys", "--limit", "2", "--json")).stdout)]
        more = await shop.run("entities", "shop", "--keys", "--cursor", pages[0]["cursor"], "--json")
        pages.append(json.loads(more.stdout))
        found = [(each["entity_id"], each["key"], each["state"]) for page in pages for each in page["keys"]]
        assert found == [("s-1", "pull s-1", "waiting"), ("s-2", "pull s-2", "waiting"), (None, "pull xxxxx", "waiting")]
        assert pages[1]["cursor"] is None
        of_one = await shop.run("entity", "shop:s-2", "keys")
        assert "pull s-2" in of_one.stdout
        assert "a long id" in (await shop.run("entities", "--keys")).stdout
        wrong = await shop.run("entities", "--keys", "--sort", "age")
        assert (wrong.returncode, "leave out" in wrong.stderr) == (2, True)
        assert (await shop.run("entities", "--keys", "--cursor", "none")).returncode == 2
        assert "no unique key" in (await shop.run("entities", "other", "--keys")).stdout


async def test_a_namespace_is_deleted_after_the_right_questions(shop: Shop) -> None:
    async with CommandBus(shop.url, namespace=shop.namespace, registry=shop.registry) as bus:
        await bus.dispatch(Sync(shop="s-1"))
        asked = await shop.run("obliterate", shop.namespace)
        assert (asked.returncode, "with 1 command and 0 dead letters? It cannot be undone." in asked.stderr) == (2, True)
        wrong = await shop.run("obliterate", "shop", "--yes")
        assert (wrong.returncode, "nothing was deleted" in wrong.stderr) == (2, True)
        async with bus.worker():
            refused = await shop.run("obliterate", shop.namespace, "--yes")
            assert (refused.returncode, "workers_live" in refused.stderr) == (1, True)
            await bus.wait_idle(10)
    done = await shop.run("obliterate", shop.namespace, "--yes", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts.keys() == {"namespace", "keys"}
    assert (facts["namespace"], facts["keys"] > 3) == (shop.namespace, True)
    again = await shop.run("obliterate", shop.namespace, "--yes")
    assert (again.returncode, "there is no namespace" in again.stderr) == (2, True)
