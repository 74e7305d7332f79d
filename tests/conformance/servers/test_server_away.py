"""A server that is away: what finds it out, what senders are answered meanwhile, and what says so."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from command_bus import (
    BusSettings,
    Command,
    CommandBus,
    EntityId,
    HandlerRegistry,
    InvalidSettings,
    SyncCommandBus,
    TransportUnavailable,
)
from command_bus.clock import mono
from command_bus.telemetry.metrics import PrometheusMetrics
from tests.conformance.conftest import Starter
from tests.conformance.put_service import Put, until


class Parcel(Command[None], entity="parcel"):
    parcel: EntityId


class Changes(PrometheusMetrics):
    """Metrics that also keep what they were told of the server."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, Any]] = []

    def server_away(self, server: str, reason: str) -> None:
        super().server_away(server, reason)
        self.seen.append(("away", reason))

    def server_back(self, server: str, seconds: float) -> None:
        super().server_back(server, seconds)
        self.seen.append(("back", seconds))


def probes() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "command_bus.probe"]


@pytest.mark.promise("The server is away")
async def test_sends_fail_at_once_until_a_probe_succeeds(start: Starter) -> None:
    server, changes = start(tcp=True), Changes()
    async with CommandBus(server.url, registry=HandlerRegistry(), dispatch_timeout=20, fail_fast=True, observer=changes) as bus:
        await bus.dispatch(Put(box="a", value=0))
        assert (bus.server.is_available, bus.server.away_for) == (True, 0.0)
        server.kill()
        began = mono()
        with pytest.raises(TransportUnavailable):  # the first finds it out
            await bus.dispatch(Put(box="a", value=1))
        assert not bus.server.is_available
        assert bus.server.away_for > 0
        with pytest.raises(TransportUnavailable, match="fail_fast") as refused:
            await bus.dispatch(Put(box="b", value=1))
        assert not refused.value.outcome_unknown
        with pytest.raises(TransportUnavailable):
            await bus.call(Put(box="b", value=1), timeout=20)
        with pytest.raises(TransportUnavailable, match="fail_fast"):  # of a type that nobody agreed on yet
            await bus.dispatch(Parcel(parcel="p"))
        batch = await bus.dispatch_batch([Put(box="c", value=1), Put(box="d", value=1)])
        assert [type(each.error) for each in batch.outcomes] == [TransportUnavailable] * 2
        assert mono() - began < 10, "none waited for its timeout"
        server.restart()
        await until(lambda: bus.server.is_available)
        assert (await bus.dispatch(Put(box="b", value=2))).status == "accepted"
        assert (await bus.dispatch(Parcel(parcel="p"))).status == "accepted"
        assert bus.server.away_for == 0.0
        assert not probes()
    assert [kind for kind, _ in changes.seen] == ["away", "back"]
    assert changes.seen[1][1] > 0
    text = changes.exposition().decode()
    assert "command_bus_server_away 0.0" in text
    assert "command_bus_server_outages_total 1.0" in text


@pytest.mark.promise("The server is away")
async def test_by_default_a_send_waits_for_the_server(start: Starter, tmp_path: Path) -> None:
    server = start(tcp=True, persistence=tmp_path / "data")
    async with CommandBus(server.url, registry=HandlerRegistry(), dispatch_timeout=20) as bus:
        await bus.dispatch(Put(box="a", value=0))
        server.kill()
        sent = asyncio.create_task(bus.dispatch(Put(box="a", value=1)))
        await until(lambda: not bus.server.is_available)
        later = asyncio.create_task(bus.dispatch(Put(box="a", value=2)))
        server.restart()
        assert [(await sent).status, (await later).status] == ["accepted", "accepted"]
        await until(lambda: bus.server.is_available)


@pytest.mark.promise("The server is away")
async def test_a_cut_connection_is_no_outage(start: Starter) -> None:
    server, changes = start(tcp=True), Changes()
    async with CommandBus(server.url, registry=HandlerRegistry(), fail_fast=True, observer=changes) as bus:
        for value in range(5):
            assert (await bus.dispatch(Put(box="a", value=value))).status == "accepted"
            with suppress(TransportUnavailable):
                await bus.session.redis.connections.ask(lambda client: client.client_kill_filter(_type="normal", skipme=False))
        assert not changes.seen


async def test_a_slow_command_of_the_server_is_no_outage(start: Starter) -> None:
    server, changes = start(tcp=True, config={"enable-debug-command": "yes"}), Changes()
    async with CommandBus(server.url, registry=HandlerRegistry(), dispatch_timeout=0.3, fail_fast=True, observer=changes) as bus:
        await bus.dispatch(Put(box="a", value=0))
        slow = asyncio.create_task(
            bus.session.redis.connections.ask(lambda client: client.execute_command("DEBUG", "SLEEP", "1"))
        )
        await asyncio.sleep(0)
        with pytest.raises(TransportUnavailable, match="in time"):
            await bus.dispatch(Put(box="a", value=1))
        await slow
        assert (await bus.dispatch(Put(box="a", value=2))).status == "accepted"
        assert not changes.seen


async def test_a_bus_that_is_closed_in_an_outage_probes_no_more(start: Starter) -> None:
    server = start(tcp=True)
    bus = CommandBus(server.url, registry=HandlerRegistry(), dispatch_timeout=0.5)
    await bus.open()
    server.kill()
    with pytest.raises(TransportUnavailable):
        await bus.dispatch(Put(box="a", value=1))
    assert probes()
    await bus.close()
    assert not probes()
    assert (bus.server.is_available, bus.server.away_for) == (False, 0.0)


def test_blocking_code_has_it_too(start: Starter) -> None:
    with SyncCommandBus(start(tcp=True).url) as bus:
        assert (bus.server.is_available, bus.server.away_for) == (True, 0.0)


def test_91_a_wrong_word_for_it_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="fail_fast"):
        BusSettings(fail_fast="soon")  # type: ignore[arg-type]
