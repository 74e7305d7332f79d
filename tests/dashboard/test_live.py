"""Pages that are open: what they are told, and what that costs."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from command_bus import CommandBus, HandlerRegistry
from command_bus.dashboard import Dashboard, User, dashboard, host_check
from command_bus.dashboard.pages import fleet
from command_bus.dashboard.pulse import Pulse
from command_bus.embedded import EmbeddedServer
from tests.dashboard.conftest import users_by_header
from tests.dashboard.troubled_shop import Deposit, Shop, until

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="module")]
ROOT = Path(__file__).parents[2]


class Listener:
    """A browser that listens to `/live`."""

    def __init__(self, app: Dashboard, name: str = "vera") -> None:
        self.name = name.encode()
        self.told: list[str] = []
        self.status = 0
        self._gone = asyncio.Event()
        self._task = asyncio.create_task(self._listen(app))

    @property
    def beats(self) -> list[dict[str, Any]]:
        lines = "".join(self.told).split("\n")
        return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {") and line != "data: {}"]

    async def close(self) -> None:
        self._gone.set()
        await asyncio.wait_for(self._task, 5)

    async def over(self) -> None:
        await asyncio.wait_for(asyncio.shield(self._task), 5)

    async def _listen(self, app: Dashboard) -> None:
        scope = {
            "type": "http", "http_version": "1.1", "method": "GET", "path": "/live", "raw_path": b"/live", "root_path": "", "scheme": "http",
            "query_string": b"", "headers": [(b"host", b"ops.example"), (b"x-user", self.name)], "client": ("10.1.1.1", 1), "server": ("ops", 80),
        }  # fmt: skip
        await app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.told.append(message.get("body", b"").decode())


async def test_184_one_user_does_not_take_all_open_pages(
    troubled: tuple[CommandBus, Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "_MOST_EACH", 2)
    app = dashboard(troubled[0], users=users_by_header())
    pages = [Listener(app) for _ in range(2)]

    async def open_() -> bool:
        return app.state.pulse.listeners == 2

    await until(open_)
    third, other = Listener(app), Listener(app, "otto")
    await third.over()
    assert third.status == 429

    async def other_is_open() -> bool:
        return app.state.pulse.listeners == 3

    await until(other_is_open)
    await pages[0].close()
    again = Listener(app)
    await until(other_is_open)
    assert (again.status, other.status) == (200, 200)
    for each in (pages[1], other, again):
        await each.close()


async def test_open_pages_are_told_what_changes(troubled: tuple[CommandBus, Shop]) -> None:
    bus, _ = troubled
    app = dashboard(bus, users=users_by_header())
    app.state.pulse._every, app.state.reads._fresh = 0.05, 60.0
    listener = Listener(app)

    async def heard(number: int) -> bool:
        return len(listener.beats) >= number

    await until(lambda: heard(1))
    first = listener.beats[-1]
    assert (first["parked"], first["away"], first["workers"]) == (2, False, 1)
    quiet = [each["version"] for each in listener.beats]
    kept = await app.state.reads.get("kept", bus.ping)
    assert await app.state.reads.get("kept", bus.ping) == kept
    await bus.call(Deposit(account_id="live", amount=1))

    async def changed() -> bool:
        return listener.beats[-1]["version"] not in quiet

    await until(changed)
    assert await app.state.reads.get("kept", bus.ping) != kept, "what was read before the change is old"
    await listener.close()
    assert app.state.pulse.listeners == 0
    assert app.state.pulse._task is None


async def test_two_hundred_pages_cost_the_server_what_one_costs(
    troubled: tuple[CommandBus, Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, _ = troubled
    app = dashboard(bus, users=users_by_header())
    app.state.pulse._every = 0.05
    reads = 0
    stats = CommandBus.stats

    async def counted(self: CommandBus) -> Any:
        nonlocal reads
        reads += 1
        return await stats(self)

    monkeypatch.setattr(CommandBus, "stats", counted)
    listeners = [Listener(app) for _ in range(200)]

    async def all_heard() -> bool:
        return all(len(each.beats) >= 3 for each in listeners)

    await until(all_heard)
    beats = app.state.pulse.last.number
    assert reads <= beats + 1
    await asyncio.gather(*(each.close() for each in listeners))


async def test_a_session_that_is_over_ends_the_stream(troubled: tuple[CommandBus, Shop]) -> None:
    known = True
    app = dashboard(troubled[0], users=host_check(lambda _: User("vera") if known else None))
    app.state.pulse._every = 0.05
    listener = Listener(app)

    async def heard() -> bool:
        return bool(listener.beats)

    await until(heard)
    known = False
    await listener.over()
    assert "event: ended" in listener.told[-2] + listener.told[-1]


async def test_figures_are_kept_once_a_minute(troubled: tuple[CommandBus, Shop]) -> None:
    bus, _ = troubled
    kept = len(await bus.trends.list())
    pulses = [Pulse(bus, 0.02), Pulse(bus, 0.02)]
    async with pulses[0].listening(), pulses[1].listening():
        for pulse in pulses:
            assert await pulse.beat(2, 5) is not None
    assert len(await bus.trends.list()) - kept <= 2
    assert await bus.trends.list()
    assert await pulses[0].beat(10**6, 0.01) is None


async def test_a_served_dashboard_keeps_figures_without_a_page(shop_server: EmbeddedServer) -> None:
    namespace = "kept-figures"
    command = [sys.executable, "-m", "command_bus", "dashboard", "--port", "0", "--url", shop_server.url, "-n", namespace]
    async with CommandBus(shop_server.url, namespace=namespace, registry=HandlerRegistry()) as bus:
        assert await bus.trends.list() == []
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as program:
            try:

                async def kept() -> bool:
                    return len(await bus.trends.list()) > 0

                await until(kept)
            finally:
                program.send_signal(signal.SIGINT)
            assert program.wait(10) == 0


async def test_a_page_hears_at_once_of_a_pulse_that_only_keeps(troubled: tuple[CommandBus, Shop]) -> None:
    pulse = Pulse(troubled[0], 0.02)
    async with pulse.keeping():
        assert await pulse.beat(0, 5) is not None
        assert await pulse.beat(1, 0.2) is None, "without a page it beats slowly"
        async with pulse.listening():
            assert await pulse.beat(3, 5) is not None
            assert pulse.listeners == 1
    assert pulse._task is None


async def test_a_failure_does_not_end_the_pulse(
    troubled: tuple[CommandBus, Shop], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bus, _ = troubled
    stats, asked = CommandBus.stats, 0

    async def fails_at_first(self: CommandBus) -> Any:
        nonlocal asked
        asked += 1
        if asked <= 2:
            raise KeyError("workers")
        return await stats(self)

    monkeypatch.setattr(CommandBus, "stats", fails_at_first)
    pulse = Pulse(bus, 0.02)
    async with pulse.listening():
        away = await pulse.beat(0, 5)
        assert away is not None
        assert away.facts()["away"]
        there = await pulse.beat(2, 5)
        assert there is not None
        assert not there.facts()["away"]
    assert [each.message for each in caplog.records if each.name == "command_bus.dashboard"] == ["no figures"]
