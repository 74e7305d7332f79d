"""Tests as users write them, in a pytest of their own, beside a real server that must stay empty: web applications, blocking buses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from redis import Redis

from command_bus.embedded import EmbeddedServer
from tests.selection import quick

ROOT = Path(__file__).resolve().parents[2]
_INSTALLED = any(point.value == "command_bus.testing.plugin" for point in entry_points(group="pytest11"))
_LOADED = () if _INSTALLED else ("-p", "command_bus.testing.plugin")

_SHOP = """
from command_bus import Command, CommandBus, EntityId, HandlerRegistry, RetryPolicy, SyncCommandBus

registry = HandlerRegistry()
bus = CommandBus(registry=registry{options})  # COMMAND_BUS_URL names the real server
stock = {{}}


class Put(Command[int], entity="shelf"):
    shelf: EntityId
    pieces: int


class Flaky(Command[int], entity="shelf", retry=RetryPolicy(attempts=3, delay=60.0)):
    shelf: EntityId


@registry.handles(Put)
async def put(command: Put) -> int:
    stock[str(command.shelf)] = stock.get(str(command.shelf), 0) + command.pieces
    return stock[str(command.shelf)]


tries = []


@registry.handles(Flaky)
def flaky(command: Flaky) -> int:
    tries.append(1)
    if len(tries) % 3:
        raise OSError("not yet")
    return len(tries)
"""

_WEB = """
from fastapi import FastAPI

from command_bus.integrations.starlette import bus_lifespan, exception_handlers
from shop import Flaky, Put, bus

app = FastAPI(lifespan=bus_lifespan(bus), exception_handlers=exception_handlers())


@app.post("/put/{shelf}")
async def put(shelf: str) -> str:
    return (await bus.dispatch(Put(shelf=shelf, pieces=1))).status


@app.post("/call/{shelf}")
async def call(shelf: str) -> int:
    return await bus.call(Put(shelf=shelf, pieces=1))


@app.post("/flaky/{shelf}")
async def flaky(shelf: str) -> int:
    return await bus.call(Flaky(shelf=shelf), timeout=500)
"""

_HEAD = """
import asyncio, pytest
from fastapi.testclient import TestClient
from shop import Flaky, Put, bus, registry, stock
from web import app

@pytest.fixture(autouse=True)
def _empty():
    stock.clear()
"""

_NAMED = """
@pytest.fixture
def command_bus_app():
    return bus
"""

_WITH_CLIENT = """
def test_the_fixture_first(command_bus):
    with TestClient(app) as client:
        assert client.post("/put/a").json() == "accepted"
        assert client.post("/put/a").json() == "accepted"
        command_bus.assert_dispatched(Put, shelf="a", count=2)
        assert stock == {}
        command_bus.settle()
        assert stock == {"a": 2}
        assert client.post("/call/a").json() == 3
        assert client.post("/flaky/a").json() % 3 == 0  # two retries: two minutes, and more
    assert command_bus.replies[:3] == [1, 2, 3]


@pytest.mark.parametrize("time", [1, 2])
def test_a_client_twice_in_a_process(command_bus, time):
    for _ in range(2):
        with TestClient(app) as client:
            assert client.post("/put/a").json() == "accepted"
            assert client.post("/call/a").json() in (2, 4)
    command_bus.assert_replied(Put, 4, shelf="a")


@pytest.fixture
def client(command_bus):
    with TestClient(app) as client:
        yield client


def test_a_client_s_fixture(client, command_bus):
    assert client.post("/call/a").json() == 1
    command_bus.assert_dispatched(Put, shelf="a", count=1)


async def test_a_coroutine(command_bus):
    with TestClient(app) as client:
        assert client.post("/put/a").json() == "accepted"
        await command_bus.run_until_idle()
        assert stock == {"a": 1}
        assert client.post("/call/a").json() == 2  # this test's loop stands still meanwhile
        assert await command_bus.call(Put(shelf="a", pieces=1)) == 3
        assert client.post("/call/a").json() == 4
        await command_bus.dispatch(Put(shelf="a", pieces=1), delay=100)
        await command_bus.run_until_idle()
    assert stock == {"a": 5}


async def test_the_lifespan_within_the_test(command_bus):
    async with app.router.lifespan_context(app):
        await bus.dispatch(Put(shelf="a", pieces=1))
        assert await bus.call(Put(shelf="a", pieces=1)) == 2
        await command_bus.run_until_idle()
    async with app.router.lifespan_context(app):
        assert await bus.call(Put(shelf="a", pieces=1)) == 3
    assert await command_bus.call(Put(shelf="a", pieces=1)) == 4
"""

_BLOCKING = """
import pytest
from command_bus import BlockingCallWarning
from shop import Flaky, Put, SyncCommandBus, bus, registry, stock, tries

@pytest.fixture(autouse=True)
def _empty():
    stock.clear()
{named}

