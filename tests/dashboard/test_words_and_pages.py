"""Words, errors and phones: what pages say, what a wrong filter keeps, and that a phone shows what it should, in a browser."""

from __future__ import annotations

import re
from html import escape

import pytest

pytest.importorskip("playwright")

from playwright.async_api import Browser, expect

from command_bus import CommandBus
from command_bus.dashboard.words import sentence
from tests.dashboard.conftest import Browser as Client
from tests.dashboard.conftest import inputs, page_text
from tests.dashboard.test_browser import Served, browser, pytestmark, sat, served
from tests.dashboard.test_pages import READ
from tests.dashboard.test_throughput import filled
from tests.dashboard.troubled_shop import Shop

__all__ = ["browser", "pytestmark", "served"]
PHONE = {"width": 390, "height": 800}


@pytest.mark.parametrize(
    ("path", "field", "value", "words"),
    [
        ("/letters?name=Mail&since=soon", "since", "soon", "a date or time as"),
        ("/history?name=Mail&until=1.2.2026", "until", "1.2.2026", "a date or time as"),
        ("/commands?older=yesterday&name=Mail", "older", "yesterday", "a time as"),
        ("/entities?q=a&type=a/b", "type", "a/b", "1 to 64 letters"),
    ],
)
async def test_a_wrong_filter_keeps_the_menu_and_what_was_typed(
    viewer: Client, path: str, field: str, value: str, words: str
) -> None:
    page = await viewer.page(path, 400)
    assert 'aria-label="Pages"' in page
    assert f'name="{field}" type="text" value="{escape(value)}"' in page
    assert words in page_text(page)
    assert 'placeholder="2026-11-23 08:30"' in page or field != "since"
    other = re.findall(r'name="(?:name|q)" type="text" value="([^"]*)"', page)
    assert other in (["Mail"], ["a"])


async def test_an_error_keeps_the_menu(viewer: Client) -> None:
    for path, code in (
        ("/command?id=nope", 404),
        ("/letter?id=nope", 404),
        ("/act?act=entity.pause&type=a&id=b", 403),
        ("/act", 404),
    ):
        page = await viewer.page(path, code)
        assert 'aria-label="Pages"' in page, path
        assert "Try again" not in page, path


async def test_filters_say_which_form_they_expect(viewer: Client) -> None:
    for path in ("/letters", "/history"):
        assert (await viewer.page(path)).count('placeholder="2026-11-2') == 2, path


async def test_nothing_that_matches_is_not_replayed(admin: Client) -> None:
    assert "letters.replay" in await admin.page("/letters?name=Mail")
    assert "/act?act=letters." not in await admin.page("/letters?name=Nothing")


async def test_times_have_a_zone(viewer: Client) -> None:
    letter = re.findall(r'href="(/letter\?[^"]*)"', await viewer.page("/letters"))[0]
    for path in (letter, "/letters", "/audit", "/entity?type=order&id=o-1001", "/command?id=charge-1003"):
        text = page_text(await viewer.page(path))
        assert re.findall(r"\d\d:\d\d:\d\d(?! UTC)", text) == [], path
    assert re.search(r"\d\d:\d\d:\d\d UTC", page_text(await viewer.page(letter)))


async def test_a_name_keeps_its_small_letter(troubled: tuple[CommandBus, Shop], admin: Client) -> None:
    assert sentence("report:sales was paused") == "report:sales was paused"
    assert sentence("limit partner[acme]: free") == "Limit partner[acme]: free"
    await troubled[0].entity("report", "sales").pause("a count")
    for path in ("/entity?type=report&id=sales", "/"):
        assert "Report:sales" not in await admin.page(path)
    await troubled[0].entity("report", "sales").resume()


async def test_fields_of_a_payload_have_types_in_plain_words(operator: Client) -> None:
    letter = re.findall(r"/letter\?id=([0-9-]+)", await operator.page("/letters?name=Charge"))[0]
    page = await operator.page(f"/act?act=letter.edit&id={letter}")
    assert {"order_id (text or number)", "cents (number)", "card (text)"} <= set(re.findall(r"\w+ \([a-z ]+\)", page_text(page)))
    assert inputs(page)["payload"]


