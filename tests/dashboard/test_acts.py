"""Acts: from the page on which they are asked for to the bus and the audit log."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from command_bus import AuditEntry, CommandBus
from command_bus.dashboard import visit
from command_bus.dashboard.acts.asking import ACTS
from command_bus.dashboard.pages import commands
from tests.dashboard.conftest import ROLES, Browser, inputs, page_text
from tests.dashboard.troubled_shop import Charge, Checkout, Deposit, Mail, Shop, until

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="module")]

Place = tuple[CommandBus, Shop]


async def letter_of(browser: Browser, query: str) -> str:
    found = re.findall(r"/letter\?id=([0-9-]+)", await browser.page(f"/letters?{query}"))
    return str(found[0])


async def test_the_parked_entity_is_found_read_edited_and_flows(troubled: Place, operator: Browser) -> None:
    bus, shop = troubled
    first = await operator.page("/?state=parked")
    assert "the card reader of Lisbon does not answer" in page_text(first)
    path = next(each for each in re.findall(r'href="(/entity\?[^"]*)"', first) if "o-1001" in each).replace("&amp;", "&")
    letter = re.findall(r"letter.edit&amp;id=([0-9-]+)", await operator.page(path))[0]
    form = inputs(await operator.page(f"/act?act=letter.edit&id={letter}"))
    payload = json.loads(form["payload"])
    assert payload == {"order_id": "o-1001", "cents": 1999, "card": "••••••", "shop": "Lisbon"}
    done = await operator.post(
        "/act", {**form, "why": "the reader of Porto works", "payload": json.dumps({**payload, "shop": "Porto"})}
    )
    assert (done.status_code, done.headers["location"]) == (303, path)

    async def flowed() -> bool:
        return shop.charged[-2:] == ["o-1001:1999", "o-1001:500"]

    await until(flowed)
    end = await bus.history.get("charge-1001")
    assert end is not None
    assert end.status == "completed"
    assert "parked" not in page_text(await operator.page(path)).partition("Line")[0]


async def test_169_an_edit_that_does_not_fit_is_shown_again(operator: Browser) -> None:
    letter = await letter_of(operator, "name=Charge")
    form = inputs(await operator.page(f"/act?act=letter.edit&id={letter}"))
    wrong = json.dumps({**json.loads(form["payload"]), "cents": -1})
    refused = await operator.post("/act", {**form, "why": "test", "payload": wrong})
    assert refused.status_code == 400
    assert "cents" in page_text(refused.text)
    assert inputs(refused.text)["payload"] == wrong
    other = await operator.post("/act", {**form, "why": "test", "payload": "{"})
    assert "the payload is not JSON" in page_text(other.text)
    moved = {**json.loads(form["payload"]), "order_id": "other"}
    assert "a replay moves no command" in page_text(
        (await operator.post("/act", {**form, "why": "t", "payload": json.dumps(moved)})).text
    )


async def test_letters_are_replayed_in_bulk_after_a_dry_run(troubled: Place, admin: Browser) -> None:
    bus, _ = troubled
    before = (await bus.stats()).dead_letters
    page = await admin.page("/act?act=letters.replay&name=Mail")
    assert "8 dead letters run again" in page_text(page)
    assert "Mail, failed 8" in page_text(page)
    form = inputs(page)
    await bus.dispatch(Mail(customer="late", address="nowhere", subject="s"))
    await until(lambda: _letters(bus, before + 1))
    done = await admin.post("/act", {**form, "why": "the addresses are mended"})
    assert done.status_code == 303
    await until(lambda: _letters(bus, before + 1))
    names = [each.headers.get("edited_letter") async for each in bus.dead_letters.list(name="Mail", entity_id="late")]
    assert len(names) == 1, "what came after the dry run was left alone"
    entry = (await bus.audit.page()).entries[0]
    assert (entry.who, entry.outcome, entry.why) == ("ada", "8 dead letters replayed", "the addresses are mended")


async def _letters(bus: CommandBus, number: int) -> bool:
    return (await bus.stats()).dead_letters == number and not await bus.entity("customer", "c-1").depth()


async def test_what_is_deleted_in_bulk_must_be_counted_aloud(troubled: Place, admin: Browser) -> None:
    bus, _ = troubled
    page = await admin.page("/act?act=letters.discard&name=Mail&id=late")
    assert "Type 1 to confirm" in page_text(page)
    refused = await admin.post("/act", {**inputs(page), "why": "test"})
    assert (refused.status_code, "Type 1 to confirm" in page_text(refused.text)) == (422, True)
    assert (await admin.post("/act", {**inputs(page), "why": "test", "typed": "1"})).status_code == 303
    assert not [each async for each in bus.dead_letters.list(name="Mail", entity_id="late")]
    assert "No dead letter matches" in page_text(await admin.page("/act?act=letters.discard&name=Nothing"))


async def test_an_entity_is_paused_resumed_drained_and_purged(troubled: Place, admin: Browser) -> None:
    bus, _ = troubled
    entity = bus.entity("account", "z-1")
    fields = {"type": "account", "id": "z-1"}
    assert (await admin.do("entity.pause", "a dispute", **fields, minutes="60")).status_code == 303
    for amount in range(3):
        await bus.dispatch(Deposit(account_id="z-1", amount=amount))
    hold = (await entity.show()).entity.hold
    assert hold is not None
    assert (hold.reason, hold.until_ms is not None) == ("a dispute (ada)", True)
    asked = page_text(await admin.page("/act?act=entity.purge&type=account&id=z-1"))
    assert "Of its 3 commands all that wait are removed" in asked
    assert (await admin.do("entity.purge", **fields, typed="3")).status_code == 303
    assert await entity.depth() == 0
    await admin.do("entity.resume", **fields)
    await admin.do("entity.drain", **fields)
    assert (await entity.show()).entity.hold.mode == "draining"  # type: ignore[union-attr]
    await admin.do("entity.resume", **fields)
    assert (await entity.show()).entity.hold is None


async def test_what_waits_for_an_entity_gets_another_priority(troubled: Place, operator: Browser) -> None:
    bus, _ = troubled
    fields = {"type": "account", "id": "z-10"}
    assert (await operator.do("entity.prioritize", **fields, priority="low")).status_code == 303
    assert (await bus.audit.page()).entries[0].outcome == "account:z-10: nothing waits, nothing is changed"
    await bus.entity("account", "z-10").pause("for now")
    await bus.dispatch(Deposit(account_id="z-10", amount=1))
    assert "act=entity.prioritize" in await operator.page("/entity?type=account&id=z-10")
    asked = page_text(await operator.page("/act?act=entity.prioritize&type=account&id=z-10"))
    assert "All that waits in its line now, of 1 command, gets this priority" in asked
    assert (await operator.do("entity.prioritize", **fields, priority="urgent")).status_code == 400
    assert (await operator.do("entity.prioritize", "the customer waits", **fields, priority="high")).status_code == 303
    after, before = (await bus.audit.page()).entries[:2]
    assert (after.who, after.outcome) == ("otto", "account:z-10: what waits has its new priority")
    assert (before.why, before.details) == ("the customer waits", "1 held, high")
    assert await bus.entity("account", "z-10").purge() == 1
    await bus.entity("account", "z-10").resume()


async def test_a_type_is_paused_once_its_name_was_typed(troubled: Place, admin: Browser) -> None:
    bus, _ = troubled
    assert (await admin.do("many.pause", type="parcel")).status_code == 422
    assert (await admin.do("many.pause", "the carrier is down", type="parcel", typed="parcel")).status_code == 303
    assert "Everything of type parcel was paused: the carrier is down (ada)" in page_text(await admin.page("/"))
    await admin.do("many.resume", type="parcel", typed="parcel")
    assert await bus.entities.holds() == []


async def test_a_command_is_cancelled_and_a_delayed_one_promoted(troubled: Place, operator: Browser) -> None:
    bus, _ = troubled
    await bus.dispatch(Deposit(account_id="z-2", amount=1), delay=3600, command_id="soon-1")
    assert (await operator.do("command.promote", id="soon-1")).status_code == 303
    await until(lambda: _settled(bus, "soon-1"))
    await bus.dispatch(Deposit(account_id="z-2", amount=1), delay=3600, command_id="soon-2")
    await operator.do("command.cancel", "not wanted", id="soon-2")
    assert (await bus.commands.status("soon-2")).outcome == "cancelled"
    assert "It has ended already" in page_text(await operator.page("/act?act=command.cancel&id=soon-2"))
    report = await operator.do("entity.abort", "it hangs", type="shop", id="s-0")
    assert report.status_code == 303


async def _settled(bus: CommandBus, command_id: str) -> bool:
    return (await bus.commands.status(command_id)).state == "settled"


async def test_schedules_are_paused_resumed_fired_and_removed(troubled: Place, admin: Browser) -> None:
    bus, _ = troubled
    await admin.do("schedule.resume", name="warm-cache")
    assert (await bus.schedules.get("warm-cache")).state == "active"
    await admin.do("schedule.trigger", name="warm-cache")
    await admin.do("schedule.pause", "the cache is full", name="warm-cache")
    assert (await bus.schedules.get("warm-cache")).reason == "the cache is full (ada)"
    assert (await admin.do("schedule.remove", name="warm-cache", typed="warm-cache")).headers["location"] == "/schedules"
    assert "there is no schedule" in page_text(await admin.page("/schedules?name=warm-cache", 404))


async def test_limits_shares_and_events_are_changed(troubled: Place, admin: Browser) -> None:
    bus, _ = troubled
    await admin.do("limit.put", name="partner", rate="50", per="1", concurrency="3")
    (limit,) = await bus.limits.list()
    assert (limit.rate, limit.concurrency) == (50.0, 3)
    refused = await admin.do("limit.put", name="partner", rate="many", concurrency="")
    assert "rate='many': a number" in page_text(refused.text)
    await admin.do("limit.remove", name="partner")
    await admin.do("share.put", tenant="acme", weight="3")
    assert {each.tenant: each.weight for each in await bus.fairness.list()}["acme"] == 3.0
    await admin.do("events.unwatch", type="parcel")
    await admin.do("events.watch", type="parcel")
    assert "parcel" in await bus.events.watched()


async def test_167_an_act_without_a_reason_is_not_done(troubled: Place, operator: Browser) -> None:
    refused = await operator.do("entity.pause", "   ", type="account", id="z-3")
    assert (refused.status_code, "Give a reason" in page_text(refused.text)) == (422, True)
    assert (await troubled[0].entity("account", "z-3").show()).entity.hold is None


@pytest.mark.parametrize("act", sorted(ACTS))
async def test_each_act_needs_its_role(app: object, act: str) -> None:
    for name, role in ROLES.items():
        browser = Browser(app, name)
        answer = await browser.get(f"/act?act={act}")
        posted = await browser.post("/act", {"act": act, "why": "test"})
        if ("viewer", "operator", "admin").index(role) < ("viewer", "operator", "admin").index(ACTS[act].role):
            assert (answer.status_code, posted.status_code) == (403, 403), name
        else:
            assert answer.status_code != 403, name
            assert "the form is too old" in page_text(posted.text)


async def test_163_a_form_of_another_site_or_user_or_none_is_refused(
    troubled: Place, app: object, operator: Browser, admin: Browser
) -> None:
    form = {**inputs(await operator.page("/act?act=entity.pause&type=account&id=z-4")), "why": "test"}
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://ops.example.evil.example"},
    ):
        assert (await operator.post("/act", form, **headers)).status_code == 403, headers
    async with operator.client() as client:
        assert (await client.post("/act", data=form)).status_code == 403, "without Origin"
    assert (await admin.post("/act", form)).status_code == 403, "the token of somebody else"
    assert (await operator.post("/act", {**form, "csrf": form["csrf"][:-2] + "xx"})).status_code == 403
    assert (await operator.post("/act", {key: value for key, value in form.items() if key != "csrf"})).status_code == 403
    assert (await troubled[0].entity("account", "z-4").show()).entity.hold is None
    assert (await operator.post("/act", form)).status_code == 303


async def test_166_bodies_are_forms_of_a_bounded_size(operator: Browser) -> None:
    assert (await operator.post("/act", {"act": "entity.pause", "why": "x" * (3 << 20)})).status_code == 413
    async with operator.client() as client:
        headers = {"Origin": operator.base}
        assert (
            await client.post("/act", content=b"{}", headers={**headers, "Content-Type": "application/json"})
        ).status_code == 415
        plain = {**headers, "Content-Type": "application/x-www-form-urlencoded"}
        assert (await client.post("/act", content=b"act=%ff%fe&x=\xff", headers=plain)).status_code in (400, 404)
        assert (
            await client.post("/act", content=b"&".join(b"a%d=1" % number for number in range(500)), headers=plain)
        ).status_code == 400


async def test_166_a_form_that_comes_too_slowly_is_given_up(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visit, "_WITHIN", 0.02)
    told_status: list[int] = []

    async def receive() -> dict[str, Any]:
        if not told_status:
            told_status.append(0)
            return {"type": "http.request", "body": b"act=", "more_body": True}
        await asyncio.sleep(30)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            told_status.append(message["status"])

    headers = [
        (b"host", b"ops.example"),
        (b"origin", b"http://ops.example"),
        (b"x-user", b"otto"),
        (b"content-type", b"application/x-www-form-urlencoded"),
    ]
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "path": "/act", "raw_path": b"/act", "root_path": "", "scheme": "http",
        "query_string": b"", "headers": headers, "client": ("10.1.1.1", 1), "server": ("ops.example", 80),
    }  # fmt: skip
    await app(scope, receive, send)
    assert told_status[-1] == 408


async def test_the_audit_log_has_who_what_when_and_why(troubled: Place, operator: Browser, viewer: Browser) -> None:
    why = "<b>loud</b>\nbecause"
    await operator.do("entity.pause", why, type="account", id="z-5")
    entries = (await troubled[0].audit.page(limit=2)).entries
    assert [(each.who, each.act, each.target, each.why) for each in entries] == [
        ("otto", "Pause", "account:z-5", "<b>loud</b> because")
    ] * 2
    assert (entries[0].outcome, entries[0].ref, entries[1].outcome) == ("account:z-5 is paused", entries[1].id, "")
    page = await viewer.page("/audit")
    assert "&lt;b&gt;loud" in page
    assert page_text(page).count("account:z-5 is paused") == 1


async def test_a_refused_act_is_in_the_log_too(troubled: Place, operator: Browser) -> None:
    letter = await letter_of(operator, "name=Charge")
    form = inputs(await operator.page(f"/act?act=letter.discard&id={letter}"))
    first, second = await operator.post("/act", {**form, "why": "one"}), await operator.post("/act", {**form, "why": "two"})
    assert (first.status_code, second.status_code) == (303, 404)
    assert "there is no dead letter" in page_text(second.text)
    assert Charge.__name__ == "Charge"


async def test_what_was_done_is_said_once(operator: Browser) -> None:
    async with operator.client() as client:
        form = inputs((await client.get("/act?act=entity.resume&type=account&id=z-6")).text)
        done = await client.post("/act", data={**form, "why": "test"}, headers={"Origin": operator.base})
        assert "HttpOnly" in done.headers["set-cookie"]
        once = await client.get(done.headers["location"])
        assert "account:z-6 was neither paused nor drained." in page_text(once.text)
        again = await client.get(done.headers["location"])
        assert "was neither paused nor drained." not in page_text(again.text)


async def _last(bus: CommandBus) -> AuditEntry:
    return (await bus.audit.page(limit=1)).entries[0]


async def test_the_audit_log_has_what_was_put(troubled: Place, admin: Browser) -> None:
    bus, _ = troubled
    await admin.do("limit.put", name="logged", rate="50", per="2", concurrency="3")
    assert (await _last(bus)).details == "50 per 2 s, 3 at a time; new"
    await admin.do("limit.put", name="logged", rate="", per="", concurrency="4")
    assert (await _last(bus)).details == "4 at a time; before: 50 per 2 s, 3 at a time"
    await admin.do("limit.remove", name="logged")
    await admin.do("share.put", tenant="umbra", weight="2.5")
    assert (await _last(bus)).details == "weight 2.5"
    await admin.do("entity.pause", type="account", id="z-9", minutes="60")
    assert (await _last(bus)).details == "0 held, for an hour"
    await admin.do("entity.resume", type="account", id="z-9")
    page = page_text(await admin.page("/audit"))
    assert "account:z-9 0 held, for an hour" in page
    assert "limit logged 4 at a time; before: 50 per 2 s, 3 at a time" in page


async def test_the_audit_log_has_the_fields_that_were_edited_and_no_value(troubled: Place, operator: Browser) -> None:
    bus, _ = troubled
    await bus.dispatch(Charge(order_id="o-edited", cents=77, card="4999"))
    await until(lambda: _is_dead(bus, "o-edited"))
    letter = await letter_of(operator, "id=o-edited")
    form = inputs(await operator.page(f"/act?act=letter.edit&id={letter}"))
    payload = {**json.loads(form["payload"]), "cents": 78, "shop": "Porto"}
    assert (await operator.post("/act", {**form, "why": "test", "payload": json.dumps(payload)})).status_code == 303
    assert (await _last(bus)).details == "edited: cents, shop"


async def _is_dead(bus: CommandBus, order: str) -> bool:
    return bool((await bus.dead_letters.page(entity_id=order)).letters)


async def test_an_act_whose_end_is_on_the_page_before_is_no_open_one(
    troubled: Place, admin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, _ = troubled
    await bus.audit.write("ada", "Pause", "never ended", "test")
    first = await bus.audit.write("ada", "Purge", "long ended", "test")
    await admin.do("entity.resume", type="account", id="z-9")
    await bus.audit.write("ada", "Purge", "long ended", "test", outcome="9 removed", ref=first)
    monkeypatch.setattr(commands, "_AUDIT_LIMIT", 2)
    pages, path = list[str](), "/audit"
    while len(pages) < 4:
        page = await admin.page(path)
        pages.append(page_text(page))
        path = re.findall(r'rel="next" href="([^"]*)"', page)[0].replace("&amp;", "&")
    text = " ".join(pages)
    assert (text.count("long ended"), text.count("9 removed")) == (1, 1)
    assert "never ended test begun, and its end is not known" in text


async def test_what_is_being_undone_is_not_cancelled(troubled: Place, operator: Browser) -> None:
    bus, _ = troubled
    await bus.dispatch(Checkout(basket="b-undo", total=-1), command_id="undone-1")

    async def is_undone() -> bool:
        return (await bus.commands.status("undone-1")).state == "compensating"

    await until(is_undone)
    assert "command.cancel" not in await operator.page("/command?id=undone-1")
    assert "what it did is being undone" in page_text(await operator.page("/act?act=command.cancel&id=undone-1"))
