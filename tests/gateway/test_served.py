"""The gateway as a program, `command-bus serve`, on real sockets: slow and cut connections, a server that stops."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from command_bus import CommandBus
from command_bus.embedded import EmbeddedServer
from command_bus.gateway import hash_token
from tests.gateway.bank import TOKENS, open_bank
from tests.gateway.conftest import fresh
from tests.program import run_program

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="module")]
ROOT = Path(__file__).parents[2]
HEAD = (
    f"POST /commands/Deposit HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKENS['ops']}\r\nContent-Type: application/json\r\n"
)
AUTH = {"Authorization": f"Bearer {TOKENS['ops']}"}


@asynccontextmanager
async def served(url: str, namespace: str, folder: Path, *arguments: str, limits: str = "pass") -> AsyncGenerator[str]:
    """Yield the address of a served gateway, which then ends by Ctrl-C. `limits` changes those of `serving`."""
    file = folder / "tokens.toml"
    file.write_text(f'[ops]\ntoken = "{hash_token(TOKENS["ops"])}"\nrights = ["*"]\n')
    started = ["-c", f"from command_bus.integrations import serving; {limits}; from command_bus.cli import main; main()"]
    command = [sys.executable, *started, "serve", "--port", "0", "--tokens", str(file), "--url", url, "-n", namespace]
    with subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True, cwd=ROOT) as program:
        try:
            assert program.stderr is not None
            found = re.search(r"http://\S+", await asyncio.to_thread(program.stderr.readline))
            assert found is not None
            yield found[0]
        finally:
            program.send_signal(signal.SIGINT)
            code = await asyncio.to_thread(program.wait, 10)
        assert code == 0


async def test_it_is_served_and_ends_by_ctrl_c(bus: CommandBus, tmp_path: Path) -> None:
    async with (
        served(bus.url, bus.settings.namespace, tmp_path) as url,
        httpx.AsyncClient(base_url=url, headers=AUTH, trust_env=False) as client,
    ):
        answer = await client.post("/commands/Deposit", json={"account_id": fresh(), "amount": 5}, headers={"Prefer": "wait=5"})
        assert (answer.status_code, answer.json()["reply"], "server" in answer.headers) == (200, 5, False)
        assert (await client.get("/", headers={"Authorization": "Bearer other"})).status_code == 401


async def test_it_is_served_below_a_prefix(bus: CommandBus, tmp_path: Path) -> None:
    async with (
        served(bus.url, bus.settings.namespace, tmp_path, "--prefix", "/bus", "--proxy", "127.0.0.1") as url,
        httpx.AsyncClient(headers=AUTH, trust_env=False) as client,
    ):
        assert url.endswith("/bus")
        origin = url.removesuffix("/bus")
        for base, told, root in (
            (url, {}, "/bus"),
            (origin, {}, "/bus"),
            (origin, {"X-Forwarded-Prefix": "/api/bus"}, "/api/bus"),
        ):
            described = await client.get(f"{base}/openapi.json", headers=told)
            assert (described.status_code, described.json()["servers"]) == (200, [{"url": root}])


async def test_with_an_application_its_classes_check(bus: CommandBus, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from command_bus import Command, CommandBus, EntityId, handles\n"
        "class Paint(Command[str], entity='wall'):\n    wall: EntityId\n    colour: str\n"
        "@handles(Paint)\nasync def paint(command: Paint) -> str:\n    return command.colour\n"
        f"bus = CommandBus({bus.url!r}, namespace={bus.settings.namespace!r})\n"
    )
    file = tmp_path / "tokens.toml"
    file.write_text(f'[ops]\ntoken = "{hash_token(TOKENS["ops"])}"\nrights = ["*"]\n')
    command = [sys.executable, "-m", "command_bus", "serve", "--port", "0", "--tokens", str(file), "--app", "shop"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}) as program:
        try:
            assert program.stderr is not None
            found = re.search(r"http://\S+", await asyncio.to_thread(program.stderr.readline))
            assert found is not None
            async with httpx.AsyncClient(base_url=found[0], headers=AUTH, trust_env=False) as client:
                answer = await client.post("/commands/Paint", json={"wall": "w", "colour": 7})
                assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "colour")
        finally:
            program.send_signal(signal.SIGTERM)
        await asyncio.to_thread(program.wait, 10)


async def test_147_slow_and_cut_connections_hold_up_no_one(bus: CommandBus, tmp_path: Path) -> None:
    async with served(bus.url, bus.settings.namespace, tmp_path) as url:
        host, port = url.removeprefix("http://").split(":")
        slow = [await asyncio.open_connection(host, int(port)) for _ in range(50)]
        for number, (_, writer) in enumerate(slow):
            writer.write(f"{HEAD}Content-Length: 1000\r\n\r\n{{".encode())
            if number % 2:
                writer.transport.abort()
        async with httpx.AsyncClient(base_url=url, headers=AUTH, trust_env=False) as client:
            for _ in range(20):
                answer = await client.post("/commands/Deposit", json={"account_id": fresh(), "amount": 1}, timeout=5)
                assert answer.status_code == 202
        for _, writer in slow:
            writer.transport.abort()
        # A client that goes before its reply: the command runs all the same.
        account, body = fresh(), b""
        body = json.dumps({"account_id": account, "amount": 3}).encode()
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"{HEAD}Prefer: wait=5\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()
        async with asyncio.timeout(10), httpx.AsyncClient(base_url=url, headers=AUTH, trust_env=False) as client:
            while (await client.post("/commands/GetBalance", json={"account_id": account})).json()["reply"] != 3:
                await asyncio.sleep(0.02)


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Return what still comes; what was written to a connection that the server had closed resets it."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def test_147_silent_connections_shut_out_no_one_for_long(bus: CommandBus, tmp_path: Path) -> None:
    lowered = "serving.MOST_AT_ONCE, serving._SPARE, serving.HEAD_TIMEOUT = 20, 4, 3"
    async with served(bus.url, bus.settings.namespace, tmp_path, limits=lowered) as url:
        host, port = url.removeprefix("http://").split(":")

        async def asked(client: httpx.AsyncClient) -> int:
            return (await client.get("/openapi.json", timeout=5)).status_code

        async with httpx.AsyncClient(base_url=url, headers=AUTH, trust_env=False) as kept:
            assert await asked(kept) == 200
            silent = [await asyncio.open_connection(host, int(port)) for _ in range(30)]
            silent[0][1].write(HEAD.encode())  # without its end
            async with httpx.AsyncClient(base_url=url, headers=AUTH, trust_env=False) as other:
                assert await asked(other) == 200, "the one goes that was silent for longest"
            async with asyncio.timeout(8):
                assert not any([await rest(reader) for reader, _ in silent])
            async with httpx.AsyncClient(base_url=url, headers=AUTH, trust_env=False) as other:
                assert await asked(other) == 200
            assert await asked(kept) == 200, "a connection that has asked is kept"
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"401" in await reader.readline()
            writer.write(b"GET /openapi.js")  # the head of a second request, and no more of it
            async with asyncio.timeout(8):
                await rest(reader)
            silent.append((reader, writer))
        for _, writer in silent:
            writer.close()


async def test_147_answers_that_are_not_read_shut_out_no_one(bus: CommandBus, tmp_path: Path) -> None:
    """Without a token: each asks much at once, and reads nothing. In the end they are cut off, also those that were closed before."""
    lowered = "serving.MOST_AT_ONCE, serving._SPARE, serving._IDLE, serving.UNREAD_TIMEOUT = 20, 4, 1, 2; serving.socket = small_buffers"
    limits = f"from tests.gateway import small_buffers; {lowered}"
    async with served(bus.url, bus.settings.namespace, tmp_path, limits=limits) as url:
        host, port = url.removeprefix("http://").split(":")
        unread = [socket.socket() for _ in range(24)]
        for number, each in enumerate(unread):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            each.connect((host, int(port)))
            each.setblocking(False)
            each.send(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * (500 if number % 2 else 100))
        await asyncio.sleep(1.5)  # what their buffers hold is answered, and idle ones are closed
        for path in ("/healthz", "/openapi.json"):
            async with asyncio.timeout(8), httpx.AsyncClient(base_url=url, headers=AUTH, trust_env=False) as client:
                while await _asked(client, path) != 200:
                    await asyncio.sleep(0.1)
        for each in unread:
            each.close()


async def _asked(client: httpx.AsyncClient, path: str, header: str = "") -> int:
    try:
        return (await client.get(path, timeout=5, headers={"X-Command-A": header})).status_code
    except httpx.TransportError:
        return 0


async def test_who_keeps_all_connections_by_probes_shuts_out_no_one(bus: CommandBus, tmp_path: Path) -> None:
    """Each asks once in a while, so none is silent: the idlest goes."""
    lowered = "serving.MOST_AT_ONCE, serving._SPARE = 20, 4"
    async with served(bus.url, bus.settings.namespace, tmp_path, limits=lowered) as url:
        host, port = url.removeprefix("http://").split(":")
        kept = []
        for _ in range(60):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200" in await asyncio.wait_for(reader.readline(), 5)
            kept.append((reader, writer))
        for reader, _ in kept[:30]:  # those that have asked last stay
            await asyncio.wait_for(reader.read(), 5)
        async with httpx.AsyncClient(base_url=url, headers=AUTH, trust_env=False) as client:
            for path in ("/healthz", "/openapi.json"):
                assert (await client.get(path, timeout=5)).status_code == 200
        for _, writer in kept:
            writer.transport.abort()


async def test_a_probe_is_answered_beside_all_that_wait(bus: CommandBus, tmp_path: Path) -> None:
    lowered = "serving.MOST_AT_ONCE, serving._SPARE = 2, 4"
    async with (
        served(bus.url, bus.settings.namespace, tmp_path, limits=lowered) as url,
        httpx.AsyncClient(base_url=url, headers=AUTH, trust_env=False, timeout=10) as client,
    ):
        waiting = [
            asyncio.ensure_future(
                client.post("/commands/Held?delay=600", json={"hold_id": fresh()}, headers={"Idempotency-Key": fresh()})
            )
            for _ in range(2)
        ]
        held = [(await each).json()["command_id"] for each in waiting]
        waits = [asyncio.ensure_future(client.get(f"/commands/{each}", params={"wait": 3})) for each in held]
        await asyncio.sleep(0.5)
        answers = [(await client.get(path)).status_code for path in ("/healthz", "/openapi.json")]
        assert answers == [200, 503]
        assert {(await each).status_code for each in waits} == {200}
        assert (await client.get("/openapi.json")).status_code == 200
        for each in held:
            await bus.cancel(each)


async def test_151_smuggled_headers_are_refused(bus: CommandBus, tmp_path: Path) -> None:
    async with served(bus.url, bus.settings.namespace, tmp_path) as url:
        host, port = url.removeprefix("http://").split(":")
        for lines in (
            "Idempotency-Key: a\nX-Evil: 1", "Idempotency-Key: a\x00b", "Content-Length: 5\r\nContent-Length: 6",
            "Transfer-Encoding: chunked\r\nContent-Length: 4", f"X-Command-A: {'x' * 100_000}",
        ):  # fmt: skip
            reader, writer = await asyncio.open_connection(host, int(port))
            body = "5\r\n{}   \r\n0\r\n\r\n"
            writer.write(f"{HEAD}{lines}\r\n\r\n{body}".encode())
            answer = await asyncio.wait_for(reader.read(65536), 10)
            assert answer.split(b" ", 2)[1][:1] == b"4", answer
            assert b"X-Evil" not in answer
            writer.transport.abort()


async def test_151_headers_have_a_limit_whatever_is_installed(bus: CommandBus, tmp_path: Path) -> None:
    """uvicorn prefers httptools where it finds it, which keeps any amount of headers: gigabytes, of one connection without a token."""
    there = "import sys, types; sys.modules['httptools'] = types.ModuleType('httptools')"
    async with (
        served(bus.url, bus.settings.namespace, tmp_path, limits=there) as url,
        httpx.AsyncClient(base_url=url, headers=AUTH, trust_env=False) as client,
    ):
        assert await _asked(client, "/openapi.json", "x" * 30_000) == 200
        assert await _asked(client, "/openapi.json", "x" * 100_000) in (400, 0)  # cut off while it sends


async def test_149_a_server_that_stops_is_503_until_it_is_back(tmp_path: Path) -> None:
    ask: dict[str, Any] = {"json": {"account_id": "a", "amount": 1}}
    with EmbeddedServer.start() as server:
        async with (
            open_bank(server.url, "stopped"),
            served(server.url, "stopped", tmp_path) as url,
            httpx.AsyncClient(base_url=url, headers=AUTH, trust_env=False, timeout=30) as client,
        ):
            assert (await client.post("/commands/Deposit", **ask)).status_code == 202
            os.kill(server.pid, signal.SIGSTOP)
            try:
                answer = await client.post("/commands/Deposit", **ask)
                assert (answer.status_code, answer.json()["code"]) == (503, "transport_unavailable")
                assert int(answer.headers["retry-after"]) >= 1
            finally:
                os.kill(server.pid, signal.SIGCONT)
            assert (await client.post("/commands/Deposit", **ask)).status_code == 202


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ((), "--tokens"),
        (("--tokens", "none.toml"), "cannot be read"),
        (("--tokens", "empty.toml"), "name at least one"),
        (("--tokens", "good.toml", "--port", "99999"), "--port"),
    ],
)
async def test_142_it_starts_for_nobody_without_tokens(tmp_path: Path, arguments: tuple[str, ...], advice: str) -> None:
    (tmp_path / "empty.toml").write_text("")
    done = run_program("serve", *arguments, "--url", "redis://127.0.0.1:1", cwd=tmp_path)
    assert done.returncode == 2
    assert advice in done.stderr
    assert "Traceback" not in done.stderr


async def test_a_token_is_made_with_its_hash() -> None:
    made = json.loads(run_program("token", "--json").stdout)
    assert hash_token(made["token"]) == made["hash"]
    shown = run_program("token").stdout.split()
    assert (shown[0], shown[2], hash_token(shown[1])) == ("token", "hash", shown[3])
