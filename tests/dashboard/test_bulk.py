"""Acts on many dead letters: which they choose, and what they tell when not all goes well."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from html import unescape

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from command_bus import CommandBus, NewerState, TransportUnavailable
from command_bus.admin import letter_pages
from command_bus.admin.dead_letters import DeadLetters
from command_bus.dashboard import dashboard
from command_bus.dashboard.acts import commands, letters
from command_bus.embedded import EmbeddedServer
from tests.dashboard.conftest import Browser, inputs, page_text, users_by_header
from tests.dashboard.troubled_shop import Charge, Deposit, Mail, open_shop, until

pytestmark = [pytest.mark.server, pytest.mark.asyncio]
MANY = 30


@pytest_asyncio.fixture
async def bus(shop_server: EmbeddedServer, request: pytest.FixtureRequest) -> AsyncGenerator[CommandBus]:
    """Yield a bus with thirty dead letters of mails."""
    async with open_shop(shop_server.url, request.node.name[:60]) as (bus, _):
        for number in range(MANY):
            await bus.dispatch(Mail(customer=f"c-{number:02}", address="nowhere", subject="s"))
        await until(lambda: _letters(bus, MANY))
        yield bus


@pytest.fixture
def admin(bus: CommandBus) -> Browser:
    return Browser(dashboard(bus, users=users_by_header(), secret="x" * 32))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a look at dead letters see eight of them, two at a time."""
    monkeypatch.setattr(letter_pages, "_SIZES", (2,))
    monkeypatch.setattr(letters, "_PAGES", 4)


async def _letters(bus: CommandBus, number: int) -> bool:
    return (await bus.stats()).dead_letters == number


async def _left(bus: CommandBus) -> list[str]:
    return [str(each.entity_id) async for each in bus.dead_letters.list()]


async def test_many_are_changed_part_by_part_until_somebody_stops(
    bus: CommandBus, admin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "MOST_AT_ONCE", 10)
    form = inputs(page := await admin.page("/act?act=letters.discard"))
    assert "They are changed 10 at a time, the oldest first. You can stop in between." in page_text(page)
    part = await admin.post("/act", {**form, "why": "test", "typed": "30"})
    assert "10 of 30" in page_text(part.text)
    assert await _left(bus) == [f"c-{number:02}" for number in range(10, MANY)]
    await bus.dispatch(Mail(customer="late", address="nowhere", subject="s"))
    await until(lambda: _letters(bus, MANY - 9))
    part = await admin.post("/act", inputs(part.text))
    assert "20 of 30" in page_text(part.text)
    assert (await admin.post("/act", inputs(part.text))).status_code == 303
    assert await _left(bus) == ["late"]
    outcomes = [each.outcome for each in (await bus.audit.page()).acts()]
    assert outcomes == [
        "30 dead letters discarded",
        "20 dead letters discarded; the rest follows",
        "10 dead letters discarded; the rest follows",
    ]


async def test_parts_go_on_behind_what_was_refused(bus: CommandBus, admin: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters, "MOST_AT_ONCE", 10)
    discard = DeadLetters.discard

    async def refuses_most(self: DeadLetters, letter_id: str) -> None:
        if (await self.get(letter_id)).entity_id != "c-29":
            raise NewerState("not this one")
        await discard(self, letter_id)

    monkeypatch.setattr(DeadLetters, "discard", refuses_most)
    part = await admin.post("/act", {**inputs(await admin.page("/act?act=letters.discard")), "why": "test", "typed": "30"})
    for _ in range(2):
        part = await admin.post("/act", inputs(part.text))
    assert part.status_code == 303
    assert "c-29" not in await _left(bus)


async def test_letters_are_picked_one_by_one(bus: CommandBus, admin: Browser) -> None:
    page = await admin.page("/letters")
    boxes = re.findall(r'name="picked" value="([^"]+)"', page)
    assert len(boxes) == MANY
    asked = await admin.post("/act", [*_hidden(page), ("act", "letters.discard"), *(("picked", each) for each in boxes[:3])])
    assert "3 dead letters are deleted" in page_text(asked.text)
    assert (await admin.post("/act", {**inputs(asked.text), "why": "test", "typed": "3"})).status_code == 303
    assert await _left(bus) == [f"c-{number:02}" for number in range(MANY - 3)]
    nothing = await admin.post("/act", [*_hidden(page), ("act", "letters.discard"), ("picked", boxes[0])])
    assert "No dead letter matches." in page_text(nothing.text)


