"""`OutwardMetrics`: what a bus tells others, counted: its notifications, and the requests of its webhooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, Metric

if TYPE_CHECKING:
    from command_bus.notifications.notifications import NotificationFigures

_OTHER = "other"
_NOTICES = {
    "notices_sent": ("Notices that were sent.", "sent"),
    "notices_left_out": ("Notices that were left out: nothing could be sent, or there were too many.", "left_out"),
    "notices_unreadable": ("Messages that came and are no notices.", "unreadable"),
    "notice_sends_failed": ("Sends of notices that failed.", "failed"),
    "notice_reconnects": ("Cut connections of listeners that were made again.", "reconnects"),
}


class OutwardMetrics:
    """Implements `command_bus.observer.OutwardObserver`; `PrometheusMetrics` has one as `outward`.

    Args:
        registry: The registry of the metrics.
        max_names: How many webhooks have a label of their own.
    """

    def __init__(self, registry: CollectorRegistry, max_names: int) -> None:
        self._max_names = max_names
        self._names: set[str] = set()
        self._notices: list[Callable[[], NotificationFigures]] = []
        self._requests = Counter(
            "webhook_requests",
            "Requests to receivers of webhooks, by what became of them.",
            ("webhook", "result"),
            namespace="command_bus",
            registry=registry,
        )
        self._gaps = Counter(
            "webhook_gaps",
            "Times that events were deleted before a webhook was told of them.",
            ("webhook",),
            namespace="command_bus",
            registry=registry,
        )
        registry.register(self)

    def notifies(self, figures: Callable[[], NotificationFigures]) -> None:
        """Implement `OutwardObserver`."""
        self._notices.append(figures)

    def posted(self, webhook: str, result: str) -> None:
        """Implement `OutwardObserver`."""
        self._requests.labels(self._label(webhook), result).inc()

    def lost_events(self, webhook: str) -> None:
        """Implement `OutwardObserver`."""
        self._gaps.labels(self._label(webhook)).inc()

    def collect(self) -> Iterable[Metric]:
        """Yield the figures of notifications, once there is a bus that has a notifier; called by prometheus_client."""
        figures = [ask() for ask in self._notices]
        for name, (text, attribute) in _NOTICES.items() if figures else ():
            counter = CounterMetricFamily(f"command_bus_{name}", text)
            counter.add_metric((), sum(getattr(each, attribute) for each in figures))
            yield counter

    def _label(self, webhook: str) -> str:
        if webhook not in self._names and len(self._names) >= self._max_names:
            return _OTHER
        self._names.add(webhook)
        return webhook
