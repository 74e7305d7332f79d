"""Roles: each verb of the gateway under its own; who lacks what a program needs is refused at its start, with the role's name."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

import httpx

from command_bus import UnsuitableServer
from command_bus.gateway import Grant, gateway, tokens
from command_bus.transport.redis.acl import Role, check_rights
from tests.security.acl_users import Place, made
from tests.security.conftest import Starter

TOKEN = "cb_role_0123456789abcdef"


async def rights_of(place: Place, user: Role, needed: Role) -> None:
    async with place.bus(user) as bus:
        redis = bus.session.redis
        await check_rights(redis.connections, redis.keys, needed, "the gateway")


@pytest.mark.parametrize("selectors", [True, False])
async def test_each_verb_works_under_the_role(binary: Path, start: Starter, selectors: bool) -> None:
    async with (
        made(start(tcp=True, binary=binary), selectors=selectors) as place,
        place.bus("worker") as workers,
        workers.worker(),
        place.bus("gateway") as bus,
    ):
        async with place.bus("operator") as operator:
            await operator.events.watch("line")
        app = gateway(bus, allow=tokens({"ops": Grant(TOKEN, ("*",))}))
        head = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://bus.example", headers=head, trust_env=False
        ) as client:

            async def ask(method: str, path: str, code: int, **options: Any) -> Any:
                answer = await client.request(method, path, **options)
                assert answer.status_code == code, (method, path, answer.text)
                return answer.json()

            await ask("POST", "/commands/Work", 200, json={"line": "a", "number": 3}, headers={"Prefer": "wait=10"})
            sent = await ask("POST", "/commands/Work", 202, json={"line": "a", "number": 4}, headers={"Idempotency-Key": "k-1"})
            await ask("GET", f"/commands/{sent['command_id']}?wait=10", 200)
            batch = {"commands": [{"name": "Work", "fields": {"line": "b", "number": 5}}]}
            answer = await client.post("/commands", json=batch)
            assert answer.status_code < 500, answer.text
            await bus.dispatch(_work("later"), command_id="later", delay=600)
            await ask("DELETE", "/commands/later", 200)
            for path in ("/entities", "/entities/line/a", "/dead-letters", "/schedules", "/openapi.json"):
                await ask("GET", path, 200)
        for path, query in (("/events", "type=line&after="), ("/commands/later/progress", "")):
            assert b"data:" in await streamed(app, path, query), path
        assert await place.denied() == []


async def streamed(app: Any, path: str, query: str) -> bytes:
    """Return what a stream sends up to its first event, whose client goes away then."""
    said, over = b"", asyncio.Event()

    async def receive() -> Any:
        if not said:
            return {"type": "http.request", "body": b""}
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal said
        assert message.get("status", 200) == 200, message
        said += message.get("body", b"") or b" "
        if b"data:" in said:
            over.set()

    head = [(b"host", b"bus.example"), (b"authorization", f"Bearer {TOKEN}".encode())]
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query.encode(), "headers": head,
        "scheme": "http", "http_version": "1.1", "root_path": "", "client": ("10.0.0.1", 1), "server": ("bus.example", 80),
    }  # fmt: skip
    async with asyncio.timeout(20):
        await app(scope, receive, send)
    return said


def _work(line: str) -> Any:
    from tests.security.acl_users import Work

    return Work(line=line, number=1)


async def test_who_lacks_the_role_is_told_its_name(binary: Path, start: Starter) -> None:
    async with made(start(tcp=True, binary=binary), selectors=True) as place:
        await rights_of(place, "gateway", "gateway")
        able: tuple[Role, ...] = ("operator", "gateway", "owner")
        for user in able:
            await rights_of(place, user, "operator")
        lacking: tuple[tuple[Role, Role], ...] = (
            ("producer", "gateway"), ("operator", "gateway"), ("pipeline", "gateway"), ("worker", "gateway"),
            ("producer", "operator"), ("pipeline", "operator"), ("worker", "operator"),
        )  # fmt: skip
        for user, needed in lacking:
            with pytest.raises(UnsuitableServer, match=f"needs a user with the role {needed}"):
                await rights_of(place, user, needed)


@pytest.mark.parametrize("role", ["producer", "operator", "pipeline", "gateway"])
async def test_a_worker_without_its_role_is_told_so_at_its_start(binary: Path, start: Starter, role: Role) -> None:
    async with made(start(tcp=True, binary=binary), selectors=True) as place, place.bus(role) as bus:
        with pytest.raises(UnsuitableServer, match="a worker needs a user with the role worker: this one may not send HSET"):
            await bus.worker().start()
        assert {each[1] for each in await place.denied()} == {"{shop:0}:commands"}
