"""Metrics as Prometheus's own client reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from command_bus import (
    BusSettings,
    Command,
    CommandBus,
    CommandRejected,
    CommandTimeout,
    EntityId,
    HandlerRegistry,
    QueueFull,
    Reject,
    RetryPolicy,
    Snooze,
    TransportUnavailable,
    Unique,
)
from command_bus.embedded import EmbeddedServer
from command_bus.messages.context import CommandContext
from command_bus.serialization.odd_values import pass_over
from command_bus.telemetry.health import HealthServer
from command_bus.telemetry.metrics import PrometheusMetrics, merge_expositions
from tests.conformance.harness import lose_lease
from tests.telemetry.conftest import fetch

pytestmark = pytest.mark.server
Make = Callable[..., CommandBus]


class Work(Command[int], entity="shelf", retry=RetryPolicy(attempts=2, delay=0.01, jitter=0)):
    shelf: EntityId
    end: str = "well"


class Other(Command[int], entity="shelf"):
    shelf: EntityId


def read(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Return samples by name and by the values of their labels, in the order of the labels' names."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def shown(metrics: PrometheusMetrics) -> dict[str, dict[tuple[str, ...], float]]:
    return read(metrics.exposition().decode())


def ends(registry: HandlerRegistry) -> None:
    @registry.handles(Work)
    async def work(command: Work, context: CommandContext) -> int:
        if command.end == "refused":
            raise Reject("no")
        if command.end == "once" and context.attempt == 1:
            raise ValueError("at first")
        if command.end == "failed":
            raise ValueError("always")
        return 1


def test_odd_values_are_counted_by_key() -> None:
    pass_over("a-key", "x")
    pass_over("a-key", "y")
    assert shown(PrometheusMetrics())["command_bus_odd_values_total"]["a-key",] == 2


async def test_what_is_sent_and_what_becomes_of_it(make_bus: Make, registry: HandlerRegistry) -> None:
    ends(registry)
    metrics = PrometheusMetrics(cache=0)
    async with (
        make_bus(observer=metrics, unknown_grace=0) as bus,
        bus.worker() as worker,
        HealthServer(worker, host="127.0.0.1") as health,
    ):
        for number, end in enumerate(("well", "refused", "once", "failed")):
            await bus.dispatch(Work(shelf=f"s-{number}", end=end))
        await bus.dispatch_batch([Work(shelf="s-9"), Work(shelf="s-9")])
        await bus.dispatch_raw("shelf", "s-8", "Unheard", {})
        await bus.dispatch(Work(shelf="s-1"), command_id="c-1")
        await bus.dispatch(Work(shelf="s-1"), command_id="c-1")
        assert await bus.call(Work(shelf="s-1"), timeout=5) == 1
        await bus.wait_idle(10)
        answer = await fetch(health.port, "/metrics")
    assert answer.headers["Content-Type"] == PrometheusMetrics.content_type
    found = read(answer.text)
    assert found["command_bus_commands_dispatched_total"] == {
        ("Work", "accepted"): 8, ("Work", "duplicate"): 1, ("Unheard", "accepted"): 1,
    }  # fmt: skip
    assert found["command_bus_commands_handled_total"] == {
        ("Work", "completed"): 6, ("Work", "rejected"): 1, ("Work", "failed"): 3, ("unknown", "no_handler"): 1,
    }  # fmt: skip
    assert found["command_bus_retries_total"] == {("Work", "ValueError"): 2}
    assert found["command_bus_dead_letters_total"] == {("Work", "failed"): 1, ("unknown", "no_handler"): 1}
    assert found["command_bus_handler_seconds_count"] == {("Work",): 10}
    assert found["command_bus_wait_seconds_count"] == {("Work",): 8}
    assert found["command_bus_calls_total"] == {("Work", "replied"): 1}
    assert found["command_bus_call_seconds_count"] == {("Work",): 1}
    assert found["command_bus_in_flight"] == {(): 0}
    assert found["command_bus_leases_lost_total"] == found["command_bus_reconnects_total"] == {(): 0}
    space = (bus.settings.namespace,)
    assert found["command_bus_namespace_depth"] == {space: 0}
    assert found["command_bus_namespace_dead_letters"] == {space: 2}
    assert found["command_bus_namespace_workers"] == {space: 1}
    assert found["command_bus_namespace_oldest_age_seconds"] == {space: 0}
    assert found["command_bus_namespace_longest_running_seconds"][space] < 10  # by the last sign of life, which may be older
    assert "s-1" not in answer.text
    labels = {
        name for family in text_string_to_metric_families(answer.text) for sample in family.samples for name in sample.labels
    }
    assert labels == {"command", "outcome", "status", "reason", "error", "namespace", "le"}


async def test_refusals_and_a_server_that_is_away(make_bus: Make, server: EmbeddedServer) -> None:
    metrics = PrometheusMetrics(cache=0)
    async with make_bus(observer=metrics, max_depth=1, dispatch_timeout=0.3) as bus:
        await bus.dispatch(Work(shelf="s-1"))
        with pytest.raises(QueueFull):
            await bus.dispatch(Work(shelf="s-1"))
        await metrics.refresh(bus)
        assert shown(metrics)["command_bus_namespace_depth"] == {(bus.settings.namespace,): 1}
        server.kill()
        assert (await bus.dispatch_batch([Work(shelf="s-2")])).rejected == 1
        await metrics.refresh(bus)
    found = shown(metrics)
    assert found["command_bus_commands_dispatched_total"] == {
        ("Work", "accepted"): 1,
        ("Work", "rejected"): 1,
        ("Work", "failed"): 1,
    }
    assert "command_bus_namespace_depth" not in found  # it is not known, and the last figure would be a lie


async def test_what_becomes_of_calls(make_bus: Make, registry: HandlerRegistry, server: EmbeddedServer) -> None:
    ends(registry)
    metrics = PrometheusMetrics(cache=0)
    async with make_bus(observer=metrics, dispatch_timeout=0.3) as bus:
        with pytest.raises(CommandTimeout):
            await bus.call(Work(shelf="s-1"), timeout=0.5)
        given_up = asyncio.create_task(bus.call(Work(shelf="s-3"), timeout=30))
        await asyncio.sleep(0.05)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        async with bus.worker():
            assert await bus.call(Work(shelf="s-2"), timeout=20) == 1
            with pytest.raises(CommandRejected):
                await bus.call(Work(shelf="s-2", end="refused"), timeout=20)
        server.kill()
        with pytest.raises(TransportUnavailable):
            await bus.call(Work(shelf="s-1"), timeout=0.5)
        found = shown(metrics)
    assert found["command_bus_calls_total"] == {
        ("Work", status): 1 for status in ("replied", "rejected", "timeout", "given_up", "transport_unavailable")
    }
    assert found["command_bus_call_seconds_count"] == {("Work",): 5}
    assert found["command_bus_reconnects_total"][()] > 0  # no worker is left to report them


async def test_what_runs_long(make_bus: Make, registry: HandlerRegistry) -> None:
    release = asyncio.Event()

    @registry.handles(Work)
    async def work(command: Work) -> int:
        await release.wait()
        return 1

    metrics = PrometheusMetrics(cache=0)
    async with make_bus(observer=metrics, lease=0.3) as bus, bus.worker():
        space = (bus.settings.namespace,)
        await bus.dispatch(Work(shelf="s-1"))
        async with asyncio.timeout(10):
            while shown(metrics).get("command_bus_namespace_longest_running_seconds", {}).get(space, 0) < 0.5:
                await metrics.refresh(bus)
                await asyncio.sleep(0.02)
        assert shown(metrics)["command_bus_namespace_oldest_age_seconds"] == {space: 0}  # it waits for no worker
        release.set()
        await bus.wait_idle(10)


async def test_a_lost_lease_and_what_runs_now(make_bus: Make, registry: HandlerRegistry) -> None:
    running = asyncio.Event()

    @registry.handles(Work)
    async def work(command: Work, context: CommandContext) -> int:
        if context.attempt == 1:
            running.set()
            await asyncio.sleep(30)
        return 1

    metrics = PrometheusMetrics()
    async with make_bus(observer=metrics, lease=1.0) as bus, bus.worker() as worker:
        await bus.dispatch(Work(shelf="s-1"))
        await running.wait()
        assert shown(metrics)["command_bus_in_flight"] == {(): 1}
        lose_lease(worker)
        await bus.wait_idle(10)
    found = shown(metrics)
    assert found["command_bus_leases_lost_total"] == found["command_bus_leases_recovered_total"] == {(): 1}
    assert found["command_bus_commands_handled_total"] == {("Work", "completed"): 1, ("Work", "interrupted"): 1}
    assert found["command_bus_retries_total"] == {("Work", "Interrupted"): 1}


async def test_the_server_is_asked_once_per_cache_time(make_bus: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = PrometheusMetrics(cache=60)
    asked: list[int] = []
    async with make_bus(observer=metrics) as bus:
        stats = bus.stats

        async def counted() -> Any:
            asked.append(1)
            return await stats()

        monkeypatch.setattr(bus, "stats", counted)
        for _ in range(3):
            await metrics.refresh(bus)
    assert asked == [1]


def test_names_are_told_apart_only_as_far_as_they_are_few() -> None:
    metrics = PrometheusMetrics(max_names=2)
    for name in ("a", "b", "c", "d", "a"):
        metrics.dispatched(name, "accepted")
    metrics.handled("b", "completed")
    metrics.handled("", "undecodable")
    found = shown(metrics)
    assert found["command_bus_commands_dispatched_total"] == {
        ("a", "accepted"): 2,
        ("b", "accepted"): 1,
        ("other", "accepted"): 2,
    }
    assert found["command_bus_commands_handled_total"] == {("b", "completed"): 1, ("unknown", "undecodable"): 1}


async def test_a_worker_without_observer_shows_none(make_bus: Make) -> None:
    async with make_bus() as bus, bus.worker() as worker, HealthServer(worker, host="127.0.0.1") as health:
        answer = await fetch(health.port, "/metrics")
    assert answer.status == 404
    assert "command-bus[prometheus]" in answer.text


def test_metrics_of_several_processes_are_one_text() -> None:
    texts: dict[str, str] = {}
    for process, times in (("0", 1), ("1", 2)):
        metrics = PrometheusMetrics()
        for _ in range(times):
            metrics.dispatched('a"b\\c', "accepted")
            metrics.ran("Work", 0.02)
        texts[process] = metrics.exposition().decode()
    whole = merge_expositions(texts).decode()
    found = read(whole)
    assert found["command_bus_commands_dispatched_total"] == {('a"b\\c', "0", "accepted"): 1, ('a"b\\c', "1", "accepted"): 2}
    assert found["command_bus_handler_seconds_bucket"]["Work", "0.025", "1"] == 2
    assert whole.count("# TYPE command_bus_commands_dispatched_total counter") == 1


def test_the_registry_of_the_process_may_be_used() -> None:
    registry = CollectorRegistry(auto_describe=True)
    metrics = PrometheusMetrics(registry)
    assert metrics.registry is registry
    assert BusSettings(url="redis://x").namespace not in metrics.exposition().decode().split()


class Load(Command[None], entity="file", fair_by="customer"):
    file: EntityId
    customer: str


async def test_starts_of_tenants_are_shown_of_those_with_the_most(make_bus: Make, registry: HandlerRegistry) -> None:
    metrics = PrometheusMetrics(registry=CollectorRegistry(), cache=0.0, max_tenants=1)
    registry.handles(Load)(lambda command: None)
    async with make_bus(observer=metrics) as bus, bus.worker():
        await metrics.refresh(bus)
        assert "command_bus_namespace_tenant_starts_per_minute" not in shown(metrics)
        await bus.dispatch_batch(Load(file=str(n), customer="acme" if n else "small") for n in range(6))
        await bus.wait_idle(10)
        await metrics.refresh(bus)
        found = shown(metrics)["command_bus_namespace_tenant_starts_per_minute"]
    assert {tenant for _, tenant in found} == {"acme", "other"}
    assert sum(found.values()) in (5, 6), "five if a minute has begun just now"


class Index(Command[None], entity="page", unique=Unique("fresh")):
    page: EntityId


class Latest(Command[None], entity="page", unique=Unique("latest", wins="latest")):
    page: EntityId


async def test_what_was_folded_replaced_and_put_off_is_shown(make_bus: Make, registry: HandlerRegistry) -> None:
    metrics = PrometheusMetrics(registry=CollectorRegistry(), cache=0.0)
    later = [Snooze(0.01)]

    @registry.handles(Index)
    async def index(command: Index) -> None:
        if later:
            raise later.pop()

    registry.handles(Latest)(lambda command: None)
    async with make_bus(observer=metrics) as bus:
        for kind in (Index, Index, Index, Latest, Latest):
            await bus.dispatch(kind(page="p"))
        async with bus.worker():
            await bus.wait_idle(10)
        await metrics.refresh(bus)
        found, space = shown(metrics), (bus.settings.namespace,)
    names = ("folded", "superseded", "snoozed", "pruned")
    assert [found[f"command_bus_namespace_{name}"] for name in names] == [{space: 2}, {space: 1}, {space: 1}, {space: 0}]
