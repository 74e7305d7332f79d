"""The tools that inject faults: a fault that does nothing would prove nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis import Redis

from tests.chaos.preload import Clock, compiled, cut_to_synced
from tests.chaos.proxy import Mode, Proxy
from tests.chaos.servers import Single, start


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    open_now: set[asyncio.StreamWriter] = set()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_now.add(writer)
        with contextlib.suppress(OSError):
            while data := await reader.read(100):
                writer.write(data)
        writer.transport.abort()
        open_now.discard(writer)

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    proxy = Proxy(server.sockets[0].getsockname()[:2])
    await proxy.start()
    yield proxy
    await proxy.stop()
    server.close()
    while open_now:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0)  # what was aborted is closed in the next turn of the loop


async def said(proxy: Proxy, patience: float = 5.0) -> bytes:
    """Send a request on a new connection; return the answer up to five bytes or the end of the connection."""
    host, _, port = proxy.url.removeprefix("redis://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    heard = b""
    try:
        writer.write(b"hello")
        async with asyncio.timeout(patience):
            while len(heard) < 5 and (data := await reader.read(100)):
                heard += data
    except ConnectionResetError:
        pass
    finally:
        writer.transport.abort()
    return heard


@pytest.mark.parametrize(
    ("mode", "amount", "heard"),
    [("pass", 0, b"hello"), ("cut_reply", 0, b""), ("chop", 2, b"he"), ("refuse", 0, b""), ("delay", 0.01, b"hello")],
)
async def test_the_proxy_does_as_it_is_told(proxy: Proxy, mode: Mode, amount: float, heard: bytes) -> None:
    proxy.set(mode, amount)
    assert await said(proxy) == heard
    proxy.set("pass")
    assert await said(proxy) == b"hello"


@pytest.mark.parametrize("mode", ["blackhole", "blackhole_reply"])
async def test_what_the_proxy_holds_back_arrives_late(proxy: Proxy, mode: Mode) -> None:
    proxy.set(mode)
    with pytest.raises(TimeoutError):
        await said(proxy, patience=0.1)
    waiting = asyncio.create_task(said(proxy))
    _, pending = await asyncio.wait({waiting}, timeout=0.1)
    assert pending
    proxy.set("pass")
    assert await waiting == b"hello"


async def test_a_reset_ends_what_is_open(proxy: Proxy) -> None:
    proxy.set("blackhole_reply")
    waiting = asyncio.create_task(said(proxy))
    while not proxy._writers:
        await asyncio.sleep(0.01)
    proxy.reset()
    assert await waiting == b""


def needs_compiler(name: str, folder: Path) -> Path:
    return compiled(name, folder) or pytest.skip("there is no C compiler here")


def test_a_clock_step_moves_the_wall_clock_alone(tmp_path: Path) -> None:
    clock = Clock(needs_compiler("clock", tmp_path), tmp_path / "offset")
    clock.step(-3600.0)
    told = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time(), time.monotonic())"],
        env={**os.environ, **clock.environment},
        capture_output=True,
        text=True,
        check=True,
    )
    wall, mono = map(float, told.stdout.split())
    assert -3700 < wall - time.time() < -3590
    assert abs(mono - time.monotonic()) < 60


@pytest.mark.server
async def test_a_power_loss_takes_what_was_not_synced(tmp_path: Path) -> None:
    needs_compiler("power", tmp_path)
    target = start("valkey", "always", tmp_path)
    assert isinstance(target, Single)
    try:
        with Redis.from_url(target.url) as client:
            client.set("kept", "1")
        await target.kill(power=True)
        (log,) = target._data.rglob("*.incr.aof")
        size = log.stat().st_size
        assert size > 0, "what was acknowledged had been synced"
        with log.open("ab") as file:
            file.write(b"*3\r\n")
        assert cut_to_synced(target._data) == 4
        assert log.stat().st_size == size
        await target.revive()
        with Redis.from_url(target.url) as client:
            assert client.get("kept") == b"1"
    finally:
        await target.stop()
