"""Notifications of a service to systemd, over a real socket."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_bus.cli.process.systemd import notify_systemd


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, str]]:
    """Provide a socket in systemd's place, and its name as systemd writes it."""
    with tempfile.TemporaryDirectory(prefix="cb-") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        name = str(Path(folder) / "notify") if request.param == "path" else f"@command-bus-{secrets.token_hex(8)}"
        listening.bind(f"\0{name[1:]}" if name.startswith("@") else name)
        listening.settimeout(10)
        yield listening, name


async def received(listening: socket.socket) -> str:
    return (await asyncio.to_thread(listening.recv, 100)).decode()


async def test_it_is_up_when_it_says_so(manager: tuple[socket.socket, str]) -> None:
    listening, name = manager
    environment = {"NOTIFY_SOCKET": name, "OTHER": "1"}
    async with notify_systemd(environment) as up:
        assert environment == {"OTHER": "1"}  # processes started from here are no service
        up()
        assert await received(listening) == "READY=1"
    listening.setblocking(False)
    with pytest.raises(BlockingIOError):
        listening.recv(100)


async def test_signs_of_life_come_from_the_event_loop(manager: tuple[socket.socket, str]) -> None:
    listening, name = manager
    environment = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "90000", "WATCHDOG_PID": str(os.getpid())}
    async with notify_systemd(environment) as up:
        assert environment == {}
        up()
        assert sorted([await received(listening) for _ in range(4)]) == ["READY=1", *["WATCHDOG=1"] * 3]
        listening.setblocking(False)
        try:
            while listening.recv(100):
                pass
        except BlockingIOError:
            pass
        listening.settimeout(0.3)
        with pytest.raises(TimeoutError):  # the event loop does not turn while this waits
            listening.recv(100)


@pytest.mark.parametrize(
    "watchdog", [{}, {"WATCHDOG_USEC": "3000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "0"}]
)
async def test_no_signs_where_nobody_waits_for_them(manager: tuple[socket.socket, str], watchdog: dict[str, str]) -> None:
    listening, name = manager
    async with notify_systemd({"NOTIFY_SOCKET": name, **watchdog}) as up:
        up()
        assert asyncio.all_tasks() == {asyncio.current_task()}
    assert await received(listening) == "READY=1"


async def test_without_systemd_nothing_is_told() -> None:
    async with notify_systemd({"WATCHDOG_USEC": "3000"}) as up:
        up()
        assert len(asyncio.all_tasks()) == 1


async def test_a_manager_that_is_gone_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with notify_systemd({"NOTIFY_SOCKET": "/nonexistent/notify"}) as up:
            up()
    assert "systemd was not notified of READY=1" in caplog.text
