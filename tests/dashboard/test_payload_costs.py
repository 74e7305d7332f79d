"""Costs of large payloads: what a page makes of them no other page waits for. A sender chooses how large they are."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest

from command_bus import CommandBus
from command_bus.dashboard import Dashboard
from command_bus.dashboard.masking import LARGE, MASK, Masking
from tests.dashboard.conftest import Browser, inputs, page_text
from tests.dashboard.troubled_shop import Shop, until

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="module")]
WAYS = ("text", "shown", "edited")


async def a_letter(bus: CommandBus, entity_id: str, card: str) -> Any:
    """Return the dead letter of a charge that is declined."""
    await bus.dispatch_raw("order", entity_id, "Charge", {"order_id": entity_id, "cents": 5, "card": card, "shop": "Lisbon"})

    async def found() -> Any:
        return [each async for each in bus.dead_letters.list() if each.entity_id == entity_id]

    await until(found)
    return (await found())[0]


async def test_no_payload_is_read_for_a_page_in_the_event_loop(
    troubled: tuple[CommandBus, Shop], operator: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = troubled[0]
    here, inside, calls = threading.get_ident(), list[str](), list[str]()

    def watched(way: str) -> Any:
        inner = getattr(Masking, way)

        def call(*arguments: Any) -> Any:
            calls.append(way)
            if threading.get_ident() == here:
                inside.append(f"{way} for {page}")
            return inner(*arguments)

        return call

    letter = await a_letter(bus, "o-cost", "4000000000000002")
    for way in WAYS:
        monkeypatch.setattr(Masking, way, watched(way))
    form = page = ""
    for page in (
        "/", "/letters", f"/letter?id={letter.id}", "/history", f"/command?id={letter.command_id}", "/entity?type=order&id=o-cost",
        f"/act?act=letter.edit&id={letter.id}",
    ):  # fmt: skip
        form = await operator.page(page)
    page = "the edit"
    await operator.post("/act", {**inputs(form), "act": "letter.edit", "why": "on call", "payload": "{}", "id": letter.id})
    assert inside == []
    assert set(calls) == set(WAYS), "pages mask"


async def test_190_a_list_does_not_read_large_payloads(
    troubled: tuple[CommandBus, Shop], app: Dashboard, viewer: Browser
) -> None:
    """A hundred orders of a megabyte held the first page for a minute and a half."""
    card = "4000 0000 0000 0002" * 2_000
    letter = await a_letter(troubled[0], "o-large", card)
    rows = page_text(await viewer.page(str(httpx.URL("/letters", params={"type": "order", "id": "o-large"}))))
    assert LARGE in rows
    assert card[:20] not in rows
    assert MASK in await viewer.page(f"/letter?id={letter.id}")
