"""Requests that are none: bodies, headers, addresses and paths from anybody who has a token."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from typing import Any

import httpx
import pytest

from command_bus import CommandBus
from command_bus.errors import CommandBusError, QueueFull, TransportUnavailable, Unconfirmed
from command_bus.gateway import Gateway, gateway, sending
from command_bus.gateway.problems import problem_of
from command_bus.serialization.json_forms import read_json
from tests.gateway.bank import TOKENS, Bank, allowed
from tests.gateway.conftest import Client, fresh

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="module")]
PATH = "/commands/Deposit"


async def ask_raw(client: Client, body: bytes, path: str = PATH, **headers: str) -> httpx.Response:
    return await client.ask("POST", path, content=body, headers={"Content-Type": "application/json", **headers})


def is_problem(answer: httpx.Response) -> bool:
    body = answer.json()
    return (
        answer.headers["content-type"] == "application/problem+json"
        and body["status"] == answer.status_code
        and bool(body["detail"])
    )


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b"\xff\xfe{}", 400, "invalid_json"),
        (b'{"account_id": "a", "amount": 1} trailing', 400, "invalid_json"),
        (b'{"account_id": "\\ud800", "amount": 1}', 400, "invalid_json"),
        (b'{"note":' + b'{"a":' * 5000 + b"1" + b"}" * 5001, 400, "invalid_json"),
        (b"[]", 422, "invalid_command"),
        (b"null", 422, "invalid_command"),
        (b'"text"', 422, "invalid_command"),
        (b"", 422, "invalid_command"),
        (b'{"account_id": "a", "amount": ' + b"9" * 4000 + b"}", 422, "invalid_command"),
    ],
)
async def test_143_a_body_that_is_no_command(each_client: Client, body: bytes, status: int, code: str) -> None:
    answer = await ask_raw(each_client, body)
    assert (answer.status_code, answer.json()["code"], is_problem(answer)) == (status, code, True), answer.text
    batch = await ask_raw(each_client, b'{"commands": [{"name": "Deposit", "fields": ' + body + b"}]}", "/commands")
    if batch.status_code == 200:  # each has an outcome: what cannot be packed is found at the end
        assert batch.json()["rejected"] == 1
    else:
        assert (batch.status_code in (400, 422), is_problem(batch)) == (True, True)


async def test_143_numbers_that_are_none(each_client: Client) -> None:
    for number in (b"NaN", b"Infinity", b"-Infinity"):
        answer = await ask_raw(each_client, b'{"account_id": "a", "amount": ' + number + b"}")
        assert (answer.status_code in (400, 422), is_problem(answer)) == (True, True)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"account_id": "a", "amount": 0}, "amount"),
        ({"account_id": "a", "amount": "5"}, "amount"),
        ({"account_id": "a", "amount": 1.5}, "amount"),
        ({"account_id": "a", "amount": None}, "amount"),
        ({"account_id": "a"}, "amount"),
        ({"amount": 1}, "account_id"),
        ({"account_id": ["a"], "amount": 1}, "account_id"),
        ({"account_id": "a", "amount": 1, "secret_typo": "hunter2"}, "secret_typo"),
        ({"account_id": "a", "amount": 1, "note": {"hunter2": 1}}, "note"),
    ],
)
async def test_144_a_wrong_field_is_422_and_named(each_client: Client, fields: dict[str, Any], field: str) -> None:
    answer = await each_client.send("Deposit", **fields)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_command")
    assert any(each["field"].startswith(field) for each in answer.json()["errors"]), answer.text
    assert "hunter2" not in answer.text
    batch = await each_client.ask("POST", "/commands", json={"commands": [{"name": "Deposit", "fields": fields}]})
    assert (batch.status_code, batch.json()["index"]) == (422, 0)
    assert any(each["field"].startswith(f"commands.0.fields.{field}") for each in batch.json()["errors"]), batch.text


@pytest.mark.parametrize("account", ["", "x" * 5000])
async def test_144_an_entity_id_that_is_none(each_client: Client, account: str) -> None:
    answer = await each_client.send("Deposit", account_id=account, amount=1)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_command")


@pytest.mark.parametrize("account", ["}{", "a\r\nX-Evil: 1", "\u202eevil", "\x00", "a b", "😀", "%2e%2e/"])
async def test_144_any_text_may_be_an_entity_id(each_client: Client, bank: Bank, account: str) -> None:
    before = bank.balances.get(account, 0)
    answer = await each_client.call("Deposit", account_id=account, amount=1)
    assert (answer.status_code, answer.json()["reply"]) == (200, before + 1)


async def test_144_a_wrong_item_of_a_batch_sends_nothing(each_client: Client, bus: CommandBus) -> None:
    account = fresh()
    good = {"name": "Deposit", "fields": {"account_id": account, "amount": 1}}
    for wrong, status in (
        ({"name": "Depozit"}, 404),
        ({**good, "idd": "x"}, 422),
        ({**good, "delay": "5"}, 422),
        ({**good, "delay": -1}, 422),
    ):
        answer = await each_client.ask("POST", "/commands", json={"commands": [good, wrong]})
        assert answer.status_code == status, answer.text
    await bus.wait_idle(10)
    assert (await each_client.call("GetBalance", account_id=account)).json()["reply"] == 0


async def test_144_a_query_in_a_batch_sends_nothing(each_client: Client, bus: CommandBus) -> None:
    account = fresh()
    good = {"name": "Deposit", "fields": {"account_id": account, "amount": 1}}
    query = {"name": "GetBalance", "fields": {"account_id": account}}
    answer = await each_client.ask("POST", "/commands", json={"commands": [good, query]})
    assert (answer.status_code, answer.json()["code"], answer.json()["index"]) == (422, "invalid_command", 1)
    assert answer.json()["errors"][0]["field"] == "commands.1.name"
    await bus.wait_idle(10)
    assert (await each_client.call("GetBalance", account_id=account)).json()["reply"] == 0


@pytest.mark.parametrize("name", [PATH, "/commands"])
async def test_145_a_body_that_is_too_large(bus: CommandBus, name: str) -> None:
    client = Client(gateway(bus, allow=allowed(), max_body=1000))
    declared = await ask_raw(client, b" " * 1001, name)
    lied = await client.ask("POST", name, content=b"{}", headers={"Content-Length": "9" * 30})

    async def parts() -> Any:
        for _ in range(11):
            yield b" " * 100

    streamed = await client.ask("POST", name, content=parts(), headers={"Content-Type": "application/json"})
    for answer in (declared, lied, streamed):
        assert (answer.status_code, answer.json()["code"], answer.json()["max_body"]) == (413, "body_too_large", 1000)
        assert answer.headers["connection"] == "close"
    assert (await ask_raw(client, b'{"account_id": "a", "amount": 1}'.ljust(1000))).status_code == 202


async def test_145_a_payload_and_a_batch_that_are_too_large(bus: CommandBus) -> None:
    client = Client(gateway(bus, allow=allowed(), max_body=10_000_000, max_batch=2))
    payload = await client.send("Deposit", account_id="a", amount=1, note="x" * 2_000_000)
    assert (payload.status_code, payload.json()["code"]) == (413, "payload_too_large")
    items = [{"name": "Deposit", "fields": {"account_id": "a", "amount": 1}}] * 3
    batch = await client.ask("POST", "/commands", json={"commands": items})
    assert (batch.status_code, batch.json()["code"]) == (413, "batch_too_large")


@pytest.mark.parametrize(
    "headers",
    [{"Content-Type": "text/plain"}, {"Content-Type": "multipart/form-data; boundary=x"}, {"Content-Encoding": "gzip"}],
)
async def test_146_a_body_of_another_kind(app: Gateway, headers: dict[str, str]) -> None:
    answer = await ask_raw(Client(app), b"{}", **headers)
    assert (answer.status_code, is_problem(answer)) == (415, True)


async def test_146_json_may_say_its_charset(app: Gateway) -> None:
    answer = await ask_raw(
        Client(app), b'{"account_id": "a", "amount": 1}', **{"Content-Type": "Application/JSON; charset=utf-8"}
    )
    assert answer.status_code == 202


async def test_147_a_slow_body_is_408(bus: CommandBus) -> None:
    client = Client(gateway(bus, allow=allowed(), body_timeout=0.05))

    async def forever() -> Any:
        yield b"{"
        await asyncio.sleep(30)
        yield b"}"

    answer = await client.ask("POST", PATH, content=forever())
    assert (answer.status_code, answer.json()["code"], answer.headers["connection"]) == (408, "too_slow", "close")


async def test_147_a_client_that_has_gone_is_answered_nothing(app: Gateway) -> None:
    sent: list[Any] = []
    messages = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"authorization", f"Bearer {TOKENS['ops']}".encode())]
    scope = {"type": "http", "method": "POST", "path": PATH, "raw_path": PATH.encode(), "query_string": b"", "headers": headers}
    await app(scope, receive, send)
    assert sent == []


async def test_149_a_drained_entity_is_503_with_retry_after(each_client: Client, bus: CommandBus) -> None:
    account = fresh()
    await bus.entity("account", account).drain("closed")
    for answer in (
        await each_client.send("Deposit", account_id=account, amount=1),
        await each_client.call("Deposit", account_id=account, amount=1),
    ):
        assert (answer.status_code, answer.json()["code"], answer.json()["limit"]) == (503, "draining", "drain")
        assert int(answer.headers["retry-after"]) >= 1
    await bus.entity("account", account).resume()


async def test_149_a_full_queue_and_a_server_that_is_away(bus: CommandBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way from each error to its answer; `test_served.py` stops a server."""
    errors: list[tuple[CommandBusError, int, str]] = [
        (QueueFull("full", retry_after=2.2), 503, "3"),
        (TransportUnavailable("redis-7.internal:6379 is away", outcome_unknown=True), 503, "5"),
        (Unconfirmed("0 of 2 replicas"), 503, "5"),
    ]
    for error, status, wait in errors:
        problem = problem_of(error)
        assert (problem.status, problem.headers["Retry-After"], "internal" in problem.detail) == (status, wait, False)
    assert problem_of(errors[1][0]).members["outcome_unknown"] is True


