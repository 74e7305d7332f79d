"""Reads of operators over HTTP: entities, dead letters, schedules; the same JSON as on the command line."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from command_bus import CommandBus, EntityState, every
from command_bus.gateway import Gateway
from tests.gateway.bank import Deposit
from tests.gateway.conftest import Client, fresh
from tests.program import run_program

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="module")]


async def told_by_cli(bus: CommandBus, *words: str) -> Any:
    done = await asyncio.to_thread(run_program, *words, "--json", "--url", bus.url, "-n", bus.settings.namespace)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def burnt(ops: Client, account: str) -> dict[str, Any]:
    """Make a dead letter, and return it as the gateway lists it."""
    assert (await ops.call("Burn", account_id=account)).status_code == 502
    page = (await ops.ask("GET", f"/dead-letters?entity_type=account&entity_id={account}")).json()
    (letter,) = page["letters"]
    return dict(letter)


async def test_entities_that_have_work(ops: Client, bus: CommandBus) -> None:
    holds = [fresh("hold") for _ in range(3)]
    for number, hold in enumerate(holds):
        for _ in range(number + 1):
            await bus.dispatch_raw("hold", hold, "Held", {"hold_id": hold})
    await bus.entity("hold", holds[1]).pause("asked by support")
    listed = (await ops.ask("GET", "/entities?type=hold&limit=2")).json()
    assert [each["entity_id"] for each in listed["entities"]] == [holds[2], holds[1]]
    rest = (await ops.ask("GET", "/entities", params={"type": "hold", "cursor": listed["cursor"]})).json()
    assert ([each["entity_id"] for each in rest["entities"]], rest["cursor"]) == ([holds[0]], None)
    shown = (await ops.ask("GET", f"/entities/hold/{holds[2]}?waiting=1")).json()
    assert (shown["entity"]["depth"], len(shown["waiting"]), shown["head"]["name"]) == (3, 1, "Held")
    for hold in holds:
        await bus.entity("hold", hold).abort(force=True)
        await bus.entity("hold", hold).purge()


class Vault(EntityState, entity="vault"):
    coins: int = 0


async def test_the_state_of_an_entity(ops: Client, bus: CommandBus) -> None:
    vault = fresh("vault")
    revision = await bus.states.put(vault, Vault(coins=3))
    shown = await ops.ask("GET", f"/entities/vault/{vault}/state")
    assert shown.status_code == 200, shown.text
    assert (shown.json()["value"], shown.headers["ETag"]) == ({"coins": 3}, f'"{revision}"')
    assert await told_by_cli(bus, "state", "show", f"vault:{vault}") == shown.json()
    missing = await ops.ask("GET", "/entities/vault/none/state")
    assert (missing.status_code, missing.json()["code"]) == (404, "no_state")


async def test_a_dead_letter_as_the_command_line_shows_it(ops: Client, bus: CommandBus) -> None:
    account = fresh()
    letter = await burnt(ops, account)
    assert (letter["name"], letter["payload"], letter["error_message"]) == (
        "Burn",
        {"account_id": account},
        "the vault at 10.0.0.7 is on fire",
    )
    one = (await ops.ask("GET", f"/dead-letters/{letter['id']}")).json()
    assert one == letter
    listed = await told_by_cli(bus, "dlq", "list")
    assert letter in next(value for value in listed.values() if isinstance(value, list))


async def test_dead_letters_are_chosen(ops: Client) -> None:
    accounts = [fresh() for _ in range(3)]
    for account in accounts:
        await burnt(ops, account)
    first = (await ops.ask("GET", "/dead-letters?name=Burn&limit=2")).json()
    rest = (await ops.ask("GET", "/dead-letters", params={"name": "Burn", "limit": 2, "cursor": first["cursor"]})).json()
    assert [each["entity_id"] for each in [*first["letters"], *rest["letters"]]][:3] == accounts[::-1]
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    for none in ({"name": "Deposit"}, {"reason": "expired"}, {"parked": "true"}, {"since": later}):
        assert (await ops.ask("GET", "/dead-letters", params=none)).json()["letters"] == []


async def test_a_page_of_large_dead_letters_ends_early(ops: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("command_bus.admin.letter_pages._LARGE", 1)
    accounts = [fresh() for _ in range(3)]
    for account in accounts:
        await burnt(ops, account)
    found: list[str] = []
    params: dict[str, Any] = {"name": "Burn", "limit": 200}
    while len(found) < len(accounts):
        page = (await ops.ask("GET", "/dead-letters", params=params)).json()
        assert len(page["letters"]) == 1
        found.append(page["letters"][0]["entity_id"])
        params["cursor"] = page["cursor"]
    assert found == accounts[::-1]


async def test_schedules(ops: Client, bus: CommandBus) -> None:
    name = "books of/a-1"
    await bus.schedules.put(name, Deposit(account_id="a-1", amount=1), every(3600))
    try:
        listed = (await ops.ask("GET", "/schedules?entity_type=account")).json()
        assert [(each["name"], each["command"]) for each in listed["schedules"]] == [(name, "Deposit")]
        one = (await ops.ask("GET", "/schedules/books%20of%2Fa-1")).json()
        assert (one["name"], len(one["ticks"]), one["state"]) == (name, 5, "active")
        assert datetime.fromisoformat(one["ticks"][1]) - datetime.fromisoformat(one["ticks"][0]) == timedelta(hours=1)
    finally:
        await bus.schedules.remove(name)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/entities?cursor=nonsense", 400, "invalid_settings"),
        ("/entities?state=tired", 400, "invalid_query"),
        ("/entities?limit=0", 400, "invalid_query"),
        ("/entities?limit=9999", 400, "invalid_query"),
        ("/entities?order=size", 400, "invalid_query"),
        ("/entities?type=no%20type", 422, "invalid_command"),
        ("/entities/no%20type/x", 422, "invalid_command"),
        ("/dead-letters?cursor=nonsense", 400, "invalid_settings"),
        ("/dead-letters?since=yesterday", 400, "invalid_query"),
        ("/dead-letters?resaon=failed", 400, "invalid_query"),
        ("/dead-letters/nothing", 404, "unknown_dead_letter"),
        ("/schedules/nothing", 404, "unknown_schedule"),
        ("/schedules?limit=x", 400, "invalid_query"),
    ],
)
async def test_152_a_listing_of_what_is_none(ops: Client, path: str, status: int, code: str) -> None:
    answer = await ops.ask("GET", path)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


@pytest.mark.parametrize("path", ["/entities", "/entities/a/b", "/dead-letters", "/dead-letters/x", "/schedules", "/schedules/x"])
async def test_141_operators_reads_want_their_right(app: Gateway, path: str) -> None:
    for name in ("ci", "caller", "looker", "canceller", "hearer", "slow"):
        answer = await Client(app, name).ask("GET", path)
        assert (answer.status_code, answer.json()["right"]) == (403, "inspect")
    assert (await Client(app, "reader").ask("GET", path)).status_code in (200, 404)
