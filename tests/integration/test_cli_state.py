"""`command-bus state`: shows, lists, exports and deletes states of entities."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from typer.testing import CliRunner

from command_bus import CommandBus, EntityState
from command_bus.cli.app import app
from command_bus.embedded import EmbeddedServer

pytestmark = pytest.mark.server


class Account(EntityState, entity="account"):
    balance: int = 0
    owner: str = ""


@pytest.fixture
async def bus(server: EmbeddedServer) -> AsyncIterator[CommandBus]:
    async with CommandBus(server.url, namespace="state-cli") as bus:
        for name, balance in (("a-17", 5), ("a-18", 7), ("odd/ü", 9)):
            await bus.states.put(name, Account(balance=balance, owner="Zoë"))
        yield bus


async def test_states_are_shown_listed_exported_and_deleted(bus: CommandBus) -> None:
    def run(*words: str) -> Any:
        return CliRunner().invoke(app, [*words, "--url", bus.url, "--namespace", "state-cli"], catch_exceptions=False)

    done = await asyncio.to_thread(run, "state", "show", "account:a-17")
    assert done.exit_code == 0
    assert "balance     5" in done.output
    assert "owner       Zoë" in done.output
    done = await asyncio.to_thread(run, "state", "show", "account", "a-99")
    assert (done.exit_code, "account:a-99 has no state" in done.output) == (3, True)
    done = await asyncio.to_thread(run, "state", "list", "account", "--limit", "2")
    assert "2 of them; there are more" in done.output
    done = await asyncio.to_thread(run, "state", "export", "account")
    lines = [json.loads(line) for line in done.output.splitlines()]
    assert {each["entity_id"]: each["value"]["balance"] for each in lines} == {"a-17": 5, "a-18": 7, "odd/ü": 9}
    done = await asyncio.to_thread(run, "state", "delete", "account:odd/ü", "--reason", "erasure")
    assert done.exit_code == 0
    assert await bus.states.get(Account, "odd/ü") is None
    assert next(each.why for each in (await bus.audit.page()).entries) == "erasure"
    done = await asyncio.to_thread(run, "state", "delete", "account:odd/ü")
    assert done.exit_code == 1


async def test_what_deletes_the_namespace_says_that_states_go_with_it(bus: CommandBus) -> None:
    def run(*words: str) -> Any:
        return CliRunner().invoke(app, ["--url", bus.url, "--namespace", "state-cli", *words], catch_exceptions=False)

    assert (await bus.stats()).states == 3
    assert "states" in (await asyncio.to_thread(run, "stats")).output
    asked = await asyncio.to_thread(run, "obliterate", "state-cli")
    assert "0 dead letters and 3 states? It cannot be undone." in asked.output
    async with CommandBus(bus.url, namespace="state-cli-4", shards=4) as new:
        async for each in bus.states.list(Account):
            await new.states.put(each.entity_id, each.value, expected=0)
        assert (await new.stats()).states == 3
        assert await new.states.get(Account, "odd/ü") == Account(balance=9, owner="Zoë")
