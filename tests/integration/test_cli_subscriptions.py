"""`command-bus publish` and `subscriptions` against a server, and entities of a subscription's lines."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("typer")

from command_bus import CommandContext, EntityId, Event, RawEvent
from command_bus.embedded import EmbeddedServer
from tests.integration.test_cli_schedules import Shop

pytestmark = pytest.mark.server


class Polled(Event, entity="shop", name="shop.polled"):
    shop: EntityId
    pages: int = 1


async def test_events_are_published_and_subscriptions_operated() -> None:
    with EmbeddedServer.start() as server:
        shop = Shop(server.url)
        got: list[tuple[str, object, str | None]] = []

        @shop.registry.subscribes("ledger", Polled)
        async def post(event: Polled, context: CommandContext) -> None:
            got.append((context.event_id, event.pages, context.headers.get("by")))

        @shop.registry.subscribes("audit", "*")
        async def write(event: RawEvent) -> None:
            got.append((event.event_id, event.entity_id(), None))

        async with shop.bus(grace=1.0) as bus:
            told = await shop.run("publish", "shop.closed", "{}", "--entity", "shop:s-1", "--event-id", "e-0")
            assert told == "e-0: no subscription is for it, so no one gets it\n"
            assert await shop.run("subscriptions", "list") == "there are no subscriptions\n"
            async with bus.worker():
                words = ("--event-id", "e-1", "-H", "by=ann", "--priority", "high", "--expires", "60")
                told = await shop.run("publish", "shop.polled", '{"shop": "s-1", "pages": 3}', *words)
                assert told == "e-1: published to audit, ledger\n"
                await bus.wait_idle(10)
                assert sorted(map(str, got)) == ["('e-1', 's-1', None)", "('e-1', 3, 'ann')"]
                raw = json.loads(await shop.run("publish", "x.y", '{"n": 1}', "--entity", "thing:t-1", "--json"))
                assert raw["subscriptions"] == ["audit"]
                await wrong_events(shop)
            await operated(shop)


async def wrong_events(shop: Shop) -> None:
    for words, code, text in (
        (("shop.poled", "{}"), 2, "announced are: shop.polled"),
        (("shop.polled", '{"pages": 1}'), 2, "shop"),
        (("shop.polled", '{"shop": "s", "pages": "x"}'), 2, "pages"),
        (("shop.polled", '{"shop": "s"}', "--entity", "shop:s"), 2, "leave out --entity"),
        (("x.y", "{}", "--entity", "shop"), 2, "write TYPE:ID"),
        (("x.y", "{}", "--entity", "shop@ledger:a"), 1, "invalid_command"),
    ):
        assert text in await shop.run("publish", *words, code=code)
    assert json.loads(await shop.run("introspect", "shop.polled"))["kind"] == "event"
    assert "shop.polled" not in await shop.run("introspect")
    assert "`command-bus publish` publishes it" in await shop.run("send", "shop.polled", "{}", code=2)


async def operated(shop: Shop) -> None:
    """Act on subscriptions whose worker is gone."""
    assert await shop.run("subscriptions", "pause", "ledger", "-m", "month end") == "ledger: paused\n"
    for number in range(2):
        await shop.run("publish", "shop.polled", '{"shop": "s-2"}', "--event-id", f"n-{number}")
    listed = await shop.run("subscriptions", "list")
    assert [line.split()[:4] for line in listed.splitlines()[1:]] == [
        ["audit", "*", "2", "1"],
        ["ledger", "shop.polled", "2", "1"],
    ]
    assert "month end" in listed
    shown = json.loads(await shop.run("subscriptions", "show", "ledger", "--json"))
    assert (shown["waiting"], shown["paused"], shown["workers"]) == (2, "month end", [])
    assert "2 deliveries for 1 entity" in await shop.run("subscriptions", "show", "ledger")
    assert "unknown_subscription" in await shop.run("subscriptions", "show", "none", code=1)
    assert "subscription ledger, since" in await shop.run("entity", "shop@ledger:s-2")
    assert "shop@ledger:s-2" in await shop.run("entities", "shop@ledger")
    report = await shop.run("doctor", code=1)
    assert "subscriptions resume ledger" in report
    assert "audit: no live worker handles it, and 2 deliveries wait" in report
    assert await shop.run("subscriptions", "resume", "ledger") == "ledger: resumed\n"
    assert await shop.run("subscriptions", "resume", "ledger", code=1) == "ledger: was not paused\n"
    assert "pass --yes" in await shop.run("subscriptions", "remove", "ledger", code=2)
    gone = "ledger: removed, with 2 deliveries and dead letters\n"
    assert await shop.run("subscriptions", "remove", "ledger", "--yes") == gone
    assert "removed, with 0" in await shop.run("subscriptions", "remove", "ledger", "--yes")  # what a lost answer left
    told = await shop.run("publish", "shop.polled", '{"shop": "s-1"}')
    assert told.endswith(": published to audit\n")
