"""`command-bus webhooks` against a server with a worker."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("typer")
pytest.importorskip("httpx")

from command_bus.embedded import EmbeddedServer
from command_bus.webhooks import Webhooks
from tests.conformance.receiver import answering, receiving
from tests.integration.test_cli_schedules import Poll, Shop

pytestmark = pytest.mark.server


@pytest.mark.slow
async def test_a_webhook_from_its_beginning_to_its_end() -> None:
    with EmbeddedServer.start() as server:
        shop = Shop(server.url)
        bus = shop.bus(grace=1.0)
        Webhooks(bus).serve()
        async with bus, bus.worker(), receiving() as receiver:
            allowed = ("--allow-http", "--allow-private", "--kind", "completed", "--type", "shop")
            put = await shop.run("webhooks", "put", "crm", receiver.url, *allowed)
            assert put.startswith("crm: put\nits secret, which is not shown again: whsec_")
            assert await shop.run("webhooks", "put", "crm", receiver.url, *allowed, "--timeout", "2") == "crm: changed\n"
            assert await shop.run("webhooks", "test", "crm") == "crm: answered 204\n"
            await bus.call(Poll(shop="s-1"), timeout=10)
            async with asyncio.timeout(10):
                while len(receiver.got) < 2:
                    await asyncio.sleep(0.01)
            (listed,) = json.loads(await shop.run("webhooks", "list", "--json"))["webhooks"]
            assert (listed["name"], listed["timeout_seconds"], listed["secrets"]) == ("crm", 2.0, 1)
            assert "whsec" not in await shop.run("webhooks", "list")
            receiver.answer = lambda _: answering(500)
            assert "answered 500" in await shop.run("webhooks", "test", "crm", code=1)
            assert await shop.run("webhooks", "pause", "crm", "--reason", "they move") == "crm: paused\n"
            assert "they move" in await shop.run("webhooks", "list")
            assert await shop.run("webhooks", "resume", "crm") == "crm: resumed\n"
            assert json.loads(await shop.run("webhooks", "deliveries", "crm", "--json"))["deliveries"] == []
            assert await shop.run("webhooks", "remove", "crm") == "crm: removed\n"
            assert "webhooks list" in await shop.run("webhooks", "remove", "crm", code=1)
            assert "allow_http" in await shop.run("webhooks", "put", "crm", receiver.url, "--kind", "completed", code=2)
