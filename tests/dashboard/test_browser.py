"""The dashboard in Debian's chromium, on a live bus: what somebody on call does, and what must hold in a real browser."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio

pytest.importorskip("playwright")
pytest.importorskip("uvicorn")

import uvicorn
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, async_playwright, expect

from command_bus import CommandBus
from command_bus.dashboard import dashboard, passwords
from tests.dashboard.test_pages import HOSTILE, READ
from tests.dashboard.test_users import HASHED
from tests.dashboard.troubled_shop import Deposit, Shop, until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium"),
]
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
]  # fmt: skip
PASSWORD = "correct horse"
expect.set_options(timeout=30_000)  # other tests run beside these


class Served:
    """The dashboard on a port; it can go away and come back."""

    def __init__(self, bus: CommandBus, hours: float = 12.0) -> None:
        users = passwords({"ann": (HASHED, "operator"), "vera": (HASHED, "viewer"), "ada": (HASHED, "admin")}, hours=hours)
        self.app = dashboard(bus, users=users, secret="s" * 32, mask=["card"])
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server: Any = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        config = uvicorn.Config(self.app, host="127.0.0.1", port=self.port, log_level="error", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._server.install_signal_handlers = lambda: None
        self._task = asyncio.create_task(self._server._serve())

        async def started() -> bool:
            return bool(self._server.started)

        await until(started)

    async def stop(self) -> None:
        self._server.should_exit = True
        assert self._task is not None
        await self._task


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def served(troubled: tuple[CommandBus, Shop]) -> AsyncGenerator[Served]:
    place = Served(troubled[0])
    await place.start()
    yield place
    await place.stop()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser() -> AsyncGenerator[Browser]:
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        await started.close()


class Sitting:
    """A page of somebody who has signed in. What the console complains of, it keeps."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))

    async def sign_in(self, name: str) -> Page:
        await self.page.goto(f"{self.url}/sign-in")
        await self.page.fill("[name=name]", name)
        await self.page.fill("[name=password]", PASSWORD)
        await self.page.click("button")
        await self.page.wait_for_url(f"{self.url}/")
        return self.page


async def sat(browser: Browser, served: Served, name: str = "ann", **options: Any) -> Sitting:
    context = await browser.new_context(**options)
    context.set_default_timeout(60_000)
    sitting = Sitting(await context.new_page(), served.url)
    await sitting.sign_in(name)
    return sitting


async def test_the_parked_entity_is_repaired_and_its_line_flows(
    troubled: tuple[CommandBus, Shop], browser: Browser, served: Served
) -> None:
    shop = troubled[1]
    sitting = await sat(browser, served)
    page = sitting.page
    trouble = page.locator(".troubles > li", has_text="the card reader of Lisbon does not answer")
    if await trouble.locator("summary").count():
        await trouble.locator("summary").first.click()
    row = page.locator("tr", has_text="order:o-1002")
    await expect(row).to_contain_text("the card reader of Lisbon does not answer")
    await row.get_by_role("link", name="order:o-1002").click()
    await page.get_by_role("link", name="Edit and replay").click()
    payload = page.get_by_label("Payload")
    await payload.fill((await payload.input_value()).replace("Lisbon", "Porto"))
    await page.get_by_label("Reason").fill("the reader of Porto works")
    await page.get_by_role("button", name="Edit and replay").click()
    await expect(page.locator(".said")).to_contain_text("runs again with other fields")
    await expect(page.locator("#now")).to_contain_text("no work", timeout=15_000)
    assert [each for each in shop.charged if each.startswith("o-1002")] == ["o-1002:1999", "o-1002:500"]
    await page.goto(f"{served.url}/audit")
    await expect(page.locator("tbody tr").first).to_contain_text("the reader of Porto works")
    assert sitting.complaints == []
    await page.context.close()


@pytest.mark.slow
async def test_an_open_page_follows_what_happens(troubled: tuple[CommandBus, Shop], browser: Browser, served: Served) -> None:
    bus, _ = troubled
    sitting = await sat(browser, served, "vera")
    await bus.entity("account", "new-one").pause("seen at once")
    await bus.dispatch(Deposit(account_id="new-one", amount=1))
    await expect(sitting.page.locator("#still")).to_contain_text("seen at once", timeout=15_000)
    await bus.entity("account", "new-one").resume()
    await expect(sitting.page.locator("#still")).not_to_contain_text("seen at once", timeout=15_000)
    assert sitting.complaints == []
    await sitting.page.context.close()


