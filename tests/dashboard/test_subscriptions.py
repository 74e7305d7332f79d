"""The page of subscriptions: what waits for whom, and those that are paused and resumed there."""

from __future__ import annotations

import re
from html import unescape

import pytest

from command_bus import CommandBus
from command_bus.sending.publishing import SubscriptionRecord
from tests.dashboard.conftest import Browser, page_text
from tests.dashboard.troubled_shop import Shop

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="module")]


async def test_subscriptions_are_shown_paused_and_resumed(
    troubled: tuple[CommandBus, Shop], operator: Browser, viewer: Browser
) -> None:
    bus, _ = troubled
    assert "No one subscribes to events." in page_text(await viewer.page("/subscriptions"))
    for name in ("ledger", "mail"):
        await bus.sender.subscriptions.put(name, SubscriptionRecord(("order.*",), False, 1, 1_785_000_000_000))
    done = await operator.do("subscription.pause", "the month ends", name="ledger", minutes="60")
    assert (done.status_code, done.headers["location"]) == (303, "/subscriptions")
    for number in range(3):
        await bus.publish_raw("order", f"o-{number % 2}", "order.paid", {"cents": 1})
    page = await operator.page("/subscriptions")
    rows = [page_text(row) for row in re.findall(r"<tr>.*?</tr>", page)]
    assert re.search(r"ledger order\.\* paused the month ends \(otto\) 3 2 order@ledger 0 .* 0 Resume", rows[1])
    assert re.search(r"mail order\.\* no worker 3 2 order@mail 0 .* 0 Pause", rows[2])
    assert "subscription.pause" not in await viewer.page("/subscriptions")
    links = [unescape(each) for each in re.findall(r'href="(/entities\?[^"]*)"', page)]
    listed = page_text(await viewer.page(links[0]))
    assert "order@ledger:o-0" in listed
    entity = page_text(await viewer.page("/entity?type=order%40ledger&id=o-0"))
    assert "Subscription ledger was paused: the month ends" in entity
    first = await operator.page("/")
    assert "act=subscription.resume&amp;name=ledger" in first
    assert "act=many.resume&amp;type=%40ledger" not in first
    assert "there is no subscription" in page_text(await operator.page("/act?act=subscription.pause&name=none", 404))
    await operator.do("subscription.resume", name="ledger")
    assert (await bus.subscriptions.get("ledger")).paused is None
    acts = page_text(await viewer.page("/audit"))
    assert "otto Pause subscription subscription ledger 0 deliveries held, for an hour the month ends" in acts
    assert "Resume subscription subscription ledger 3 deliveries held" in acts
