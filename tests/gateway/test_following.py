"""Events and progress as they happen: order, resuming, slow and cut clients, a thousand of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
import uvicorn

from command_bus import CommandBus
from command_bus.gateway import Gateway, Grant, following, gateway, hubs, new_token, tokens
from tests.gateway.bank import TOKENS, Bank, allowed, token_of
from tests.gateway.conftest import Client, fresh

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="module")]


class Stream:
    """A stream that an ASGI application sends, message by message."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.gone = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.reads.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self._parts.put_nowait(message["body"])
            if not message.get("more_body"):
                self._parts.put_nowait(None)

    async def part(self) -> bytes | None:
        async with asyncio.timeout(10):
            return await self._parts.get()

    async def message(self) -> dict[str, Any]:
        """Return the next message; its fields `id`, `event` and `data`."""
        while True:
            part = await self.part()
            assert part is not None, "the stream has ended"
            found: dict[str, Any] = dict(line.split(": ", 1) for line in part.decode().strip().splitlines() if line[0] != ":")
            if "data" in found:
                return {**found, "data": json.loads(found["data"])}

    async def messages(self, count: int) -> list[dict[str, Any]]:
        return [await self.message() for _ in range(count)]


@asynccontextmanager
async def listening(app: Any, path: str, name: str = "ops", **headers: str) -> AsyncGenerator[Stream]:
    stream, (address, _, query) = Stream(), path.partition("?")
    given = {"authorization": f"Bearer {token_of(name)}", **headers}
    raw = [(name.encode(), value.encode()) for name, value in given.items()]
    scope = {
        "type": "http",
        "method": "GET",
        "path": address,
        "raw_path": address.encode(),
        "query_string": query.encode(),
        "headers": raw,
    }
    task = asyncio.create_task(app(scope, stream.receive, stream.send))
    try:
        head = await stream.part()
        assert stream.status != 200 or head == b"retry: 3000\n\n"
        yield stream
    finally:
        stream.gone.set()
        stream.reads.set()
        async with asyncio.timeout(10):
            await task


@pytest_asyncio.fixture(loop_scope="module", scope="module", autouse=True)
async def _watched(opened: tuple[CommandBus, Bank]) -> None:
    await opened[0].events.watch()


async def test_events_come_as_they_happen(app: Gateway, ops: Client) -> None:
    account, key = fresh(), fresh("ops:key")
    async with listening(app, "/events?type=account&kind=accepted&kind=completed") as stream:
        assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        body = {"json": {"account_id": account, "amount": 5}}
        await ops.ask("POST", "/commands/Deposit", **body, headers={"Idempotency-Key": key[4:]})
        accepted, completed = await stream.messages(2)
    assert [each["data"]["kind"] for each in (accepted, completed)] == ["accepted", "completed"]
    assert (completed["data"]["command_id"], completed["data"]["entity"], completed["data"]["name"]) == (
        key,
        f"account:{account}",
        "Deposit",
    )
    assert "cursor" not in completed["data"]
    assert app.state.streams_of.total() == 0
    assert not app.state.hub.listeners


async def test_one_goes_on_behind_the_last_event(app: Gateway, ops: Client) -> None:
    accounts = [fresh() for _ in range(5)]
    async with listening(app, "/events?kind=completed") as stream:
        for account in accounts[:3]:
            await ops.call("Deposit", account_id=account, amount=1)
        first = (await stream.messages(3))[0]
    assert first["data"]["entity_id"] == accounts[0]
    async with listening(app, "/events?kind=completed", **{"last-event-id": first["id"]}) as stream:
        for account in accounts[3:]:
            await ops.call("Deposit", account_id=account, amount=1)
        assert [each["data"]["entity_id"] for each in await stream.messages(4)] == accounts[1:]


async def test_nothing_is_lost_or_doubled_while_one_joins(app: Gateway, bus: CommandBus) -> None:
    """Clients join again and again behind their last event, while another has the hub read and commands come."""
    total, account = 300, fresh()

    async def send() -> None:
        for number in range(total):
            await bus.dispatch_raw("account", account, "Deposit", {"account_id": account, "amount": number + 1})
            await asyncio.sleep(0.001)

    seen: list[str] = []
    after = await bus.events.cursor()
    async with listening(app, "/events") as other:
        sending = asyncio.create_task(send())
        ids: list[str] = []
        while len(seen) < total:
            async with listening(app, "/events?type=account&kind=accepted", **{"last-event-id": after}) as stream:
                for _ in range(min(17, total - len(seen))):
                    message = await stream.message()
                    seen.append(message["data"]["command_id"])
                    after = message["id"]
                    ids.append(after)
        await sending
        assert other.status == 200
    assert len(set(seen)) == total == len(seen)


