"""The pages that are read, on a live bus with trouble in it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine
from contextvars import ContextVar
from html import escape
from typing import Any
from urllib.parse import quote

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from command_bus import CommandBus, EntityState, HandlerRegistry
from command_bus.dashboard import dashboard
from command_bus.dashboard.app import HEADERS, PAGES
from command_bus.dashboard.pages import entities, fleet
from command_bus.dashboard.visit import trace_link_of
from command_bus.transport.redis.admin import views
from command_bus.transport.redis.connection.pipe import Pipe
from tests.dashboard.conftest import Browser, inputs, page_text, users_by_header
from tests.dashboard.troubled_shop import Charge, Deposit, Ship, Shop, until

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="module")]

READ = [
    "/",
    "/?state=parked",
    "/entities",
    "/entities?q=a-1",
    "/entities?type=order",
    "/entities?state=limited",
    "/entity?type=order&id=o-1001",
    "/entity?type=report&id=ledger",
    "/entity?type=basket&id=b-5",
    "/entity?type=account&id=idle",
    "/checks",
    "/commands",
    "/commands?state=delayed&name=Export",
    "/letters",
    "/letters?name=Mail&parked=no",
    "/command?id=charge-1003",
    "/command?id=charge-1001",
    "/command?id=export-11",
    "/command?id=checkout-5",
    "/command?id=later-1",
    "/workers",
    "/schedules?name=nightly-ledger",
    "/subscriptions",
    "/entity?type=order@ledger&id=o-1001",
    "/limits?name=partner",
    "/throughput",
    "/history?name=Mail&status=completed",
    "/audit",
]
MOST_ROUNDS = 5


@pytest.mark.parametrize("path", READ)
async def test_every_page_can_be_read(viewer: Browser, path: str) -> None:
    page = await viewer.page(path)
    assert "<h1" in page
    assert "4111111111111111" not in page
    assert not re.search(r"<script(?![^>]* src=)|<style| style=| on[a-z]+=", page)


async def test_every_page_is_among_them() -> None:
    assert {path.partition("?")[0] for path in READ} >= PAGES.keys() - {"/letter", "/search", "/live"}


async def test_what_stands_still_is_there_with_its_reasons(viewer: Browser) -> None:
    text = page_text(await viewer.page("/"))
    for reason in (
        "account:a-17 was paused: the customer disputes a booking",
        "OSError: the card reader of Lisbon does not answer for card •••••• (failed, 3 times)",
        "no live worker handles Refund",
        "limit partner[acme]: free when one ends",
        "waits for the signal approved",
        "attempt 1 failed; the next in 6 min",
    ):
        assert reason in text, reason
    only = page_text(await viewer.page("/?state=parked"))
    assert "order:o-1001" in only
    assert "account:a-17" not in only


async def test_an_entity_shows_its_line_and_its_story(viewer: Browser) -> None:
    text = page_text(await viewer.page("/entity?type=order&id=o-1001"))
    assert "Parked by a dead letter" in text
    assert text.index("Line") < text.index("charge-1001") < text.index("Timeline")
    story = text.partition("Timeline")[2]
    for what in (
        "parked Charge attempt 3",
        "retried Charge attempt 2, again in 40 ms",
        "started Charge attempt 1",
        "accepted Charge",
    ):
        assert what in story
    assert "Nothing waits or runs" in page_text(await viewer.page("/entity?type=account&id=idle"))


async def test_a_blocked_entity_leads_to_the_home_of_what_is_first_there(
    viewer: Browser, troubled: tuple[CommandBus, Shop]
) -> None:
    bus, link = troubled[0], 'href="/entity?type=account&amp;id=a-17"'
    await bus.dispatch_raw("account", "a-17", "Transfer", {}, others=[("basket", "blocked")], command_id="of-two")
    for path in ("/entity?type=basket&id=blocked", "/entities?state=blocked"):
        assert link in await viewer.page(path), path
    assert await bus.commands.cancel("of-two")
    await bus.dispatch_raw("basket", "blocked", "Transfer", {}, others=[("account", "a-17")], command_id="of-two-more")
    await until(lambda: leads(viewer, "/entity?type=basket&id=blocked", link))  # once a worker has looked at it
    assert await bus.commands.cancel("of-two-more")


async def leads(viewer: Browser, path: str, link: str) -> bool:
    return link in await viewer.page(path)


class Idle(EntityState, entity="account"):
    balance: int = 0
    card: str = ""


async def test_an_entity_shows_its_state_with_fields_masked(viewer: Browser, troubled: tuple[CommandBus, Shop]) -> None:
    await troubled[0].states.put("idle", Idle(balance=7, card="4111-secret"))
    text = page_text(await viewer.page("/entity?type=account&id=idle"))
    assert '"balance": 7' in text
    assert "4111" not in text
    assert "Changed" in text
    await troubled[0].states.delete("account", "idle")
    assert "balance" not in page_text(await viewer.page("/entity?type=account&id=idle"))


async def test_a_command_shows_progress_log_steps_and_its_end(viewer: Browser) -> None:
    running = page_text(await viewer.page("/command?id=export-11"))
    assert "40 % rows of month 11" in running
    assert "opened the ledger rows=120000" in running
    assert "step reserve" in page_text(await viewer.page("/command?id=checkout-5"))
    assert '"charged 100"' in page_text(await viewer.page("/command?id=charge-1003"))
    assert "nothing is known of a command" in page_text(await viewer.page("/command?id=nope", 404))


async def test_a_command_leads_to_its_trace(troubled: tuple[CommandBus, Shop]) -> None:
    bus, _ = troubled
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    await bus.dispatch(Deposit(account_id="traced", amount=1), delay=3600, command_id="traced-1", headers=headers)
    await bus.dispatch(Deposit(account_id="traced", amount=1), delay=3600, command_id="traced-2", headers={"traceparent": "<b>"})
    app = dashboard(bus, users=users_by_header(), trace_link=trace_link_of("https://jaeger.example/trace/{trace_id}"))
    page = await Browser(app, "vera").page("/command?id=traced-1")
    assert f'<a href="https://jaeger.example/trace/{trace_id}" rel="noreferrer">{trace_id}</a>' in page
    assert "jaeger" not in await Browser(app, "vera").page("/command?id=traced-2")
    sly = dashboard(bus, users=users_by_header(), trace_link="javascript:{}".format)
    assert "javascript:" not in re.sub(
        r"<pre.*?</pre>|<p class=\"notice.*?</p>", "", await Browser(sly, "vera").page("/command?id=traced-1", 400)
    )
    await bus.commands.cancel("traced-1")
    await bus.commands.cancel("traced-2")


async def test_a_letter_shows_cause_payload_attempts_and_others(viewer: Browser) -> None:
    page = await viewer.page("/letters?name=Charge")
    text = page_text(await viewer.page(re.findall(r'href="(/letter\?[^"]*)"', page)[0]))
    assert '"card": "••••••"' in text
    assert "for card ••••••" in text
    assert len(re.findall(r"retried", text)) == 2
    assert "Others that failed so" in text
    mail = page_text(await viewer.page(re.findall(r'href="(/letter\?[^"]*)"', await viewer.page("/letters?name=Mail"))[0]))
    assert '"subject": "••••••"' in mail
    assert '"address": "c.example"' in mail


async def test_pages_of_letters_go_on(troubled: tuple[CommandBus, Shop], viewer: Browser) -> None:
    first = await troubled[0].dead_letters.page(limit=3)
    second = await troubled[0].dead_letters.page(limit=3, cursor=first.cursor)
    assert [len(first.letters), len(second.letters)] == [3, 3]
    assert first.letters[-1].failed_ms >= second.letters[0].failed_ms
    rest = page_text(await viewer.page(f"/letters?cursor={second.cursor}"))
    assert str(second.letters[-1].entity) not in rest
    assert "not the cursor of a page" in page_text(await viewer.page("/letters?cursor=nonsense", 400))


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("charge-1003", "/command?id=charge-1003"),
        ("order:o-1001", "/entity?type=order&id=o-1001"),
        ("o-100", "/entities?q=o-100"),
        ("", "/entities"),
    ],
)
async def test_the_search_leads_to_what_is_named(viewer: Browser, text: str, path: str) -> None:
    answer = await viewer.get("/search", params={"q": text})
    assert (answer.status_code, answer.headers["location"]) == (303, path)


async def test_entities_are_found_by_a_part_of_their_ids(viewer: Browser) -> None:
    rows = (await viewer.page("/entities?q=o-100")).partition("<tbody>")[2].partition("</tbody>")[0]
    assert ("order:o-1001" in rows, "order:o-1002" in rows, "shop:" in rows) == (True, True, False)


async def test_a_filter_finds_what_it_says(viewer: Browser) -> None:
    history = page_text(await viewer.page("/history?name=Mail&status=completed"))
    assert "customer:c-0" in history
    assert "dead lettered" not in history.partition("Attempts")[2]
    assert "No dead letter matches" in page_text(await viewer.page("/letters?reason=expired"))
    assert "since='soon'" in page_text(await viewer.page("/letters?since=soon", 400))


async def test_who_may_only_look_sees_no_acts(viewer: Browser, operator: Browser, admin: Browser) -> None:
    def acts(page: str) -> set[str]:
        return set(re.findall(r"/act\?act=([a-z.]+)", page))

    path = "/entity?type=order&id=o-1001"
    assert acts(await viewer.page(path)) == set()
    operators = {"entity.pause", "entity.drain", "entity.prioritize", "letter.replay", "letter.edit", "letter.discard"}
    assert acts(await operator.page(path)) == operators
    assert acts(await admin.page(path)) == operators | {"entity.purge"}


HOSTILE = '"><script>alert(1)</script>\u202e\n{{7*7}}/../%2e%2e'


@pytest.mark.parametrize(
    "path",
    [
        "/entities?q={}", "/entities?type={}", "/entities?state={}", "/entity?type=order&id={}", "/letters?name={}", "/letters?type={}&id={}",
        "/history?name={}", "/schedules?q={}", "/?state={}", "/search?q={}", "/audit?x={}",
    ],
)  # fmt: skip
async def test_hostile_text_in_an_address_is_text(viewer: Browser, path: str) -> None:
    answer = await viewer.get(path.replace("{}", quote(HOSTILE, safe="")), follow_redirects=True)
    assert answer.status_code in (200, 400, 404)
    assert "<script>" not in answer.text


async def test_165_hostile_text_on_the_bus_is_text(troubled: tuple[CommandBus, Shop], viewer: Browser) -> None:
    bus, _ = troubled
    await bus.entity("account", HOSTILE).pause(HOSTILE)
    await bus.dispatch(Deposit(account_id=HOSTILE, amount=1), command_id=f"id-{HOSTILE}", headers={"x": HOSTILE})
    await bus.dispatch_raw("order", HOSTILE, "Unheard/Of", {HOSTILE: HOSTILE})
    for path in (
        "/",
        "/entities",
        f"/entity?type=account&id={quote(HOSTILE, safe='')}",
        f"/entity?type=order&id={quote(HOSTILE, safe='')}",
        f"/command?id={quote(f'id-{HOSTILE}', safe='')}",
    ):
        page = await viewer.page(path)
        assert "<script>" not in page, path
        assert escape("<script>alert(1)</script>") in page, path
    await bus.entity("account", HOSTILE).resume()
    await bus.entity("order", HOSTILE).purge()


async def test_a_mounted_dashboard_stays_below_its_path(app: Any) -> None:
    browser = Browser(Starlette(routes=[Mount("/ops", app)]), "ada")
    page = await browser.page("/ops/")
    assert {each for each in re.findall(r'(?:href|src|action)="([^"]*)"', page) if not each.startswith(("/ops/", "#"))} == set()
    form = await browser.page("/ops/act?act=entity.resume&type=account&id=mounted")
    done = await browser.post("/ops/act", {**inputs(form), "why": "test"})
    assert (done.status_code, done.headers["location"]) == (303, "/ops/entity?type=account&id=mounted")
    assert "Path=/ops" in done.headers["set-cookie"]
    assert (await browser.get("/ops/static/dashboard.js")).headers["content-type"].startswith("text/javascript")


async def test_a_bus_that_is_not_open_is_opened_by_the_first_request(troubled: tuple[CommandBus, Shop]) -> None:
    bus = CommandBus(troubled[0].url, namespace=troubled[0].settings.namespace, registry=HandlerRegistry())
    browser = Browser(dashboard(bus, users=users_by_header()), "vera")
    assert "order:o-1001" in await browser.page("/")
    await bus.close()


async def test_a_server_that_does_not_answer_is_told_of(troubled: tuple[CommandBus, Shop]) -> None:
    bus = CommandBus("redis://ops:a-password@127.0.0.1:1", registry=HandlerRegistry(), dispatch_timeout=0.1)
    answer = await Browser(dashboard(bus, users=users_by_header()), "vera").get("/")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "The server does not answer" in page_text(answer.text)
    assert "a-password" not in answer.text


async def test_every_answer_tells_the_browser_what_it_must_not_do(viewer: Browser) -> None:
    for path in ("/", "/nothing-here", "/static/dashboard.css", "/static/../app.py"):
        answer = await viewer.get(path)
        assert {name: answer.headers.get(name) for name in HEADERS} == dict(HEADERS)
    assert (await viewer.get("/nothing-here")).status_code == 404
    for path in ("/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static/%2fetc/passwd", "/static//etc/passwd"):
        assert (await viewer.get(path)).status_code == 404, path
    assert "'unsafe" not in HEADERS["Content-Security-Policy"]


@pytest.mark.parametrize(
    "path",
    [
        "/letters?cursor=1-2", "/letters?since=soon", "/entities?cursor=x", "/entities?type=a/b", "/audit?cursor=x", "/history?cursor=1-1",
        "/history?type=a%20b&id=1", "/entity?type=order&id=o&before=x", "/limits?name=%00", "/entity?type=%2A&id=1",
    ],
)  # fmt: skip
async def test_168_what_cannot_be_read_says_what_it_should_be(viewer: Browser, path: str) -> None:
    answer = await viewer.get(path)
    assert answer.status_code in (400, 404), page_text(answer.text)
    assert "Back to overview" in page_text(answer.text)


async def test_168_what_is_too_long_is_refused(viewer: Browser) -> None:
    assert (await viewer.get("/entities", params={"q": "x" * 9000})).status_code == 414
    assert (await viewer.get("/entity?type=order")).status_code == 404
    assert (await viewer.get("/command")).status_code == 404


_COUNTED: ContextVar[bool] = ContextVar("counted", default=False)
"""Whether a request is made for what is counted: workers share the process."""


class Rounds:
    """Lets requests to the server go in step: all that are asked for at a moment leave together, and what follows from them comes later."""

    def __init__(self) -> None:
        self.rounds = self.requests = 0
        self.waiting: list[asyncio.Future[None]] = []
        self.under_way = 0

    def wrapped(self, method: Any) -> Any:
        async def stepped(*args: Any, **options: Any) -> Any:
            if not _COUNTED.get():
                return await method(*args, **options)
            turn = asyncio.get_running_loop().create_future()
            self.waiting.append(turn)
            await turn
            try:
                return await method(*args, **options)
            finally:
                self.under_way -= 1

        return stepped

    async def during(self, work: Coroutine[Any, Any, str]) -> str:
        """Do some work in rounds."""
        _COUNTED.set(True)
        task = asyncio.ensure_future(work)
        while not task.done():
            for _ in range(50):  # what the last round has answered goes as far as it can
                await asyncio.sleep(0)
            if self.under_way or not self.waiting:
                await asyncio.sleep(0.001)
                continue
            going, self.waiting = self.waiting, []
            self.rounds, self.requests, self.under_way = self.rounds + 1, self.requests + len(going), len(going)
            for turn in going:
                turn.set_result(None)
        return await task


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    counting = Rounds()
    monkeypatch.setattr(Pipe, "request", counting.wrapped(Pipe.request))
    return counting


@pytest.mark.parametrize("path", [each for each in READ if each != "/checks"])  # a look is kept for ten seconds
async def test_a_page_waits_for_the_server_five_times_at_most(viewer: Browser, rounds: Rounds, path: str) -> None:
    await rounds.during(viewer.page(path))
    assert 1 <= rounds.rounds <= MOST_ROUNDS, (rounds.rounds, rounds.requests)


async def test_what_was_not_looked_at_is_not_said_to_be_nothing(
    troubled: tuple[CommandBus, Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, _ = troubled
    for number in range(120):
        await bus.dispatch(Deposit(account_id=f"delayed-{number}", amount=1), delay=60, command_id=f"behind-{number}")
    browser = Browser(dashboard(bus, users=users_by_header()), "vera")
    text = page_text(await browser.page("/?state=retrying"))
    assert "parcel:p-88" in text
    assert "at least" not in text
    monkeypatch.setattr(views, "_FIRST", 10)
    monkeypatch.setattr(views, "_MOST", 20)
    monkeypatch.setattr(entities, "_LIMIT", 10)
    monkeypatch.setattr(entities, "_IN_A_STATE", 10)
    browser = Browser(dashboard(bus, users=users_by_header()), "vera")
    text = page_text(await browser.page("/?state=retrying"))
    assert "at least ≥ 0 retrying" in text
    assert "Nothing of what was looked at is retrying. There is more." in text
    assert "No entity with work was found among those that were looked at." in page_text(
        await browser.page("/entities?state=retrying")
    )
    for number in range(120):
        await bus.commands.cancel(f"behind-{number}")


async def test_a_masked_value_of_several_lines_is_masked_where_an_error_has_one(
    troubled: tuple[CommandBus, Shop], viewer: Browser
) -> None:
    bus, _ = troubled
    await bus.dispatch(Charge(order_id="o-lines", cents=1, card="422\n4333 1111"))

    async def is_parked() -> bool:
        return bool((await bus.dead_letters.page(entity_id="o-lines")).letters)

    await until(is_parked)
    for path in ("/?state=parked", "/letters?id=o-lines", "/entity?type=order&id=o-lines"):
        page = await viewer.page(path)
        assert "o-lines" in page
        assert not re.search("card 422|4333 1111", page), path
    await bus.dead_letters.purge(entity_id="o-lines")


async def test_an_edit_that_moves_a_mask_is_shown_again(troubled: tuple[CommandBus, Shop], operator: Browser) -> None:
    page = await operator.page("/letters?name=Charge")
    letter = re.findall(r"/letter\?id=([0-9-]+)", page)[0]
    form = inputs(await operator.page(f"/act?act=letter.edit&id={letter}"))
    moved = json.dumps({**json.loads(form["payload"]), "shop": "••••••"})
    refused = await operator.post("/act", {**form, "why": "test", "payload": moved})
    assert refused.status_code == 400
    assert "shop has ••••••, which stands for a masked value, but not in its place" in page_text(refused.text)
    assert inputs(refused.text)["payload"] == moved


async def test_a_filter_of_schedules_says_what_it_did_not_read(
    troubled: tuple[CommandBus, Shop], viewer: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "No schedule matches." in page_text(await viewer.page("/schedules?q=nothing"))
    assert "1 match " in page_text(await viewer.page("/schedules?q=nightly"))
    monkeypatch.setattr(fleet, "_MOST_SCHEDULES", 1)
    browser = Browser(dashboard(troubled[0], users=users_by_header()), "vera")
    text = page_text(await browser.page("/schedules?q=nothing"))
    assert "No schedule matches of the first 1 that were read. There are more" in text
    assert "0 match, of 1 that were read; there are more" in text


async def test_the_checks_are_those_of_doctor(troubled: tuple[CommandBus, Shop], viewer: Browser) -> None:
    bus, _ = troubled
    for number in range(12):
        await bus.dispatch(Ship(parcel=f"storm-{number}"))
    await until(lambda: _are_retrying(bus, 12))
    page = await viewer.page("/checks")
    text = page_text(page)
    for found in ("retry storm", "unknown commands", "parked", " entities: ConnectionError"):
        assert found in text, (found, text)
    assert 'href="/?state=retrying"' in page
    assert "the carrier is closed" not in text, "what an error says may have a masked value in it"


async def _are_retrying(bus: CommandBus, number: int) -> bool:
    page = await bus.entities.list(states={"retrying"})
    return sum(each.name.startswith("parcel:storm") and each.failure is not None for each in page.entities) >= number