async def test_commands_are_found_and_cancelled(bus: CommandBus, admin: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(200):
        await bus.dispatch(Deposit(account_id=f"x-{number}", amount=number % 4), delay=600)
    page = await admin.page("/commands?field=amount&value=3&state=delayed")
    assert "50 shown of" in page_text(page)
    boxes = re.findall(r'name="picked" value="([^"]+)"', page)
    asked = await admin.post(
        "/act", [*_hidden(page), ("act", "commands.pick"), *(("picked", unescape(each)) for each in boxes[:2])]
    )
    assert "2 commands are taken out of line" in page_text(asked.text)
    assert (await admin.post("/act", {**inputs(asked.text), "why": "twice"})).status_code == 303
    assert (await bus.audit.page()).entries[0].outcome == "2 commands are cancelled"
    monkeypatch.setattr(commands, "_SECONDS", 0.0)
    asked_all = await admin.page("/act?act=commands.cancel&field=amount&value=3")
    assert "Deposit, delayed 48" in page_text(asked_all)
    answer = await admin.post("/act", {**inputs(asked_all), "why": "no threes", "typed": "48"})
    while answer.status_code == 200:
        answer = await admin.post("/act", inputs(answer.text))
    assert answer.status_code == 303
    assert (await bus.stats()).delayed == 150
    assert "No command matches" in page_text(await admin.page("/act?act=commands.cancel&field=amount&value=3"))


async def test_nothing_is_sought_by_a_field_that_is_masked(bus: CommandBus) -> None:
    viewer = Browser(dashboard(bus, users=users_by_header(), mask=["card", "Mail.subject"], secret="x" * 32))
    for field in ("card", "subject", "Card"):
        answer = await viewer.get("/commands", params={"field": field, "value": "4111"})
        assert (answer.status_code, "is masked here" in page_text(answer.text)) == (400, True)
    for wrong in ("state=parked", "older=soon", "type=a+b"):
        assert (await viewer.get(f"/commands?{wrong}")).status_code == 400


def _hidden(page: str) -> list[tuple[str, str]]:
    """Return the hidden fields of the form around a table."""
    form = page.rpartition("<table")[0].rpartition("<form")[2]
    return re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', form)


async def test_what_was_not_looked_at_is_told(bus: CommandBus, admin: Browser, short: None) -> None:
    page = await admin.page("/act?act=letters.replay&id=c-01")
    assert "None matches. Only 8 were looked at, the newest first, back to " in page_text(page)
    assert "No dead letter matches" not in page_text(page)
    pages = 1
    while "1 dead letters run again" not in page_text(page):
        page = await admin.page(re.findall(r'rel="next" href="([^"]*)"', page)[0].replace("&amp;", "&"))
        pages += 1
    assert pages == 4
    some = page_text(await admin.page("/act?act=letters.replay"))
    assert "8 dead letters run again" in some
    assert "Only 8 were looked at, the newest first" in some
    assert "No dead letter matches." in page_text(
        await admin.page(
            "/act?act=letters.replay&name=Nothing&since=" + (datetime.now(UTC) + timedelta(hours=3)).strftime("%Y-%m-%dT%H:%M")
        )
    )


async def test_only_what_was_counted_is_changed(bus: CommandBus, admin: Browser, short: None) -> None:
    """What comes after the dry run moves the bound of what is looked at."""
    form = inputs(await admin.page("/act?act=letters.discard"))
    for number in range(4):
        await bus.dispatch(Mail(customer=f"late-{number}", address="nowhere", subject="s"))
    await until(lambda: _letters(bus, MANY + 4))
    for number in range(22, 26):
        await bus.dead_letters.purge(entity_id=f"c-{number}")
    assert (await admin.post("/act", {**form, "why": "test", "typed": "4"})).status_code == 303
    left = await _left(bus)
    assert left == [*(f"c-{number:02}" for number in range(22)), *(f"late-{number}" for number in range(4))]


async def test_a_time_is_sought(bus: CommandBus, admin: Browser, short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters, "_SLACK_MS", 0)
    (early,) = [each async for each in bus.dead_letters.list(entity_id="c-05")]
    until_text = datetime.fromtimestamp(early.failed_ms / 1000, UTC).isoformat()
    page = await admin.get("/act", params={"act": "letters.replay", "until": until_text, "id": "c-01"})
    assert "1 dead letters run again" in page_text(page.text)


async def _break(bus: CommandBus) -> None:
    """Park two orders, and write records of them that only a later release knows: their letters are refused."""
    for order in ("o-1", "o-2"):
        await bus.dispatch(Charge(order_id=order, cents=1, card="4111"))
    await until(lambda: _letters(bus, MANY + 2))
    async with Redis.from_url(bus.url) as client:
        for order in ("o-1", "o-2"):
            key = f"{{{bus.settings.namespace}:0}}:active"
            await client.hset(key, f"order:{order}", "y||||1|1000||until=5")


async def test_a_letter_that_is_refused_holds_up_no_other(bus: CommandBus, admin: Browser) -> None:
    await _break(bus)
    assert (await admin.do("letters.replay", "the addresses are mended")).status_code == 303
    outcome = (await bus.audit.page()).entries[0].outcome
    assert outcome.startswith("30 dead letters replayed; 2 were refused, the first, 0-")
    assert "only a later release of command_bus knows" in outcome


async def test_an_act_that_stops_tells_what_it_did(bus: CommandBus, admin: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    replay, done = DeadLetters.replay, 0

    async def fails_at_last(self: DeadLetters, letter_id: str) -> str:
        nonlocal done
        done += 1
        if done > 7:
            raise TransportUnavailable("the server went away", outcome_unknown=True)
        return await replay(self, letter_id)

    monkeypatch.setattr(DeadLetters, "replay", fails_at_last)
    assert (await admin.do("letters.replay", "the addresses are mended")).status_code == 303
    entry = (await bus.audit.page()).entries[0]
    assert entry.outcome == "7 dead letters replayed, then stopped (of one it is not known): the server went away"


async def test_the_bus_tells_how_many_were_replayed_or_discarded_before(bus: CommandBus) -> None:
    await _break(bus)
    with pytest.raises(NewerState) as refused:
        await bus.dead_letters.purge()
    assert "after 30 were discarded: order:o-" in refused.value.message
    with pytest.raises(NewerState) as again:
        await bus.dead_letters.replay_all()
    assert "after 0 were replayed: order:o-" in again.value.message


async def test_odd_ids_go_through_the_boxes_and_odd_numbers_break_nothing(bus: CommandBus, admin: Browser) -> None:
    ids = ["a b&c=d%20", '"quoted" <b>', "é/: ?#", "x" * 200]
    for number, each in enumerate(ids):
        await bus.dispatch(Deposit(account_id=f"{each[:60]}{number}", amount=77), delay=600, command_id=each)
    page = await admin.page("/commands?field=amount&value=77")
    boxes = [unescape(each) for each in re.findall(r'name="picked" value="([^"]+)"', page)]
    asked = await admin.post(
        "/act", [*_hidden(page), ("act", "commands.pick"), *(("picked", each) for each in [*boxes, "id=", "", "%"])]
    )
    done = await admin.post("/act", {**inputs(asked.text), "why": "odd", "total": "9" * 5000, "done": "²"})
    assert done.status_code == 303
    assert (await bus.audit.page()).entries[0].outcome.startswith("4 commands are cancelled; ")
    assert not [each async for each in bus.commands.select(where={"amount": 77})]
    assert "No command was picked." in page_text(await admin.page("/act?act=commands.pick"))


async def test_a_masked_value_inside_of_a_field_is_not_sought(bus: CommandBus) -> None:
    viewer = Browser(dashboard(bus, users=users_by_header(), mask=["card"], secret="x" * 32))
    answer = await viewer.get("/commands", params={"field": "payment", "value": ' {"card": "4111"}'})
    assert answer.status_code == 400


async def test_commands_that_come_after_the_count_are_left_alone(
    bus: CommandBus, admin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bus.entities.of("account").pause()
    await bus.dispatch_batch([Deposit(account_id=f"x-{number}", amount=5) for number in range(300)])
    monkeypatch.setattr(commands, "_SECONDS", 0.0)
    form = inputs(await admin.page("/act?act=commands.cancel&field=amount&value=5"))
    await asyncio.sleep(0.01)
    answer = await admin.post("/act", {**form, "why": "no fives", "typed": "300"})
    for number in range(100):
        await bus.dispatch(Deposit(account_id=f"late-{number}", amount=5))
        if answer.status_code != 200:
            break
        answer = await admin.post("/act", inputs(answer.text))
    assert answer.status_code == 303
    assert (await bus.audit.page()).entries[0].outcome == "300 commands are cancelled"
    left = [each.entity_id or "" async for each in bus.commands.select(where={"amount": 5})]
    assert left
    assert all(each.startswith("late-") for each in left)


async def test_a_number_in_an_address_is_not_what_was_counted(bus: CommandBus, admin: Browser) -> None:
    for number in range(3):
        await bus.dispatch(Deposit(account_id=f"x-{number}", amount=5), delay=600)
    page = await admin.page("/act?act=commands.cancel&field=amount&value=5&asked=9999999999999-1&done=1")
    assert "3 commands are taken out of line" in page_text(page)


async def test_values_of_filters_are_not_in_the_audit_log(bus: CommandBus, admin: Browser) -> None:
    await bus.dispatch(Deposit(account_id="x", amount=4111), delay=600)
    form = inputs(page := await admin.page("/act?act=commands.cancel&field=amount&value=4111"))
    assert "The field amount has the value 4111." in page_text(page)
    assert (await admin.post("/act", {**form, "why": "wrong", "typed": "1"})).status_code == 303
    assert "4111" not in str((await bus.audit.page()).entries)


async def test_a_picked_command_that_is_refused_holds_up_no_other(bus: CommandBus, admin: Browser) -> None:
    await bus.dispatch(Deposit(account_id="x", amount=1), delay=600, command_id="fine")
    page = await admin.page("/commands?state=delayed")
    boxes = ["id=odd&type=a+b&entity=1", *map(unescape, re.findall(r'name="picked" value="([^"]+)"', page))]
    asked = await admin.post("/act", [*_hidden(page), ("act", "commands.pick"), *(("picked", each) for each in boxes)])
    assert (await admin.post("/act", {**inputs(asked.text), "why": "w"})).status_code == 303
    assert (await bus.audit.page()).entries[0].outcome.startswith("1 commands are cancelled; 1 are not")


async def test_a_form_says_nothing_of_parts_that_were_not(bus: CommandBus, admin: Browser) -> None:
    form = inputs(await admin.page("/act?act=letters.discard&id=c-01"))
    forged = {**form, "why": "test", "done": "500", "total": "900", "said": "all is well"}
    refused = await admin.post("/act", forged)
    assert (refused.status_code, "Type 1 to confirm" in page_text(refused.text)) == (422, True)
    assert (await admin.post("/act", {**forged, "typed": "1"})).status_code == 303
    assert (await bus.audit.page()).entries[0].outcome == "1 dead letters discarded"


async def test_part_of_another_user_or_act_does_not_count(
    bus: CommandBus, admin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "MOST_AT_ONCE", 10)
    asked = inputs(await admin.page("/act?act=letters.replay"))
    part = inputs((await admin.post("/act", {**asked, "why": "test"})).text)["part"]
    other = inputs(await admin.page("/act?act=letters.discard"))
    assert (await admin.post("/act", {**other, "why": "test", "part": part})).status_code == 422


async def test_what_was_picked_is_found_by_its_id(bus: CommandBus, admin: Browser) -> None:
    await bus.dispatch(Deposit(account_id="p-1", amount=1), delay=600, command_id="picked-1")
    page = await admin.page("/commands?state=delayed")
    boxes = [unescape(each) for each in re.findall(r'name="picked" value="([^"]+)"', page)]
    asked = await admin.post("/act", [*_hidden(page), ("act", "commands.pick"), *(("picked", each) for each in boxes)])
    assert (await admin.post("/act", {**inputs(asked.text), "why": "no more"})).status_code == 303
    (act,) = await bus.audit.about(["picked-1"])
    assert (act.act, act.why, act.outcome) == ("Cancel picked commands", "no more", "1 commands are cancelled")
