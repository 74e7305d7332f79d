"""Nine troubles at once, in a browser: each is found on the first page, and mended in three clicks at most; a thousand equal ones are one row."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest
import pytest_asyncio

pytest.importorskip("playwright")

from playwright.async_api import Browser, Page, expect

from command_bus import CommandBus
from command_bus.embedded import EmbeddedServer
from tests.dashboard.test_browser import CHROMIUM, Served, browser, sat
from tests.dashboard.troubled_shop import Charge, Ship, Shop, make_trouble, open_shop, until

__all__ = ["browser"]
pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium"),
]
Mended = Callable[[CommandBus], Awaitable[bool]]

TROUBLES: dict[str, tuple[str, tuple[tuple[str, str], ...], dict[str, str]]] = {
    "parked": ("OSError: the card reader of Lisbon", (("button", "Their dead letters"), ("button", "Replay all that match")), {}),
    "paused": ("the customer disputes a booking", (("row", "account:a-17"), ("act", "Resume")), {}),
    "type paused": ("month end", (("hold", "Resume"),), {}),
    "retrying": ("ConnectionError: the carrier answers 503", (("row", "Ship"), ("act", "Cancel")), {}),
    "no handler": ("no live worker handles Refund", (("row", "Refund"), ("act", "Cancel")), {}),
    "limited": ("limit partner", (("button", "Limits"), ("act", "New limit")), {"name": "partner", "concurrency": "9"}),
    "suspended": ("waits for the signal approved", (("row", "Checkout"), ("act", "Send signal approved")), {"value": '"yes"'}),
    "running long": ("attempt 1 has run for", (("row", "report:ledger"), ("act", "Abort attempt")), {}),
    "letters that park no entity": ("Dead letters", (("menu", "Dead letters"), ("act", "Replay all")), {}),
}
"""By trouble: what the first page says of it, the clicks up to the form of the act, and its fields; the last click sends the form."""


async def is_mended(bus: CommandBus, shop: Shop, trouble: str) -> bool:
    """Return whether a trouble is gone."""
    stats = await bus.stats()
    still = (await bus.views.standing_still(patience=0.0)).entities
    states = {each.entity.name: each.state for each in still}
    match trouble:
        case "parked":
            return not stats.parked
        case "paused":
            return "account:a-17" not in states
        case "type paused":
            return not await bus.entities.holds()
        case "retrying":
            return "parcel:p-88" not in states
        case "no handler":
            return "order:o-2001" not in states
        case "limited":
            return any(each.name == "partner" and each.concurrency == 9 for each in await bus.limits.list())
        case "suspended":
            return not stats.suspended
        case "running long":
            return any(each.act == "Abort attempt" and "ended" in each.outcome for each in (await bus.audit.page()).entries)
        case _:
            done = [each for each in (await bus.audit.page()).entries if each.act == "Replay dead letters" and each.outcome]
            return bool(done) and done[0].outcome.startswith("8 ")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def place(shop_server: EmbeddedServer) -> AsyncGenerator[tuple[CommandBus, Shop, Served]]:
    async with open_shop(shop_server.url, "nine") as (bus, shop):
        await make_trouble(bus)
        await bus.entities.of("customer").pause("month end")
        served = Served(bus)
        await served.start()
        yield bus, shop, served
        await served.stop()


async def click(page: Page, kind: str, text: str) -> None:
    """Click on what leads on: in the row of a trouble, a button of it, a hold's button, the menu, or an act's button."""
    place = {"row": ".troubles", "button": ".troubles, .acts", "hold": ".notice.warn", "menu": "nav.side", "act": "main"}[kind]
    link = page.locator(place).locator("a:visible").filter(has_text=text).first
    await link.click()


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_each_is_found_and_mended_in_three_clicks(
    place: tuple[CommandBus, Shop, Served], browser: Browser, trouble: str
) -> None:
    bus, shop, served = place
    shop.readers.add("Lisbon")
    says, clicks, fields = TROUBLES[trouble]
    sitting = await sat(browser, served, "ada")
    page = sitting.page
    await expect(page.locator("body")).to_contain_text(says)
    for kind, text in clicks:
        await click(page, kind, text)
        await page.wait_for_load_state()
    for name, value in fields.items():
        await page.fill(f"form.act [name={name}]", value)
    if await page.locator("form.act [name=typed]").count():
        await page.fill("form.act [name=typed]", await page.locator("form.act label b.id").inner_text())
    await page.fill("form.act [name=why]", "on call")
    await page.click("form.act button")
    assert len(clicks) + 1 <= 3
    await until(lambda: is_mended(bus, shop, trouble))
    assert sitting.complaints == []
    await page.context.close()


async def test_a_thousand_equal_troubles_are_one_row_on_a_phone(shop_server: EmbeddedServer, browser: Browser) -> None:
    async with open_shop(shop_server.url, "storm") as (bus, _):
        await bus.dispatch_batch(Ship(parcel=f"p-{number}") for number in range(1000))
        await bus.dispatch_batch(Charge(order_id=f"o-{number}", cents=1, card=f"4111{number}") for number in range(1000))

        async def is_there() -> bool:
            stats = await bus.stats()
            return stats.parked == 1000 and not stats.ready

        await until(is_there, 60)
        served = Served(bus)
        await served.start()
        page = (await sat(browser, served, "ada", viewport={"width": 390, "height": 844})).page
        rows = page.locator(".troubles > li")
        await expect(rows).to_have_count(2)
        for number in range(2):
            box = await rows.nth(number).bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= 844, box
        assert await page.evaluate("document.documentElement.scrollHeight") <= 1.3 * 844
        await page.context.close()
        await served.stop()
