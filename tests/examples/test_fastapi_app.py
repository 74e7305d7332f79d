"""The FastAPI example: through its ASGI interface over the server in memory, and once as real processes over a real server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")

from command_bus import CommandBus  # noqa: E402
from command_bus.embedded import EmbeddedServer  # noqa: E402
from command_bus.testing import CRASH_POINTS, CrashPoint, TestBus  # noqa: E402
from examples.fastapi_app.accounts import Deposit, Withdraw, registry_for  # noqa: E402
from examples.fastapi_app.app import make_app  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def command_bus_app(tmp_path: Path) -> CommandBus:
    return CommandBus("redis://unused", registry=registry_for(tmp_path / "accounts.db"))


@pytest.fixture
async def client(command_bus: TestBus, command_bus_app: CommandBus) -> AsyncIterator[Any]:
    app = make_app(command_bus_app)
    await command_bus.run_until_idle()
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://app") as client:
        yield client


async def test_deposits_and_withdrawals(client: Any, command_bus: TestBus) -> None:
    accepted = await client.post("/accounts/a-1/deposits", json={"amount": 10})
    assert (accepted.status_code, accepted.json()["status"]) == (202, "accepted")
    command_bus.assert_dispatched(Deposit, account_id="a-1", amount=10)
    assert (await client.post("/accounts/a-1/withdrawals", json={"amount": 4})).json() == {"balance": 6}
    assert (await client.get("/accounts/a-1")).json() == {"balance": 6}


async def test_a_repeated_key_is_carried_out_once(client: Any) -> None:
    await client.post("/accounts/a-1/deposits", json={"amount": 10}, headers={"Idempotency-Key": "d-1"})
    again = await client.post("/accounts/a-1/deposits", json={"amount": 10}, headers={"Idempotency-Key": "d-1"})
    assert again.json() == {"command_id": "d-1", "status": "duplicate"}
    answers = [
        (await client.post("/accounts/a-1/withdrawals", json={"amount": 4}, headers={"Idempotency-Key": "w-1"})).json()
        for _ in range(2)
    ]
    assert answers == [{"balance": 6}, {"balance": 6}]
    other = await client.post("/accounts/a-1/withdrawals", json={"amount": 5}, headers={"Idempotency-Key": "w-1"})
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")


async def test_a_refusal_is_an_answer(client: Any, command_bus: TestBus) -> None:
    refused = await client.post("/accounts/a-1/withdrawals", json={"amount": 4})
    assert refused.status_code == 409
    assert refused.json() == {"code": "insufficient_funds", "message": "insufficient funds", "details": {"short": 4}}
    wrong = await client.post("/accounts/a-1/withdrawals", json={"amount": -4})
    assert wrong.status_code == 422
    command_bus.assert_not_dispatched(Withdraw, amount=-4)


async def test_a_full_line_says_when_to_come_again(client: Any, command_bus: TestBus) -> None:
    await command_bus.bus.entity("account", "a-1").pause()
    await command_bus.dispatch_batch(Deposit(account_id="a-1", amount=1) for _ in range(10_000))
    full = await client.post("/accounts/a-1/deposits", json={"amount": 1})
    assert (full.status_code, full.json()["code"]) == (503, "queue_full")
    assert int(full.headers["Retry-After"]) >= 1


@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_the_handlers_bear_crashes(command_bus: TestBus, point: CrashPoint) -> None:
    command_bus.crash_after(point, Deposit)
    await command_bus.dispatch(Deposit(account_id="a-1", amount=10))
    assert await command_bus.call(Withdraw(account_id="a-1", amount=4), timeout=120) == 6
    assert command_bus.crashed == 1


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def running(tmp_path: Path, port: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    pytest.importorskip("uvicorn")
    with EmbeddedServer.start() as server:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "COMMAND_BUS_URL": server.url, "ACCOUNTS_DB": str(tmp_path / "db")}
        programs = (
            ["uvicorn", "examples.fastapi_app.app:app", "--port", str(port)],
            ["command_bus", "worker", "examples.fastapi_app.app:bus"],
        )
        processes = [subprocess.Popen([sys.executable, "-m", *program], cwd=tmp_path, env=environment) for program in programs]
        yield processes
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait(20)


@pytest.mark.server
def test_uvicorn_and_a_worker_over_a_real_server(running: list[subprocess.Popen[bytes]], port: int) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
        end = time.monotonic() + 20
        while True:
            try:
                client.post("/accounts/a-1/deposits", json={"amount": 10})
                break
            except httpx.ConnectError:
                assert time.monotonic() < end, "uvicorn did not start"
                time.sleep(0.05)
        assert client.post("/accounts/a-1/withdrawals", json={"amount": 4}).json() == {"balance": 6}
        assert client.get("/accounts/a-1").json() == {"balance": 6}
    assert all(process.poll() is None for process in running)