async def test_all_that_is_kept(app: Gateway, ops: Client) -> None:
    account = fresh()
    await ops.call("Deposit", account_id=account, amount=1)
    async with listening(app, "/events?after=&kind=completed&type=account") as stream:
        while (await stream.message())["data"]["entity_id"] != account:
            pass


async def test_what_is_trimmed_is_told_as_a_gap(app: Gateway) -> None:
    async with listening(app, "/events", **{"last-event-id": "1-1,1-1"}) as stream:
        assert await stream.message() == {"event": "gap", "data": {"missed": None}}


async def test_a_slow_client_is_told_what_it_missed(app: Gateway, bus: CommandBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "_MOST", 5)
    async with (
        listening(app, "/events?kind=accepted&type=account") as slow,
        listening(app, "/events?kind=accepted&type=account") as quick,
    ):
        slow.reads.clear()
        for number in range(20):
            await bus.dispatch_raw("account", f"slow-{number}", "Deposit", {"account_id": f"slow-{number}", "amount": 1})
            assert (await quick.message())["data"]["entity_id"] == f"slow-{number}"  # it is not held up
        slow.reads.set()
        found = await slow.messages(7)
    gap = next(number for number, each in enumerate(found) if each.get("event") == "gap")
    assert found[gap]["data"]["missed"] + len(found) - 1 == 20
    assert found[-1]["data"]["entity_id"] == "slow-19"