@pytest.mark.parametrize(
    ("key", "status"),
    [("", 400), ('""', 400), ("x" * 600, 422), (b"\xc3\xa4", 400), (b"a\tb", 400), (b"\x7f", 400)],
)
async def test_150_a_key_that_is_none(each_client: Client, key: Any, status: int) -> None:
    answer = await ask_raw(each_client, b'{"account_id": "a", "amount": 1}', **{"Idempotency-Key": key})
    assert (answer.status_code, is_problem(answer)) == (status, True), answer.text


async def test_150_a_key_that_was_used_for_something_else(each_client: Client) -> None:
    account, key = fresh(), {"Idempotency-Key": fresh("key")}
    first = await each_client.ask("POST", PATH, json={"account_id": account, "amount": 1}, headers=key)
    other = await each_client.ask("POST", PATH, json={"account_id": account, "amount": 2}, headers=key)
    assert (first.status_code, other.status_code, other.json()["code"]) == (202, 409, "idempotency_conflict")


@pytest.mark.parametrize(
    "command_id", ["a%0d%0aX-Evil:%201", "%00", "%E2%80%AEevil", "%22%3Cscript%3E", "..%2F..%2Fetc", "a%3Fb"]
)
async def test_151_nothing_of_a_request_becomes_a_header(ops: Client, command_id: str) -> None:
    for method in ("GET", "DELETE"):
        answer = await ops.ask(method, f"/commands/{command_id}")
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_command")
        assert not any("evil" in f"{name}{value}".lower() for name, value in answer.headers.items())
    item = {"name": "Deposit", "fields": {"account_id": "a", "amount": 1}, "id": httpx.URL(f"/{command_id}").path[1:]}
    sent = await ops.ask("POST", "/commands", json={"commands": [item]})
    assert (sent.status_code, "x-evil" in sent.headers) == (200, False)


