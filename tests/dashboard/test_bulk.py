"""Acts on many dead letters: which they choose, and what they tell when not all goes well."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from command_bus import CommandBus, NewerState, TransportUnavailable
from command_bus.admin import letter_pages
from command_bus.admin.dead_letters import DeadLetters
from command_bus.dashboard import dashboard
from command_bus.dashboard.acts import letters
from command_bus.embedded import EmbeddedServer
from tests.dashboard.conftest import Browser, inputs, page_text, users_by_header
from tests.dashboard.troubled_shop import Charge, Mail, open_shop, until

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


async def test_of_too_many_the_oldest_are_taken(bus: CommandBus, admin: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters, "MOST_AT_ONCE", 10)
    form = inputs(page := await admin.page("/act?act=letters.discard"))
    assert "These are the oldest of 30 that match: at most 10 are changed at a time. Ask again for the rest." in page_text(page)
    assert (await admin.post("/act", {**form, "why": "test", "typed": "10"})).status_code == 303
    assert await _left(bus) == [f"c-{number:02}" for number in range(10, MANY)]


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