async def test_a_quiet_stream_says_that_it_is_open(app: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_QUIET", 0.02)
    async with listening(app, "/events?kind=triggered") as stream:
        assert [await stream.part() for _ in range(3)] == [b": quiet\n\n"] * 3


async def test_a_client_that_reads_nothing_is_left(app: Gateway, bus: CommandBus, monkeypatch: pytest.MonkeyPatch) -> None:
    from command_bus.gateway import following as event_stream

    monkeypatch.setattr(event_stream, "_PATIENCE", 0.05)
    async with listening(app, "/events?kind=accepted") as stream:
        stream.reads.clear()
        await bus.dispatch_raw("account", "stuck", "Deposit", {"account_id": "stuck", "amount": 1})
        async with asyncio.timeout(5):
            while app.state.streams_of.total():
                await asyncio.sleep(0.01)


async def test_progress_until_the_end(app: Gateway, ops: Client) -> None:
    key = fresh("ops:key")
    await ops.ask("POST", "/commands/Audit", json={"account_id": fresh(), "pages": 3}, headers={"Idempotency-Key": key[4:]})
    async with listening(app, f"/commands/{key}/progress", "looker") as stream:
        told: list[Any] = []
        while not told or told[-1].get("event") != "end":
            told.append(await stream.message())
        assert await stream.part() == b""
        assert await stream.part() is None
    shares = [each["data"]["share"] for each in told]
    assert shares == sorted(shares)
    assert [each["data"]["outcome"] for each in told] == [*[""] * (len(told) - 1), "completed"]
    assert told[0]["data"]["note"].startswith("page")


async def test_progress_of_what_has_ended(app: Gateway, ops: Client) -> None:
    key = fresh("ops:key")
    await ops.ask(
        "POST",
        "/commands/Deposit",
        json={"account_id": fresh(), "amount": 3},
        headers={"Idempotency-Key": key[4:], "Prefer": "wait=5"},
    )
    async with listening(app, f"/commands/{key}/progress") as stream:
        assert (await stream.message())["data"]["outcome"] == "completed"


async def test_those_who_follow_a_command_share_one_reader(bus: CommandBus, ops: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    app, key, hold = gateway(bus, allow=allowed(), max_streams_each=50), fresh("ops:key"), fresh("hold")
    read: list[str] = []
    follow = bus.commands.progress

    def counted(command_id: str) -> Any:
        read.append(command_id)
        return follow(command_id)

    monkeypatch.setattr(type(bus.commands), "progress", lambda _, command_id: counted(command_id))
    await ops.ask("POST", "/commands/Held", json={"hold_id": hold}, headers={"Idempotency-Key": key[4:]})
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(listening(app, f"/commands/{key}/progress")) for _ in range(20)]
        async with listening(app, f"/commands/{key}/progress"):
            pass  # one that goes leaves it to the others
        assert await bus.cancel(key, running=True)
        assert {(await stream.message())["data"]["outcome"] for stream in streams} == {"cancelled"}
    assert (read, len(app.state.progress.courses), app.state.streams_of.total()) == ([key], 0, 0)


@pytest.mark.parametrize(
    ("path", "status", "advice"),
    [
        ("/events?after=nonsense", 400, "cursor"),
        ("/events?after=1-1", 400, "cursor"),
        ("/events?kind=complete", 400, "did you mean 'completed'"),
        ("/events?type=no+type!", 422, "entity type"),
        ("/events?kinds=completed", 400, "did you mean 'kind'"),
        ("/commands/nothing/progress", 404, "nothing"),
        ("/commands/nothing/progress?x=1", 400, "not known"),
    ],
)
async def test_154_a_stream_that_cannot_begin_is_a_problem(ops: Client, path: str, status: int, advice: str) -> None:
    answer = await ops.ask("GET", path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert advice in answer.json()["detail"]
    assert ops.app.state.streams_of.total() == 0


async def test_154_too_many_streams_are_503(bus: CommandBus) -> None:
    app = gateway(bus, allow=allowed(), max_streams=2)
    async with listening(app, "/events", "hearer"):
        async with listening(app, "/events"):
            answer = await Client(app).ask("GET", "/events")
            assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "too_many_streams", "30")
        async with listening(app, "/events") as stream:
            assert stream.status == 200


async def test_154_one_token_does_not_take_all_streams(bus: CommandBus) -> None:
    app = gateway(bus, allow=allowed(), max_streams=8)
    paths = []
    for _ in range(3):
        key = fresh("ops:key")
        await Client(app).ask("POST", "/commands/Held?delay=600", json={"hold_id": fresh()}, headers={"Idempotency-Key": key[4:]})
        paths.append(f"/commands/{key}/progress")
    async with listening(app, "/events"):
        async with listening(app, paths[0]):
            for path in (paths[1], "/events"):
                answer = await Client(app).ask("GET", path)
                assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (
                    429,
                    "too_many_streams",
                    "30",
                )
            async with listening(app, paths[1], "looker") as stream:
                assert stream.status == 200, "another token has its own"
        async with listening(app, paths[2]) as stream:
            assert stream.status == 200
    assert app.state.streams_of.total() == 0
    app = gateway(bus, allow=allowed(), max_streams=8, max_streams_each=1)
    async with listening(app, "/events"):
        assert (await Client(app).ask("GET", "/events")).status_code == 429


@pytest.mark.parametrize(
    ("name", "path"), [("looker", "/events"), ("ci", "/commands/x/progress"), ("hearer", "/commands/x/progress")]
)
async def test_141_streams_want_their_right(app: Gateway, name: str, path: str) -> None:
    answer = await Client(app, name).ask("GET", path)
    assert (answer.status_code, answer.json()["right"]) == (403, "events" if path == "/events" else "look")


async def test_a_thousand_clients_hear_the_same(bus: CommandBus) -> None:
    """On real sockets; half of them are cut, and those that stay hear all."""
    app = gateway(bus, allow=allowed(), max_streams_each=1000)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve())
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        ask = f"GET /events?kind=accepted&type=account HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKENS['hearer']}\r\n\r\n".encode()

        async def one() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(ask)
            await reader.readuntil(b"retry: 3000\n\n")
            return reader, writer

        clients = [pair for _ in range(10) for pair in await asyncio.gather(*(one() for _ in range(100)))]
        assert (app.state.streams_of.total(), len(app.state.hub.listeners)) == (1000, 1000)
        for _, writer in clients[:500]:
            writer.transport.abort()
        await bus.dispatch_raw("account", "thousand", "Deposit", {"account_id": "thousand", "amount": 1})
        heard = await asyncio.gather(*(asyncio.wait_for(reader.readuntil(b"}\n\n"), 20) for reader, _ in clients[500:]))
        assert all(b'"entity_id":"thousand"' in each for each in heard)
        async with asyncio.timeout(10):
            while app.state.streams_of.total() > 500:
                await asyncio.sleep(0.01)
        for _, writer in clients:
            writer.transport.abort()
    finally:
        server.should_exit = True
        await serving
    assert app.state.streams_of.total() == 0


async def test_a_stream_ends_with_the_right_to_it(bus: CommandBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_QUIET", 0.02)
    app = gateway(bus, allow=allowed())
    async with listening(app, "/events") as stream:
        assert await stream.part() == b": quiet\n\n"
        monkeypatch.setattr(app.state, "allow", tokens({"other": Grant(new_token(), ("*",))}))
        while (part := await stream.part()) == b": quiet\n\n":
            pass
        assert part == b""
    assert app.state.streams_of.total() == 0