@pytest.mark.parametrize(
    "headers",
    [
        {"Prefer": "wait=0"},
        {"Prefer": b"wait=\xff"},
        {"X-Command-Tenant": b"a\xffb"},
        {"traceparent": b"\x80"},
        {"Content-Type": b"\xff"},
    ],
)
async def test_151_a_header_that_is_none(each_client: Client, headers: Any) -> None:
    answer = await ask_raw(each_client, b'{"account_id": "a", "amount": 1}', **headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_header")


@pytest.mark.parametrize("prefer", ["wait", "wait=-1", "wait=1e3", "handling=lenient", "xwait=5", "wait=99999999999"])
async def test_151_a_preference_that_is_none_is_not_applied(each_client: Client, prefer: str) -> None:
    answer = await each_client.ask("POST", PATH, json={"account_id": fresh(), "amount": 1}, headers={"Prefer": prefer})
    assert (answer.status_code, "preference-applied" in answer.headers) == (202, False)


async def test_151_one_waits_no_longer_than_may_be(bus: CommandBus) -> None:
    client = Client(gateway(bus, allow=allowed(), max_wait=0.3))
    answer = await client.ask(
        "POST", "/commands/Held", json={"hold_id": fresh()}, headers={"Prefer": "wait=500", "Idempotency-Key": fresh("key")}
    )
    assert (answer.status_code, answer.json()["code"]) == (504, "timeout")


@pytest.mark.parametrize(
    ("query", "status", "advice"),
    [
        ("dellay=5", 400, "did you mean 'delay'"),
        ("delay=5&delay=6", 400, "twice"),
        ("delay=nan", 400, "delay"),
        ("delay=inf", 400, "delay"),
        ("delay=-1", 400, "delay"),
        ("delay=1e300", 422, ""),
        ("at=tomorrow", 400, "at"),
        ("at=2026-12-01T09:00:00", 400, "at"),
        ("at=2099-12-01T09:00:00Z&delay=5", 422, "one of them"),
        ("priority=urgent", 400, "priority"),
        ("delay=%ff", 400, "UTF-8"),
        ("&".join(f"a{number}=1" for number in range(60)), 400, "at most 50"),
        ("delay=" + "1" * 9000, 414, "at most"),
    ],
)
async def test_152_an_address_that_is_none(each_client: Client, query: str, status: int, advice: str) -> None:
    answer = await each_client.ask("POST", f"{PATH}?{query}", json={"account_id": "a", "amount": 1})
    assert (answer.status_code, is_problem(answer), advice in answer.json()["detail"]) == (status, True, True), answer.text


async def test_152_a_call_has_no_delay(each_client: Client) -> None:
    answer = await each_client.ask("POST", f"{PATH}?delay=5", json={"account_id": "a", "amount": 1}, headers={"Prefer": "wait=5"})
    assert (answer.status_code, "a call has none" in answer.json()["detail"]) == (400, True)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/nothing", 404),
        ("GET", "/commands/a/b/c/d", 404),
        ("GET", "/commands/", 404),
        ("GET", "//commands", 404),
        ("GET", "/commands/%ff", 400),
        ("GET", "/commands", 405),
        ("PUT", "/commands/x", 405),
        ("PATCH", "/commands", 405),
        ("OPTIONS", "/commands", 405),
        ("TRACE", "/commands", 405),
    ],
)
async def test_153_a_path_or_method_that_is_none(ops: Client, method: str, path: str, status: int) -> None:
    answer = await ops.ask(method, path)
    assert (answer.status_code, is_problem(answer), "allow" in answer.headers) == (status, True, status == 405)


