"""Notifications and the requests of webhooks, as Prometheus counts them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("prometheus_client")
pytest.importorskip("httpx")

from prometheus_client import CollectorRegistry

from command_bus import Command, CommandBus, CommandRejected, EntityId, HandlerRegistry
from command_bus.notifications import NotificationFigures, RedisNotifier
from command_bus.observer import outward_of
from command_bus.telemetry.metrics import OutwardMetrics, PrometheusMetrics
from command_bus.webhooks import Webhooks, new_secret
from tests.conformance.receiver import Request, answering, receiving
from tests.telemetry.conftest import eventually
from tests.telemetry.test_metrics import Make, shown

pytestmark = pytest.mark.server


class Pack(Command[None], entity="order"):
    order: EntityId


async def test_notices_are_counted_over_every_opening_of_the_bus(make_bus: Make) -> None:
    metrics = PrometheusMetrics()
    assert "command_bus_notices_sent_total" not in shown(metrics), "a bus without a notifier"
    bus = make_bus(observer=metrics, notifier=RedisNotifier())
    for number in (1, 2):
        async with bus:
            await bus.dispatch(Pack(order="o-1"))
        assert shown(metrics)["command_bus_notices_sent_total"] == {(): number}
    assert shown(metrics)["command_bus_notice_sends_failed_total"] == {(): 0}


async def test_a_cut_listener_is_counted(make_bus: Make) -> None:
    metrics = PrometheusMetrics()
    async with make_bus(observer=metrics, notifier=RedisNotifier()) as bus, bus.notifier.listen("work"):
        await bus.session.redis.connections.commands.execute_command("CLIENT", "KILL", "TYPE", "pubsub")  # type: ignore[no-untyped-call]

        async def again() -> bool:
            return bus.notifier.figures.reconnects == 1

        assert await eventually(again)
        assert shown(metrics)["command_bus_notice_reconnects_total"] == {(): 1}


async def test_requests_are_counted_by_what_became_of_them(make_bus: Make, registry: HandlerRegistry) -> None:
    metrics = PrometheusMetrics()
    bus: CommandBus = make_bus(observer=metrics)
    hooks = Webhooks(bus)
    hooks.serve()
    async with receiving() as receiver, bus, bus.worker():

        async def put(**options: object) -> None:
            given = {"url": receiver.url, "secret": new_secret(), "allow_http": True, "allow_private": True, **options}
            await hooks.put("crm", kinds={"completed"}, timeout=0.5, **given)  # type: ignore[arg-type]

        await put()
        for answer in (answering(200), answering(429, "Retry-After: 60"), answering(500), answering(302), answering(410)):
            receiver.answer = constant(answer)
            await try_it(hooks)
        receiver.answer = lambda _: 1.0
        await try_it(hooks)
        await put(allow_private=False)
        await try_it(hooks)
        await put(secret="env:NO_SUCH_SECRET")
        await try_it(hooks)
        await put(url="http://127.0.0.1:1")
        await try_it(hooks)
    results = ("delivered", "put_off", "failed", "redirected", "gone", "silent", "forbidden", "unsigned", "unreachable")
    assert shown(metrics)["command_bus_webhook_requests_total"] == {(result, "crm"): 1 for result in results}


def constant(answer: bytes) -> Callable[[Request], bytes | float]:
    return lambda _: answer


async def try_it(hooks: Webhooks) -> None:
    """Send a test, whatever comes of it."""
    try:
        await hooks.test("crm")
    except CommandRejected:
        return


def test_names_are_bounded_and_gaps_counted() -> None:
    registry = CollectorRegistry()
    counting = OutwardMetrics(registry, max_names=2)
    for name in ("a", "b", "c", "a"):
        counting.lost_events(name)
    found = {
        label: registry.get_sample_value("command_bus_webhook_gaps_total", {"webhook": label})
        for label in ("a", "b", "c", "other")
    }
    assert found == {"a": 2, "b": 1, "c": None, "other": 1}


def test_an_observer_need_not_want_to_know() -> None:
    assert outward_of(None) is None
    metrics = PrometheusMetrics()
    assert outward_of(metrics) is metrics.outward
    del metrics.outward
    assert outward_of(metrics) is None
    assert NotificationFigures().reconnects == 0
