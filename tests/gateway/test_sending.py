"""Dispatches, calls and batches over HTTP, with the classes and without them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from command_bus import CommandBus
from command_bus.gateway import Gateway
from tests.gateway.bank import Bank
from tests.gateway.conftest import Client, fresh

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="module")]


async def test_a_command_is_dispatched(each_client: Client, bank: Bank, bus: CommandBus) -> None:
    account = fresh()
    answer = await each_client.send("Deposit", account_id=account, amount=5)
    assert (answer.status_code, answer.json()["status"]) == (202, "accepted")
    assert "location" not in answer.headers  # a generated id is not remembered
    await bus.wait_idle(10)
    assert bank.balances[account] == 5


async def test_a_command_is_called(each_client: Client) -> None:
    answer = await each_client.call("Deposit", account_id=fresh(), amount=7)
    assert (answer.status_code, answer.json()["reply"]) == (200, 7)
    assert answer.headers["preference-applied"] == "wait=5"


async def test_a_query_is_called_without_being_told_to(each_client: Client) -> None:
    answer = await each_client.send("GetBalance", account_id=fresh())
    assert (answer.status_code, answer.json()["reply"]) == (200, 0)


async def test_fields_that_json_has_as_text(each_client: Client) -> None:
    answer = await each_client.call("Stamp", at="2026-12-01T09:00:00Z", price="1.50", tags=["a", "b"])
    assert answer.json()["reply"] == "2026-12-01T09:00:00+00:00 1.50 a,b"


async def test_a_reply_that_json_lacks_is_null(each_client: Client) -> None:
    answer = await each_client.call("Audit", account_id=fresh(), pages=0)
    assert answer.json()["reply"] == {"pages": 0, "ratio": None}


async def test_the_key_is_the_command_id(each_client: Client, bank: Bank, bus: CommandBus) -> None:
    account, key = fresh(), fresh("ops:key")
    ask: dict[str, Any] = {"json": {"account_id": account, "amount": 5}, "headers": {"Idempotency-Key": f'"{key[4:]}"'}}
    first = await each_client.ask("POST", "/commands/Deposit", **ask)
    again = await each_client.ask("POST", "/commands/Deposit", **ask)
    assert (first.status_code, first.json()) == (202, {"command_id": key, "status": "accepted", "other": None})
    assert (again.status_code, again.json()["status"]) == (200, "duplicate")
    await bus.wait_idle(10)
    assert bank.balances[account] == 5
    status = await each_client.ask("GET", first.headers["location"])
    assert (status.json()["state"], status.json()["outcome"], status.json()["reply"]) == ("settled", "completed", 5)


async def test_a_call_with_a_key_is_repeated(each_client: Client) -> None:
    account, key = fresh(), fresh("ops:key")
    ask: dict[str, Any] = {
        "json": {"account_id": account, "amount": 5},
        "headers": {"Idempotency-Key": key[4:], "Prefer": "respond-async, wait=5"},
    }
    assert [(await each_client.ask("POST", "/commands/Deposit", **ask)).json() for _ in range(2)] == [
        {"command_id": key, "reply": 5}
    ] * 2


async def test_headers_travel_with_the_command(each_client: Client, bank: Bank) -> None:
    account, trace = fresh(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"X-Command-Tenant": "acme", "traceparent": trace, "Prefer": "wait=5"}
    await each_client.ask("POST", "/commands/Deposit", json={"account_id": account, "amount": 1}, headers=headers)
    assert bank.headers[account]["tenant"] == "acme"
    assert bank.headers[account]["traceparent"] == trace


async def test_a_delay_an_end_and_a_priority(each_client: Client, bus: CommandBus) -> None:
    key = fresh("ops:key")
    path = "/commands/Held?delay=600&expires=900&priority=high"
    await each_client.ask("POST", path, json={"hold_id": fresh()}, headers={"Idempotency-Key": key[4:]})
    status = (await each_client.ask("GET", f"/commands/{key}")).json()
    assert (status["state"], status["name"]) == ("delayed", "Held")
    assert datetime.fromisoformat(status["until_at"]) > datetime.now(UTC) + timedelta(seconds=500)
    assert await bus.cancel(key)


async def test_a_moment(each_client: Client, bus: CommandBus) -> None:
    key, at = fresh("ops:key"), (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    answer = await each_client.ask(
        "POST", "/commands/Held", params={"at": at}, json={"hold_id": fresh()}, headers={"Idempotency-Key": key[4:]}
    )
    assert answer.status_code == 202
    assert (await bus.commands.status(key)).state == "delayed"
    assert await bus.cancel(key)


async def test_a_kept_result_has_an_address(each_client: Client) -> None:
    answer = await each_client.ask("POST", "/commands/Deposit?keep_result=true", json={"account_id": fresh(), "amount": 3})
    status = await each_client.ask("GET", f"{answer.headers['location']}?wait=5")
    assert (status.json()["outcome"], status.json()["reply"]) == ("completed", 3)


async def test_a_batch_keeps_the_order_of_an_entity(each_client: Client, bank: Bank, bus: CommandBus) -> None:
    account, key = fresh(), fresh("ops:key")
    await each_client.call("Deposit", account_id=account, amount=10)
    commands = [
        {"name": "Withdraw", "fields": {"account_id": account, "amount": 10}},
        {"name": "Deposit", "fields": {"account_id": account, "amount": 1}, "id": key[4:], "headers": {"tenant": "acme"}},
        {"name": "Stamp", "fields": {"at": "2026-12-01T09:00:00Z", "price": "1.5"}},
        {"name": "Deposit", "fields": {"account_id": account, "amount": 1}, "id": key[4:], "headers": {"tenant": "acme"}},
    ]
    answer = (await each_client.ask("POST", "/commands", json={"commands": commands})).json()
    assert [each["status"] for each in answer["outcomes"]] == ["accepted", "accepted", "accepted", "duplicate"]
    assert (answer["accepted"], answer["duplicates"], answer["rejected"]) == (3, 1, 0)
    await bus.wait_idle(10)
    assert bank.balances[account] == 1
    assert bank.headers[account]["tenant"] == "acme"


async def test_a_refused_command_keeps_back_those_of_its_entity(each_client: Client, bus: CommandBus) -> None:
    drained, other = fresh(), fresh()
    await bus.entity("account", drained).drain("closed")
    names = [drained, drained, other]
    commands = [{"name": "Deposit", "fields": {"account_id": each, "amount": 1}} for each in names]
    answer = (await each_client.ask("POST", "/commands", json={"commands": commands})).json()
    assert [each["status"] for each in answer["outcomes"]] == ["rejected", "rejected", "accepted"]
    assert [each["error"]["code"] for each in answer["outcomes"][:2]] == ["draining", "draining"]
    await bus.entity("account", drained).resume()


async def test_an_empty_batch(each_client: Client) -> None:
    answer = await each_client.ask("POST", "/commands", json={"commands": []})
    assert (answer.status_code, answer.json()["outcomes"]) == (200, [])


async def test_it_is_mounted_below_a_path(app: Gateway) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    client = Client(Starlette(routes=[Mount("/api/bus", app)]))
    key = "ops:of/an order?"
    answer = await client.ask(
        "POST", "/api/bus/commands/Deposit", json={"account_id": fresh(), "amount": 3}, headers={"Idempotency-Key": key[4:]}
    )
    assert answer.headers["location"] == "/api/bus/commands/ops%3Aof%2Fan%20order%3F"
    status = await client.ask("GET", f"{answer.headers['location']}?wait=5")
    assert (status.json()["command_id"], status.json()["reply"]) == (key, 3)


async def test_a_command_waits_and_is_cancelled(each_client: Client, bus: CommandBus) -> None:
    hold, keys = fresh("hold"), [fresh("ops:key"), fresh("ops:key")]
    for key in keys:
        await each_client.ask("POST", "/commands/Held", json={"hold_id": hold}, headers={"Idempotency-Key": key[4:]})
    async with asyncio.timeout(10):
        while (await bus.commands.status(keys[0])).state != "running":
            await asyncio.sleep(0.01)
    behind = (await each_client.ask("GET", f"/commands/{keys[1]}?wait=0.05")).json()
    assert (behind["state"], behind["position"], "reply" in behind) == ("waiting", 2, False)
    gone = await each_client.ask("DELETE", f"/commands/{keys[1]}?reason=a+mistake")
    assert gone.json() == {"command_id": keys[1], "cancelled": True}
    stays = await each_client.ask("DELETE", f"/commands/{keys[0]}")
    assert (stays.status_code, stays.json()["code"], stays.json()["state"]) == (409, "not_cancelled", "running")
    ended = await each_client.ask("DELETE", f"/commands/{keys[0]}?running=true")
    assert ended.json()["cancelled"] is True
    settled = (await each_client.ask("GET", f"/commands/{keys[0]}")).json()
    assert (settled["outcome"], settled["error"]["code"]) == ("cancelled", "begun")
    entries = (await bus.audit.page(limit=6)).entries
    assert [(each.who, each.target, each.outcome) for each in reversed(entries)] == [
        ("token ops", keys[1], ""), ("token ops", keys[1], "cancelled"),
        ("token ops", keys[0], ""), ("token ops", keys[0], "not cancelled"),
        ("token ops", keys[0], ""), ("token ops", keys[0], "cancelled"),
    ]  # fmt: skip