async def test_153_another_host_and_a_websocket(bus: CommandBus) -> None:
    app = gateway(bus, allow=allowed(), hosts=["bus.example"])
    assert (await Client(app).send("GetBalance", account_id="a")).status_code == 200
    wrong = await Client(app, base="http://evil.example").send("GetBalance", account_id="a")
    assert (wrong.status_code, wrong.json()["code"]) == (421, "wrong_host")
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "websocket", "path": "/events"}, lambda: asyncio.sleep(0), send)  # type: ignore[arg-type, return-value]
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_155_a_handler_that_fails_shows_nothing_of_itself(each_client: Client) -> None:
    answer = await each_client.call("Burn", account_id=fresh())
    assert (answer.status_code, answer.json()["code"], answer.json()["attempts"]) == (502, "failed", 1)
    assert "10.0.0.7" not in answer.text
    assert "ConnectionError" not in answer.text


async def test_155_a_rejection_is_the_handlers_own(each_client: Client) -> None:
    answer = await each_client.call("Withdraw", account_id=fresh(), amount=9)
    assert (answer.status_code, answer.json()["code"], answer.json()["details"]) == (409, "insufficient_funds", {"missing": 9})


async def test_155_a_late_reply_is_504_with_the_address_of_the_command(each_client: Client, bus: CommandBus) -> None:
    hold = fresh("hold")
    answer = await each_client.ask("POST", "/commands/Held", json={"hold_id": hold}, headers={"Prefer": "wait=1"})
    assert (answer.status_code, answer.json()["code"], answer.json()["state"]) == (504, "timeout", "running")
    status = await each_client.ask("GET", answer.headers["location"])
    assert (status.status_code, status.json()["state"]) == (200, "running")
    await bus.cancel(answer.json()["command_id"], running=True)


