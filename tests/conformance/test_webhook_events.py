"""Webhooks of what applications publish: a subscription, with the payload."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from standardwebhooks import Webhook as StandardWebhook

from command_bus import EntityId, Event
from tests.conformance.put_service import until
from tests.conformance.test_webhooks import SECRET, Shop, shop

__all__ = ["shop"]


class Packed(Event, entity="order", name="order.packed"):
    order: EntityId
    at: datetime


async def test_what_an_application_publishes_is_sent_with_its_fields(shop: Shop) -> None:
    await shop.put(kinds=(), entity_types=(), retries=None, events={"order.*"})
    async with shop.bus.worker():
        at = datetime(2026, 11, 29, tzinfo=UTC)
        for number in range(3):
            published = await shop.bus.publish(Packed(order="o-1", at=at), event_id=f"e-{number}")
            assert published.subscriptions == ("webhook.crm",)
        got = await shop.come(3)
        for each in got:
            verified = StandardWebhook(SECRET).verify(each.body, each.headers)
            assert verified["data"] == {"order": "o-1", "at": "2026-11-29T00:00:00Z"}
        assert {each.type for each in got} == {"order.packed"}
        assert len({each.headers["webhook-id"] for each in got}) == 3
        await shop.hooks.pause("crm", "their night")
        await shop.bus.publish(Packed(order="o-1", at=at))
        await until(_snoozed(shop))
        assert await shop.hooks.remove("crm")
        assert (await shop.bus.publish(Packed(order="o-1", at=at))).subscriptions == ()
        assert len(shop.receiver.got) == 3


def _snoozed(shop: Shop) -> Any:
    async def snoozed() -> bool:
        page = await shop.bus.entities.of("order@webhook.crm").list()
        return [each.state for each in page.entities] == ["snoozed"]

    return snoozed
