"""Clients of the health port cannot keep a probe from its answer, use up the worker's descriptors, or flood the log."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path

import pytest

from command_bus.telemetry import pages
from command_bus.telemetry.pages import Page, PageServer, text_page
from tests.telemetry.conftest import eventually, fetch

SILENT = """
import resource, socket, sys
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
port, count, said = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
held = []
for _ in range(count):
    connection = socket.create_connection(("127.0.0.1", port), 60)
    try:
        connection.sendall(said)
    except OSError:
        pass  # it was closed already
    held.append(connection)
print("there", flush=True)
sys.stdin.read()
"""


@pytest.fixture
async def port() -> AsyncIterator[int]:
    free = asyncio.Event()

    async def page(path: str) -> Page:
        if path == "/slow":
            await free.wait()
        return text_page(HTTPStatus.OK, "live")

    server = PageServer(page, host="127.0.0.1", port=0)
    yield await server.start()
    free.set()
    server.stop()


@contextmanager
def silent(port: int, count: int, said: str = "") -> Iterator[subprocess.Popen[str]]:
    """Start a process that opens connections, sends something on each, and holds them."""
    words = [sys.executable, "-c", SILENT, str(port), str(count), said]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def there(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"


def descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def enough_descriptors(count: int) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < count + 100:
        pytest.skip(f"a process may not open {count} connections here")


@pytest.mark.promise("Many connections fill the health port")
@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
@pytest.mark.parametrize("said", ["", "GET /healthz HT", "GET /slow HTTP/1.1\r\n\r\n"], ids=["silent", "half", "slow"])
async def test_a_probe_is_answered_behind_two_thousand_connections(
    port: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    enough_descriptors(2_000)
    before, most = descriptors(), 0
    with silent(port, 2_000, said) as process, caplog.at_level(logging.INFO):
        coming = asyncio.ensure_future(asyncio.to_thread(there, process))
        while not coming.done():  # in the midst of them, too
            assert (await fetch(port, "/healthz"))[:2] == (200, "live\n")
            most = max(most, descriptors() - before)
            await asyncio.sleep(0.05)
        await coming
        for _ in range(5):
            assert (await fetch(port, "/healthz"))[:2] == (200, "live\n")
        most = max(most, descriptors() - before)
    assert most < pages._AT_ONCE + 50
    assert [record for record in caplog.records if record.name != "command_bus.worker"] == []  # of another test's, on its way out


async def test_the_clock_runs_from_acceptance(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, those behind the first ones waited without a clock."""
    monkeypatch.setattr(pages, "_PATIENCE", 0.5)
    count = pages._AT_ONCE
    streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    began = time.monotonic()
    ends = await asyncio.gather(*(reader.read() for reader, _ in streams))
    assert ends == [b""] * count
    assert time.monotonic() - began < 0.5 * count / 4, "all at once, not some after others"
    for _, writer in streams:
        writer.close()


async def test_who_has_asked_is_closed_after_all_who_have_not() -> None:
    left, right = socket.socketpair()
    with left, right:
        visits = [pages._Visit(left, asked=True), pages._Visit(left), pages._Visit(right), pages._Visit(left, asked=True)]
        assert pages._choose_to_close(visits) is visits[1]
        visits[1].asked = visits[2].asked = True
        assert pages._choose_to_close(visits) is visits[0]


async def test_without_a_free_descriptor_it_says_so_once_and_goes_on(port: int, caplog: pytest.LogCaptureFixture) -> None:
    assert (await fetch(port, "/healthz"))[0] == 200
    probe = socket.socket()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        with caplog.at_level(logging.DEBUG):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 200), hard))
            with suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            probe.setblocking(False)
            await asyncio.get_running_loop().sock_connect(probe, ("127.0.0.1", port))
            probe.send(b"GET /healthz HTTP/1.1\r\n\r\n")

            async def warned() -> bool:
                return bool(caplog.records)

            assert await eventually(warned)
            await asyncio.sleep(1)
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert b"200 OK" in await asyncio.get_running_loop().sock_recv(probe, 1000)
    probe.close()
    assert [record.levelname for record in caplog.records if "probes cannot be answered" in record.getMessage()] == ["WARNING"]
    assert len(caplog.records) < 5


async def test_all_addresses_of_a_host_have_one_port() -> None:
    async def page(path: str) -> Page:
        return text_page(HTTPStatus.OK, path)

    server = PageServer(page, host="localhost", port=0)
    port = await server.start()
    addresses = {str(found[4][0]) for found in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM)}
    answered = 0
    for address in addresses:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(address, port)
            writer.write(b"GET /x HTTP/1.0\r\n\r\n")
            assert b"200 OK" in await reader.read()
            writer.close()
            answered += 1
    server.stop()
    assert answered >= 1