def test_a_blocking_bus(command_bus):
    with SyncCommandBus({arguments}) as blocking:
        assert blocking.dispatch(Put(shelf="a", pieces=1)).status == "accepted"
        assert stock == {{}}
        command_bus.assert_dispatched(Put, shelf="a")
        assert blocking.call(Put(shelf="a", pieces=1)) == 2
        assert blocking.call(Flaky(shelf="a"), timeout=400) == 3
        blocking.dispatch(Put(shelf="a", pieces=1), delay=30)
        command_bus.settle()
        assert stock == {{"a": 3}}


shared = SyncCommandBus({arguments})


@pytest.mark.parametrize("time", [1, 2])
def test_one_of_the_module(command_bus, time):
    assert shared.call(Put(shelf="a", pieces=1)) == 1
    command_bus.crash_after("handled", Put)
    assert shared.call(Put(shelf="b", pieces=1), timeout=200) == 2
    assert command_bus.crashed == 1


async def test_beside_a_loop(command_bus):
    with pytest.warns(BlockingCallWarning):
        made = SyncCommandBus({arguments})
    with made as blocking:
        assert blocking.call(Put(shelf="a", pieces=1)) == 1
        await command_bus.dispatch(Put(shelf="a", pieces=1))
        await command_bus.run_until_idle()
        assert blocking.call(Put(shelf="a", pieces=1)) == 3
"""

_TOO_LATE = """
@pytest.fixture
def client():
    with TestClient(app) as client:
        yield client

def test_the_lifespan_first(client, command_bus):
    client.post("/put/a")

def test_unnoticed(client, command_bus):
    try:
        client.post("/put/a")
    except Exception:
        pass

def test_without_it(client):
    assert client.get("/none").status_code == 404
"""


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start() as server:
        yield server


def run(folder: Path, server: EmbeddedServer, source: str, *, options: str = "") -> str:
    (folder / "shop.py").write_text(_SHOP.format(options=options))
    (folder / "web.py").write_text(_WEB)
    (folder / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *_LOADED]
    # of httpx, whose successor is not everywhere yet; a category would import starlette before the test runs
    command += ["-W", "ignore:Using `httpx` with", "-o", "asyncio_default_fixture_loop_scope=function"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "COMMAND_BUS_URL": server.url}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=55, check=False)
    return done.stdout + done.stderr


def assert_untouched(server: EmbeddedServer) -> None:
    with Redis.from_url(server.url) as client:
        assert client.keys("*") == []


@pytest.mark.parametrize("options", quick(["", ', namespace="shop", shards=3'], [""]), ids=["defaults", "settings"])
@pytest.mark.parametrize("named", quick([True, False], [False]), ids=["named", "found"])
def test_a_web_application(tmp_path: Path, server: EmbeddedServer, named: bool, options: str) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx")
    head = _HEAD + (_NAMED if named else "")
    if options and not named:  # the test's own bus is another then
        head += "\n@pytest.fixture\ndef command_bus_options():\n    return {'namespace': 'shop', 'shards': 3}\n"
    said = run(tmp_path, server, head + _WITH_CLIENT, options=options)
    assert "6 passed" in said, said
    assert_untouched(server)


@pytest.mark.parametrize("arguments", quick(["registry=registry", ""], ["registry=registry"]), ids=["registry", "none"])
@pytest.mark.parametrize("named", quick([True, False], [False]), ids=["named", "found"])
def test_a_blocking_bus(tmp_path: Path, server: EmbeddedServer, named: bool, arguments: str) -> None:
    registry_named = "\n@pytest.fixture\ndef command_bus_registry():\n    return registry\n"
    head = _NAMED if named else "" if arguments else registry_named
    said = run(tmp_path, server, _BLOCKING.format(named=head, arguments=arguments))
    assert "4 passed" in said, said
    assert_untouched(server)


@pytest.mark.parametrize("named", quick([True, False], [False]), ids=["named", "found"])
@pytest.mark.slow
def test_a_bus_that_was_open_before_is_refused(tmp_path: Path, server: EmbeddedServer, named: bool) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx")
    said = run(tmp_path, server, _HEAD + (_NAMED if named else "") + _TOO_LATE)
    assert "2 errors" in said, said
    assert "Let what opens it ask for `command_bus` first" in said
    with Redis.from_url(server.url) as client:
        assert client.keys("*:m:*") == []
        assert client.xlen("{command_bus:0}:ready") == 0


@pytest.mark.slow
def test_a_client_twice_without_the_fixture(tmp_path: Path, server: EmbeddedServer) -> None:
    """Over the real server: an application may start as often as its tests like."""
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx")
    source = """
@pytest.mark.parametrize("time", [1, 2])
def test_it(time):
    for _ in range(2):
        with TestClient(app) as client:
            assert client.post("/put/a").json() == "accepted"
"""
    said = run(tmp_path, server, _HEAD + source)
    assert "2 passed" in said, said
    with Redis.from_url(server.url) as client:
        assert client.xlen("{command_bus:0}:m:shelf:a") == 4
