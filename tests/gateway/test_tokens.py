"""Tokens, rights, rates, files of tokens: who may do what."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from command_bus import CommandBus
from command_bus.errors import InvalidSettings
from command_bus.gateway import Gateway, Grant, gateway, hash_token, new_token, tokens
from command_bus.gateway.tokens import Holder, Rate, Rights, read_tokens
from tests.gateway.bank import TOKENS, allowed
from tests.gateway.conftest import Client, fresh

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="module")]

GOOD = "cb_" + "x" * 30
REQUESTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "send Deposit": ("POST", "/commands/Deposit", {"json": {"account_id": "matrix", "amount": 1}}),
    "call Deposit": ("POST", "/commands/Deposit", {"json": {"account_id": "matrix", "amount": 1}, "headers": {"Prefer": "wait=5"}}),
    "send Stamp": ("POST", "/commands/Stamp", {"json": {"at": "2026-12-01T09:00:00Z", "price": "1"}}),
    "query": ("POST", "/commands/GetBalance", {"json": {"account_id": "matrix"}}),
    "batch": ("POST", "/commands", {"json": {"commands": [{"name": "Deposit", "fields": {"account_id": "matrix", "amount": 1}}]}}),
    "mixed batch": ("POST", "/commands", {"json": {"commands": [
        {"name": "Deposit", "fields": {"account_id": "matrix", "amount": 1}}, {"name": "Burn", "fields": {"account_id": "matrix"}},
    ]}}),
    "look": ("GET", "/commands/nothing", {}),
    "cancel": ("DELETE", "/commands/nothing", {}),
}  # fmt: skip
MAY = {
    "ops": set(REQUESTS),
    "ci": {"send Deposit", "batch"},
    "caller": {"call Deposit", "query"},
    "looker": {"look"},
    "canceller": {"cancel"},
    "hearer": set(),
    "reader": set(),
    "slow": {"send Deposit", "send Stamp", "batch", "mixed batch", "look"},
}


@pytest.mark.parametrize("name", MAY)
async def test_141_each_token_may_do_what_its_rights_say(bus: Any, name: str) -> None:
    allowed_by_status: dict[bool, set[str]] = {True: set(), False: set()}
    for what, (method, path, options) in REQUESTS.items():
        client = Client(gateway(bus, allow=allowed()), name)  # a gateway for each: rates begin anew
        answer = await client.ask(method, path, **options)
        assert answer.status_code in (200, 202, 403, 404), (what, answer.text)
        if answer.status_code == 403:
            assert (answer.json()["code"], bool(answer.json()["right"])) == ("forbidden", True)
        allowed_by_status[answer.status_code != 403].add(what)
    assert allowed_by_status[True] == MAY[name]


async def test_141_nothing_of_a_forbidden_batch_is_sent(app: Gateway, bus: Any) -> None:
    account = fresh()
    commands = [{"name": name, "fields": {"account_id": account, "amount": 1}} for name in ("Deposit", "Withdraw")]
    answer = await Client(app, "ci").ask("POST", "/commands", json={"commands": commands})
    assert (answer.status_code, answer.json()["index"]) == (403, 1)
    assert await bus.entity("account", account).depth() == 0
    assert (await Client(app).call("GetBalance", account_id=account)).json()["reply"] == 0


async def test_141_an_unknown_command_is_404_with_the_nearest_name(each_client: Client) -> None:
    answer = await each_client.send("Depozit", account_id="a", amount=1)
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_command_name")
    assert "did you mean 'Deposit'" in answer.json()["detail"]


async def test_141_a_token_for_one_command_learns_of_no_other(app: Gateway) -> None:
    ci = Client(app, "ci")
    for name in ("Withdraw", "Withdrew"):  # one is there, the other not: the same answer
        answer = await ci.send(name, account_id="a", amount=1)
        assert (answer.status_code, "did you mean" in answer.json()["detail"]) == (403, False)
    assert "did you mean 'Deposit'" in (await ci.send("Depozit")).json()["detail"]


@pytest.mark.parametrize("path", ["/", "/commands", "/commands/Deposit", "/nothing", "/openapi.json", "/events"])
@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", "Bearer wrong", "Basic b3BzOm9wcw==", TOKENS["ops"], f"Bearer {TOKENS['ops']}x", "Bearer " + "x" * 5000,
     f"Token {TOKENS['ops']}", f"Bearer {hash_token(TOKENS['ops'])}"],
)  # fmt: skip
async def test_140_without_a_token_nothing_is_open(app: Gateway, path: str, authorization: str) -> None:
    answer = await Client(app).ask("POST", path, headers={"Authorization": authorization}, json={})
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("base", ["", "/api/bus"])
async def test_a_probe_needs_no_token_and_no_name(bus: Any, base: str) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    app = Starlette(routes=[Mount(base, gateway(bus, allow=allowed(), hosts=["bus.example"]))])
    client = Client(app, "nobody", base="http://10.0.0.9:8088")
    probe = await client.ask("GET", f"{base}/healthz")
    assert (probe.status_code, probe.text, probe.headers["content-type"]) == (200, "live\n", "text/plain; charset=utf-8")
    assert probe.headers["cache-control"] == "no-store"
    assert (await client.ask("HEAD", f"{base}/healthz")).status_code == 200
    for method, path in (("GET", "/healthz/"), ("GET", "/healthz/x"), ("POST", "/healthz"), ("GET", "/commands/healthz")):
        assert (await client.ask(method, base + path)).status_code == 421
        named = Client(app, "nobody", base="http://bus.example")
        assert (await named.ask(method, base + path)).status_code == 401


async def test_140_two_tokens_are_none(app: Gateway) -> None:
    header = ("Authorization", f"Bearer {TOKENS['ops']}")
    import httpx

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://bus.example") as client:
        answer = await client.post("/commands", headers=[header, ("Authorization", "Bearer other")], json={})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_header")


async def test_a_token_is_found_by_its_hash(bus: Any) -> None:
    token = new_token()
    app = gateway(bus, allow=tokens({"ann": Grant(hash_token(token), ("send",))}))
    answer = await Client(app, token).send("Deposit", account_id=fresh(), amount=1)
    assert answer.status_code == 202
    assert token not in repr(app.state.allow)


@pytest.mark.parametrize(
    ("grants", "advice"),
    [
        ({}, "name at least one"),
        ({"ci": Grant("short", ("send",))}, "20 to 512"),
        ({"ci": Grant("a token with spaces in it, and long", ("send",))}, "20 to 512"),
        ({"ci": Grant("sha256$short", ("send",))}, "is not a hash"),
        ({"ci": Grant(GOOD, ())}, "no rights"),
        ({"ci": Grant(GOOD, cast("Any", "send"))}, "a list of them"),
        ({"ci": Grant(GOOD, ("sent",))}, "did you mean 'send'"),
        ({"ci": Grant(GOOD, ("look:Deposit",))}, "send, call, publish may be for one"),
        ({"ci": Grant(GOOD, ("send:no name!",))}, "send, call, publish may be for one"),
        ({"ci": Grant(GOOD, cast("Any", (7,)))}, "one of"),
        ({"ci": Grant(GOOD, ("send",)), "ops": Grant(GOOD, ("*",))}, "the same token"),
        ({"ci": Grant(GOOD, ("send",), rate=0)}, "positive number"),
        ({"ci": Grant(GOOD, ("send",), rate=float("nan"))}, "positive number"),
        ({"ci": GOOD}, "Grant(token, rights)"),
        ({"": Grant(GOOD, ("send",))}, "has a name"),
    ],
)
async def test_142_tokens_that_are_none(grants: Any, advice: str) -> None:
    with pytest.raises(InvalidSettings) as failed:
        tokens(grants)
    assert advice in failed.value.message


@pytest.mark.parametrize(
    "options",
    [
        {"allow": None},
        {"allow": {}},
        {"max_body": 0},
        {"max_streams": "9"},
        {"max_streams_each": 0},
        {"max_requests_each": 0},
        {"max_batch": True},
        {"max_wait": -1.0},
        {"body_timeout": float("inf")},
    ],
)
async def test_142_a_gateway_that_is_open_to_all_or_has_no_limits(bus: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings):
        gateway(bus, **{"allow": allowed(), **options})


async def test_a_file_of_tokens(tmp_path: Path, bus: Any) -> None:
    token, file = new_token(), tmp_path / "tokens.toml"
    file.write_text(f'[ci]\ntoken = "{hash_token(token)}"\nrights = ["send:Deposit"]\nrate = 1\n')
    client = Client(gateway(bus, allow=read_tokens(file)), token)
    answers = [await client.send("Deposit", account_id=fresh(), amount=1) for _ in range(2)]
    assert [each.status_code for each in answers] == [202, 429]


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (None, "cannot be read"),
        ("[ci", "is no TOML"),
        ("ci = 1", "[ci] has"),
        (f'[ci]\ntoken = "{GOOD}"\nrights = ["send"]', "is not a hash"),
        (f'[ci]\ntoken = "{hash_token(GOOD)}"', "[ci] has"),
        (f'[ci]\ntoken = "{hash_token(GOOD)}"\nrights = "send"', "[ci] has"),
        (f'[ci]\ntoken = "{hash_token(GOOD)}"\nrights = ["send"]\nrigths = []', "[ci] has"),
        ("", "name at least one"),
    ],
)
async def test_142_a_file_of_tokens_that_is_none(tmp_path: Path, text: str | None, advice: str) -> None:
    file = tmp_path / "tokens.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InvalidSettings) as failed:
        read_tokens(file)
    assert advice in failed.value.message
    assert GOOD not in failed.value.message


# Rates.


async def test_148_a_rate_is_429_with_retry_after(app: Gateway) -> None:
    slow = Client(app, "slow")
    answers = [await slow.send("Deposit", account_id=fresh(), amount=1) for _ in range(3)]
    assert [each.status_code for each in answers] == [202, 202, 429]
    assert (answers[2].json()["code"], answers[2].headers["retry-after"]) == ("too_many_requests", "1")
    assert (await Client(app).send("Deposit", account_id=fresh(), amount=1)).status_code == 202  # another token


async def test_148_each_command_of_a_batch_counts(app: Gateway) -> None:
    slow = Client(app, "slow")
    commands = [{"name": "Deposit", "fields": {"account_id": fresh(), "amount": 1}} for _ in range(5)]
    assert (await slow.ask("POST", "/commands", json={"commands": commands})).json()["accepted"] == 5
    answer = await slow.ask("POST", "/commands", json={"commands": commands})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")  # 2 - 5 + 1 takes two seconds at 2 a second


async def test_a_bucket_fills_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(sys.modules[Grant.__module__], "mono", lambda: now)
    rate = Rate(4.0)
    assert [rate.wait() for _ in range(5)] == [0, 0, 0, 0, 0.25]
    now += 0.25
    assert (rate.wait(), rate.wait()) == (0, 0.25)
    now += 3600
    assert [rate.wait() for _ in range(5)] == [0, 0, 0, 0, 0.25]


async def test_no_token_meets_the_command_of_another_by_a_key(bus: CommandBus) -> None:
    """Neither its reply nor a refusal: keys are of the token that chose them."""
    other, account, key = new_token(), fresh(), fresh("key")
    app = gateway(bus, allow=tokens({"ops": Grant(TOKENS["ops"], ("*",)), "other": Grant(other, ("call", "send"))}))
    for name, token in (("ops", TOKENS["ops"]), ("other", other)):
        answer = await Client(app).ask(
            "POST",
            "/commands/Deposit",
            json={"account_id": account, "amount": len(name)},
            headers={"Authorization": f"Bearer {token}", "Idempotency-Key": key, "Prefer": "wait=5"},
        )
        assert (answer.status_code, answer.json()["command_id"]) == (200, f"{name}:{key}")
    holders = [Holder(name, Rights(name, ("*",)), None) for name in ("a:b", "a", "a%3Ab")]
    assert len({each.command_id(rest) for each, rest in zip(holders, ("c", "b:c", "c"), strict=True)}) == 3


async def test_184_one_token_does_not_hold_all_requests_by_waiting(bus: CommandBus) -> None:
    app = gateway(bus, allow=allowed(), max_requests_each=2)
    ops, hold = Client(app), fresh("hold")
    sent = [await ops.ask("POST", "/commands/Held?delay=600&keep_result=true", json={"hold_id": hold}) for _ in range(2)]
    paths = [f"/commands/{each.json()['command_id']}" for each in sent]
    waits = [asyncio.ensure_future(ops.ask("GET", f"{path}?wait=1")) for path in paths]
    await asyncio.sleep(0.1)
    answer = await ops.ask("GET", paths[0])
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (429, "too_many_requests", "1")
    assert (await Client(app, "looker").ask("GET", paths[0])).status_code == 200, "another token has its own"
    assert [(await each).status_code for each in waits] == [200, 200]
    assert (await ops.ask("GET", paths[0])).status_code == 200
    assert app.state.requests_of.total() == 0
    for path in paths:
        await bus.cancel(path.rpartition("/")[2])