async def test_155_a_bug_is_500_and_tells_nothing(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = gateway(bus, allow=allowed())

    async def broken(*_: Any, **__: Any) -> None:
        raise KeyError("password=hunter2")

    monkeypatch.setattr(app.state.catalogue, "find", broken)
    answer = await Client(app).send("Deposit", account_id="a", amount=1)
    assert (answer.status_code, answer.json()["code"], "hunter2" in answer.text) == (500, "internal", False)
    assert "hunter2" in caplog.text


async def test_every_answer_has_its_headers(ops: Client) -> None:
    for answer in (
        await ops.send("GetBalance", account_id="a"),
        await ops.ask("GET", "/nothing"),
        await ops.as_("nobody").ask("GET", "/"),
    ):
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert json.loads(answer.content) is not None


async def test_145_a_large_body_is_read_beside_the_event_loop(app: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of lists held all other requests for seconds. Of a token one is read at a time."""
    read, now, most = list[bool](), Counter[str](), Counter[str]()

    def reading(body: bytes) -> Any:
        read.append(threading.get_ident() == here)
        now["reads"] += 1
        most["reads"] = max(most["reads"], now["reads"])
        time.sleep(0.02)
        now["reads"] -= 1
        return read_json(body)

    here = threading.get_ident()
    monkeypatch.setattr(sending, "read_json", reading)
    small, large = {"account_id": "a", "amount": 1}, {"account_id": "a", "amount": 1, "note": "x" * 20_000}
    assert (await Client(app).send("Deposit", **small)).status_code == 202
    assert read == [True], "to begin a thread costs more than to read a little"
    batch = {"commands": [{"name": "Deposit", "fields": large}]}
    answers = await asyncio.gather(
        *(Client(app).send("Deposit", **large) for _ in range(3)),
        *(Client(app).ask("POST", "/commands", json=batch) for _ in range(3)),
    )
    assert {each.status_code for each in answers} == {202, 200}
    assert (read[1:], most["reads"]) == ([False] * 6, 1)


async def test_145_a_batch_that_is_too_large_is_not_checked_first(app: Gateway) -> None:
    answer = await Client(app).ask("POST", "/commands", json={"commands": [{}] * 1_001})
    assert (answer.status_code, answer.json()["code"]) == (413, "batch_too_large")