@pytest.mark.slow
async def test_the_keyboard_leads_through_a_page(browser: Browser, served: Served) -> None:
    page = (await sat(browser, served, "vera")).page
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await page.keyboard.press("k")
    assert await page.locator("li.chosen").count() == 1
    await expect(page.locator(".troubles > li").first).to_have_class(re.compile("chosen"))
    await page.keyboard.press("Enter")
    if await page.locator("li.chosen summary").count():
        await expect(page.locator("li.chosen details")).to_have_attribute("open", "")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile("/entity"))
    await page.keyboard.press("/")
    await page.keyboard.type("order:o-1003")
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_contain_text("o-1003")
    await page.context.close()


@pytest.mark.slow
async def test_all_can_be_read_without_scripts(browser: Browser, served: Served) -> None:
    page = (await sat(browser, served, "vera", java_script_enabled=False)).page
    for path in READ:
        await page.goto(f"{served.url}{path}")
        assert await page.locator("h1").count() == 1, path
    await page.context.close()


@pytest.mark.slow
@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)])
async def test_pages_are_accessible_and_fit(browser: Browser, served: Served, theme: Any, width: int) -> None:
    sitting = await sat(browser, served, "ada", color_scheme=theme, viewport={"width": width, "height": 800})
    page, axe = sitting.page, Axe()
    letter = await page.request.get(f"{served.url}/letters")
    letters = re.findall(r'href="(/letter\?[^"]*)"', await letter.text())[:1]
    for path in [*READ, *letters, "/act?act=entity.purge&type=report&id=ledger", "/act?act=limit.put", "/command?id=nope"]:
        await page.goto(f"{served.url}{path}")
        found = (await axe.run(page)).response["violations"]
        assert [(each["id"], each["nodes"][0]["html"][:200]) for each in found] == [], path
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, path
    assert [each for each in sitting.complaints if "404" not in each] == []
    await page.context.close()


@pytest.mark.slow
async def test_roles_decide_what_can_be_done(browser: Browser, served: Served) -> None:
    viewer = (await sat(browser, served, "vera")).page
    await viewer.goto(f"{served.url}/entity?type=report&id=ledger")
    assert await viewer.get_by_role("link", name="Pause").count() == 0
    answer = await viewer.goto(f"{served.url}/act?act=entity.pause&type=report&id=ledger")
    assert answer is not None
    assert answer.status == 403
    await viewer.context.close()


@pytest.mark.slow
async def test_a_session_that_is_over_leads_to_the_sign_in(troubled: tuple[CommandBus, Shop], browser: Browser) -> None:
    short = Served(troubled[0], hours=3 / 3600)
    await short.start()
    page = (await sat(browser, short, "vera")).page
    await page.wait_for_url(re.compile("/sign-in"), timeout=20_000)
    await page.context.close()
    await short.stop()


@pytest.mark.slow
async def test_a_server_that_goes_away_is_noticed_and_found_again(troubled: tuple[CommandBus, Shop], browser: Browser) -> None:
    place = Served(troubled[0])
    await place.start()
    page = (await sat(browser, place, "vera")).page
    await expect(page.locator("[data-figure=workers]")).to_have_text("1", timeout=10_000)
    await place.stop()
    await expect(page.locator("#away")).to_be_visible(timeout=20_000)
    await place.start()
    await expect(page.locator("#away")).to_be_hidden(timeout=30_000)
    await page.context.close()
    await place.stop()


@pytest.mark.slow
async def test_hostile_texts_do_nothing(troubled: tuple[CommandBus, Shop], browser: Browser, served: Served) -> None:
    bus, _ = troubled
    await bus.entity("account", HOSTILE).pause(f"<img src=x onerror=alert(1)>{HOSTILE}")
    await bus.dispatch(Deposit(account_id=HOSTILE, amount=1), command_id=HOSTILE, headers={"<b>": HOSTILE})
    sitting = await sat(browser, served, "ada")
    page = sitting.page
    await page.get_by_role("link", name=re.compile("alert")).first.click()
    await expect(page.locator("h1")).to_contain_text("alert(1)")
    await page.goto(f"{served.url}/search?q=%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    assert await page.locator("main script, main img").count() == 0
    assert sitting.complaints == []
    await bus.entity("account", HOSTILE).resume()
    await page.context.close()
