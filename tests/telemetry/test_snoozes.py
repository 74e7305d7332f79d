"""Commands that are put off, in traces and metrics: neither an error nor an attempt that failed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("prometheus_client")

from opentelemetry.trace import StatusCode
from prometheus_client import CollectorRegistry

from command_bus import Command, CommandBus, CommandFailed, EntityId, HandlerRegistry, RetryPolicy, Snooze
from command_bus.telemetry.metrics import PrometheusMetrics
from command_bus.telemetry.tracing import Tracing
from tests.telemetry.test_metrics import shown
from tests.telemetry.test_tracing import Spans, attributes

pytestmark = pytest.mark.server
Make = Callable[..., CommandBus]


class Sync(Command[int], entity="shop", retry=RetryPolicy(attempts=1)):
    shop: EntityId


async def test_a_snooze_is_counted_and_traced_as_one(make_bus: Make, registry: HandlerRegistry) -> None:
    asked: list[int] = []
    spans, metrics = Spans(), PrometheusMetrics(registry=CollectorRegistry())
    bus = make_bus(middleware=[Tracing(spans.provider)], observer=metrics)

    @registry.handles(Sync)
    async def sync(command: Sync) -> int:
        asked.append(1)
        raise Snooze(0.01, most=2)

    async with bus, bus.worker():
        with pytest.raises(CommandFailed, match="put off 2 times"):
            await bus.call(Sync(shop="s-1"), timeout=10)
        found = shown(metrics)
    assert found["command_bus_commands_handled_total"] == {("Sync", "snoozed"): 2, ("Sync", "failed"): 1}
    assert found["command_bus_wait_seconds_count"] == {("Sync",): 1}, "its wait is that until the first start"
    runs = spans.named("process Sync")
    assert [attributes(run)["command_bus.outcome"] for run in runs] == ["snoozed"] * 3
    assert {run.status.status_code for run in runs} == {StatusCode.UNSET}
    assert attributes(runs[0])["command_bus.snooze_seconds"] == 0.01
