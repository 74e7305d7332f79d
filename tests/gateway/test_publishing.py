"""Events over HTTP: published with the class and without it, to whom the token may, and completed after a part."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from command_bus import CommandBus
from command_bus.sending.publishing import SubscriptionRecord
from tests.gateway.bank import Bank
from tests.gateway.conftest import Client, fresh

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="module")]
PATH = "/events/account.deposited"
AUDIT = SubscriptionRecord(("account.deposited",), False, 1, 1_785_000_000_000)


async def test_an_event_is_published_once(each_client: Client, bank: Bank, bus: CommandBus) -> None:
    account, key = fresh(), fresh("key")
    ask: dict[str, Any] = {"json": {"account_id": account, "amount": 5, "price": "1.50"}}
    headers = {"Idempotency-Key": key, "X-Command-Tenant": "acme"}
    for _ in range(2):
        answer = await each_client.ask("POST", PATH, headers=headers, params={"priority": "high"}, **ask)
        assert (answer.status_code, answer.json()) == (202, {"event_id": f"ops:{key}", "subscriptions": ["ledger"]})
    await bus.wait_idle(10)
    assert [each for each in bank.posted if each[1] == account] == [(f"ops:{key}", account, 5, Decimal("1.50"), "acme")]


async def test_an_event_that_does_not_fit_is_refused(each_client: Client) -> None:
    for body, field in (({"account_id": "a", "amount": 0}, "amount"), ({"amount": 1}, "account_id")):
        answer = await each_client.ask("POST", PATH, json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_command")
        assert answer.json()["errors"][0]["field"] == field
    long = await each_client.ask("POST", PATH, json={"account_id": "a", "amount": 1}, headers={"Idempotency-Key": "k" * 400})
    assert (long.status_code, long.json()["code"]) == (422, "invalid_command")
    unknown = await each_client.ask("POST", f"{PATH}?keep_result=true", json={"account_id": "a", "amount": 1})
    assert (unknown.status_code, unknown.json()["code"]) == (400, "invalid_query")


async def test_commands_and_events_are_kept_apart(each_client: Client) -> None:
    as_command = await each_client.send("account.deposited", account_id="a", amount=1)
    assert (as_command.status_code, as_command.json()["code"]) == (404, "unknown_command_name")
    assert "it is an event: POST /events/account.deposited" in as_command.json()["detail"]
    as_event = await each_client.ask("POST", "/events/Deposit", json={"account_id": "a", "amount": 1})
    assert (as_event.status_code, as_event.json()["code"]) == (404, "unknown_event_name")
    other = await each_client.ask("POST", "/events/account.depositd", json={})
    assert "did you mean account.deposited?" in other.json()["detail"].replace("'", "")
    paths = (await each_client.ask("GET", "/openapi.json")).json()["paths"]
    assert "/commands/account.deposited" not in paths
    assert paths[PATH]["post"]["summary"] == "Money was put on an account."
    assert set(paths[PATH]["post"]["responses"]) == {"202", "default"}


async def test_only_who_may_publish_does(each_client: Client) -> None:
    body = {"account_id": fresh(), "amount": 1}
    assert (await each_client.as_("publisher").ask("POST", PATH, json=body)).status_code == 202
    for name in ("ci", "slow", "hearer"):
        refused = await each_client.as_(name).ask("POST", PATH, json=body)
        assert (refused.status_code, refused.json()["right"]) == (403, "publish:account.deposited")
    assert (await each_client.as_("publisher").ask("POST", "/events/other", json={})).status_code == 403
    paths = (await each_client.as_("publisher").ask("GET", "/openapi.json")).json()["paths"]
    assert list(paths) == [PATH]


async def test_what_reached_a_part_is_completed_with_the_key_of_the_answer(
    each_client: Client, bank: Bank, bus: CommandBus
) -> None:
    account = fresh()
    await bus.sender.subscriptions.put("audit", AUDIT)
    bus.sender.subscriptions.forget()
    each_client.app.state.bus.sender.subscriptions.forget()
    await bus.entity("account@audit", account).drain("closing")
    body = {"account_id": account, "amount": 1}
    part = await each_client.ask("POST", PATH, json=body)
    told = part.json()
    assert (part.status_code, told["code"], told["subscriptions"]) == (503, "published_in_part", ["ledger"])
    assert told["refused"]["audit"]["code"] == "draining"
    assert int(part.headers["retry-after"]) > 0
    await bus.entity("account@audit", account).resume()
    await bus.entity("account@audit", account).pause("purged next")
    whole = await each_client.ask("POST", PATH, json=body, headers={"Idempotency-Key": told["idempotency_key"]})
    assert whole.json() == {"event_id": told["event_id"], "subscriptions": ["audit", "ledger"]}
    await bus.entities.of("account@audit").purge()
    await bus.entity("account@audit", account).resume()
    await bus.wait_idle(10)
    assert [each[0] for each in bank.posted if each[1] == account] == [told["event_id"]]


async def test_entities_of_a_subscription_are_read(each_client: Client, bus: CommandBus) -> None:
    account = fresh()
    await bus.entity("account@ledger", account).pause("look")
    await each_client.ask("POST", PATH, json={"account_id": account, "amount": 1})
    found = (await each_client.ask("GET", f"/entities/account@ledger/{account}")).json()
    assert (found["entity"]["state"], found["entity"]["depth"]) == ("paused", 1)
    listed = (await each_client.ask("GET", "/entities?type=account%40ledger")).json()
    assert [each["entity_id"] for each in listed["entities"]] == [account]
    state = await each_client.ask("GET", f"/entities/account@ledger/{account}/state")
    assert (state.status_code, state.json()["code"]) == (404, "no_state")
    await bus.entity("account@ledger", account).resume()