@pytest.mark.slow
async def test_an_act_begins_with_its_first_field(browser: Browser, served: Served) -> None:
    page = (await sat(browser, served, "ada")).page
    for path, name in (("/act?act=limit.put", "name"), ("/act?act=entity.resume&type=account&id=a-17", "why")):
        await page.goto(f"{served.url}{path}")
        assert await page.evaluate("document.activeElement.name") == name
    await page.context.close()


@pytest.mark.slow
async def test_a_phone_shows_the_marked_page_and_more_than_filters(browser: Browser, served: Served) -> None:
    page = (await sat(browser, served, "ada", viewport=PHONE)).page
    for path in READ:
        await page.goto(f"{served.url}{path}")
        await expect(page.locator("[data-figure=workers]")).to_have_text("1")
        box = await page.locator(".side [aria-current]").bounding_box()
        assert box is not None, path
        assert box["x"] >= 0, path
        assert box["x"] + box["width"] <= PHONE["width"], path
        for filters in await page.locator(".filters:visible").all():
            taken = await filters.bounding_box()
            assert taken is None or taken["height"] <= PHONE["height"] / 3, path
    await page.goto(f"{served.url}/letters?name=Mail")
    await page.get_by_text("Filters: Mail").click()
    assert await page.locator("[name=since]").is_visible()
    await page.goto(f"{served.url}/letters?since=soon")
    assert await page.locator("[name=since]").is_visible()
    await page.context.close()


@pytest.mark.slow
async def test_an_entry_of_the_audit_log_is_short(troubled: tuple[CommandBus, Shop], browser: Browser, served: Served) -> None:
    target = "letter 0-1795850119715-1 (Charge of order:o-1002)"
    await troubled[0].audit.write(
        "ann",
        "Edit and replay",
        target,
        "the reader works",
        outcome="command charge-1002 runs again with other fields",
        details="edited: shop",
    )
    page = (await sat(browser, served, "ada")).page
    row = page.locator("tr", has_text="the reader works")
    for width, most in ((1280, 80), (390, 260)):
        await page.set_viewport_size({"width": width, "height": 800})
        await page.goto(f"{served.url}/audit")
        box = await row.bounding_box()
        assert box is not None, width
        assert box["height"] <= most, width
    await page.context.close()


SMALL = """() => [...document.querySelectorAll("a, button, input:not([type=hidden]), select, textarea, summary")].filter((each) => {
  const box = (each.closest("label") || each).getBoundingClientRect();
  return each.checkVisibility() && !each.closest("p:not(.acts), .skip, .hidden, li > .quiet") && box.height > 1 && box.height < 23.99;
}).map((each) => each.outerHTML.slice(0, 120))"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
async def test_targets_are_large_enough(browser: Browser, served: Served, width: int) -> None:
    """Those in a sentence are excepted (WCAG 2.5.8)."""
    page = (await sat(browser, served, "ada", viewport={"width": width, "height": 800})).page
    for path in READ:
        await page.goto(f"{served.url}{path}")
        assert await page.evaluate(SMALL) == [], path
    await page.context.close()


@pytest.mark.slow
async def test_the_values_of_a_plot_are_shown_where_one_points(
    troubled: tuple[CommandBus, Shop], browser: Browser, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(troubled[0], monkeypatch, 60)
    sitting = await sat(browser, served, "ada", has_touch=True)
    page = sitting.page
    await page.goto(f"{served.url}/throughput")
    figure = page.locator("figure", has_text="Retries and refusals a minute")
    value, at = figure.locator("b").first, figure.locator(".at")
    now = await at.inner_text()
    assert (await value.inner_text(), now.endswith(" UTC")) == ("4,000", True)
    await figure.locator("svg").hover(position={"x": 200, "y": 50})
    assert (await value.inner_text(), await at.inner_text() != now) == ("0", True)
    await figure.locator("svg").focus()
    await page.keyboard.press("End")
    assert (await value.inner_text(), await at.inner_text()) == ("4,000", now)
    await page.keyboard.press("ArrowLeft")
    assert await value.inner_text() == "0"
    await page.keyboard.press("End")
    await figure.locator("svg").tap(position={"x": 200, "y": 50})
    assert (await value.inner_text(), await figure.locator(".guide").count()) == ("0", 1)
    await page.get_by_text("All values as a table").click()
    assert await page.locator("#values tbody tr").first.is_visible()
    assert sitting.complaints == []
    await page.context.close()
