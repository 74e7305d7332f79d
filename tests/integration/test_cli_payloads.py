"""The command line with commands that have versions, and with compressed payloads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("typer")

from command_bus import Command, CommandBus, EntityId, HandlerRegistry, RetryPolicy, upcasts
from command_bus.embedded import EmbeddedServer, find_server_binary
from tests.integration.test_cli_policies import Shop

pytestmark = pytest.mark.server


class Label(Command[str], entity="parcel", version=2, retry=RetryPolicy(attempts=1)):
    parcel: EntityId
    title: str


@upcasts(Label, since=1)
def title_for_name(fields: dict[str, Any]) -> dict[str, Any]:
    return {"parcel": fields["parcel"], "title": fields["name"]}


class Depot(Shop):
    """A namespace with a worker, and the program, which does not have the command's class."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.titles: list[str] = []
        self.registry = HandlerRegistry()

        @self.registry.handles(Label)
        async def label(command: Label) -> str:
            if command.title.startswith("bad"):
                raise ValueError("as it says")
            self.titles.append(command.title)
            return command.title

    async def succeeds(self, *words: str) -> str:
        """Run the program; return what it prints."""
        found = await self.run(*words)
        assert found.returncode == 0, found.stderr
        return found.stdout


@pytest.fixture
async def depot() -> AsyncIterator[Depot]:
    server = EmbeddedServer.start(binary=find_server_binary())
    try:
        yield Depot(server.url)
    finally:
        server.stop()


async def test_what_it_sends_by_name_has_the_announced_version(depot: Depot) -> None:
    async with CommandBus(depot.url, namespace=depot.namespace, registry=depot.registry) as bus, bus.worker():
        assert json.loads(await depot.succeeds("introspect", "Label"))["version"] == 2
        await depot.succeeds("send", "Label", '{"parcel": "p-1", "title": "sent"}')
        called = await depot.succeeds("call", "Label", '{"parcel": "p-1", "title": "called"}')
        assert json.loads(called) == "called"
        await depot.succeeds("schedules", "put", "daily", "Label", '{"parcel": "p-1", "title": "put"}', "--every", "1h")
        await depot.succeeds("schedules", "trigger", "daily")
        async with asyncio.timeout(10):
            while len(depot.titles) < 3:
                await asyncio.sleep(0.01)
    assert depot.titles == ["sent", "called", "put"]


async def test_a_compressed_letter_is_shown_and_edited(depot: Depot) -> None:
    long = "bad " * 1000
    async with (
        CommandBus(depot.url, namespace=depot.namespace, registry=depot.registry, compress_above=1000) as bus,
        bus.worker(),
    ):
        await bus.dispatch(Label(parcel="p-1", title=long))
        await bus.dispatch_raw("parcel", "p-2", "Label", {"parcel": "p-2", "name": long})
        async with asyncio.timeout(10):
            while sum((await bus.dead_letters.count()).values()) < 2:
                await asyncio.sleep(0.01)
        letters = [each async for each in bus.dead_letters.list()]
        assert all(len(each.raw) < 1000 for each in letters)
        for letter, field in zip(letters, ("title", "name"), strict=True):
            shown = json.loads(await depot.succeeds("dlq", "show", letter.id, "--json"))
            assert shown["payload"][field] == long
            good = json.dumps({"parcel": letter.entity_id, "title": f"good {letter.entity_id}"})
            await depot.succeeds("dlq", "replay", letter.id, "--payload", good, "--yes")
        await bus.wait_idle(10)
    assert sorted(depot.titles) == ["good p-1", "good p-2"]
