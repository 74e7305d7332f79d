"""`PrometheusMetrics`: an observer that counts, with prometheus-client (extra `prometheus`).

    bus = CommandBus(observer=PrometheusMetrics())

Entity ids never become labels. Names of commands do, up to `max_names`; the rest is counted as `other`, because a wire name may come from
outside (`dispatch_raw`). Figures of the whole namespace (depth, ages) come from the server, and every process exposes the same ones, so
aggregate them with `max`, not `sum`.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, Metric

from command_bus.clock import mono
from command_bus.errors import CommandBusError, MissingExtra
from command_bus.observer import Observer
from command_bus.serialization.odd_values import odd_values

if TYPE_CHECKING:
    from command_bus.admin.info import PriorityInfo, Stats
    from command_bus.bus import CommandBus
    from command_bus.notifications.notifications import NotificationFigures
    from command_bus.observer import ExportFigures, RelayFigures, WorkerFigures
    from command_bus.transport.flows import Flow
    from command_bus.worker.worker_bus import WorkerBus


class OutwardMetrics:
    """Implements `command_bus.observer.OutwardObserver`; `PrometheusMetrics` has one as `outward`.

    Args:
        registry: Holds the metrics.
        max_names: How many webhooks have a label of their own.
    """

    def __init__(self, registry: CollectorRegistry, max_names: int) -> None:
        self._max_names = max_names
        self._names: set[str] = set()
        self._notices: list[Callable[[], NotificationFigures]] = []
        self._relays: list[Callable[[], RelayFigures]] = []
        self._exports: list[Callable[[], ExportFigures]] = []
        given: dict[str, Any] = {"namespace": "command_bus", "registry": registry}
        results = "Requests to receivers of webhooks, by what became of them."
        self._requests = Counter("webhook_requests", results, ("webhook", "result"), **given)
        gaps = "Times that events were deleted before a webhook was told of them."
        self._gaps = Counter("webhook_gaps", gaps, ("webhook",), **given)
        registry.register(self)

    def notifies(self, figures: Callable[[], NotificationFigures]) -> None:
        """Implement `OutwardObserver`."""
        self._notices.append(figures)

    def relays(self, figures: Callable[[], RelayFigures]) -> None:
        """Implement `OutwardObserver`."""
        self._relays.append(figures)

    def exports(self, figures: Callable[[], ExportFigures]) -> None:
        """Implement `OutwardObserver`."""
        self._exports.append(figures)

    def posted(self, webhook: str, result: str) -> None:
        """Implement `OutwardObserver`."""
        self._requests.labels(self._label(webhook), result).inc()

    def lost_events(self, webhook: str) -> None:
        """Implement `OutwardObserver`."""
        self._gaps.labels(self._label(webhook)).inc()

    def collect(self) -> Iterable[Metric]:
        """Yield the figures of notifications, outboxes and exports, once there is one; called by prometheus_client."""
        for rows, asked in ((_NOTICES, self._notices), (_RELAYS, self._relays), (_EXPORTS, self._exports)):
            figures = [ask() for ask in asked]
            yield from _sums(rows, figures) if figures else ()

    def _label(self, webhook: str) -> str:
        if webhook not in self._names and len(self._names) >= self._max_names:
            return _OTHER
        self._names.add(webhook)
        return webhook


try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    from prometheus_client.parser import text_string_to_metric_families
except ImportError as error:  # pragma: no cover - depends on the environment
    raise MissingExtra("command_bus.telemetry.metrics needs prometheus-client: pip install 'command-bus[prometheus]'") from error


_HANDLER_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_CALL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_WAIT_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
_UNKNOWN, _OTHER = "unknown", "other"

_NOTICES = (
    (CounterMetricFamily, "notices_sent", "sent", "Notices that were sent."),
    (
        CounterMetricFamily,
        "notices_left_out",
        "left_out",
        "Notices that were left out: nothing could be sent, or there were too many.",
    ),
    (CounterMetricFamily, "notices_unreadable", "unreadable", "Messages that came and are no notices."),
    (CounterMetricFamily, "notice_sends_failed", "failed", "Sends of notices that failed."),
    (CounterMetricFamily, "notice_reconnects", "reconnects", "Cut connections of listeners that were made again."),
)
_RELAYS = (
    (CounterMetricFamily, "outbox_sent", "sent", "Commands of outboxes that were accepted."),
    (CounterMetricFamily, "outbox_sent_again", "again", "Rows of outboxes that were sent, and that the server had lost."),
    (CounterMetricFamily, "outbox_set_aside", "set_aside", "Rows of outboxes that can never be accepted."),
    (GaugeMetricFamily, "outbox_kept", "kept", "Rows of outboxes that are accepted, and not deleted yet."),
    (GaugeMetricFamily, "outbox_apart", "apart", "Rows of outboxes whose mailboxes take none at the moment."),
    (GaugeMetricFamily, "outbox_lag_seconds", "lag", "Age of the oldest row that the last look has found, and that is not sent."),
    (
        GaugeMetricFamily,
        "outbox_relays",
        "working",
        "Relays of this process that relay now: not those that follow, or that wait for a server.",
    ),
)
_EXPORTS = (
    (CounterMetricFamily, "export_rows", "rows", "Rows that were exported."),
    (CounterMetricFamily, "export_files", "files", "Files of exports that were written."),
    (CounterMetricFamily, "export_lost", "lost", "Entries that were deleted before they were exported."),
    (GaugeMetricFamily, "export_lag_seconds", "lag", "Age behind which all is exported."),
)
_PROCESS = (
    (GaugeMetricFamily, "in_flight", "running", "Entities that this process's workers run now."),
    (GaugeMetricFamily, "awaiting_thread", "awaiting_thread", "Of these, entities whose next command waits for a thread."),
    (GaugeMetricFamily, "awaiting_reply", "awaiting_reply", "Of these, entities whose handler waits for a reply."),
    (CounterMetricFamily, "leases_lost", "leases_lost", "Leases lost while a handler ran."),
    (CounterMetricFamily, "leases_recovered", "recovered", "Leases taken over from workers that were lost."),
)
_NAMESPACE = (
    ("depth", "depth", "Commands accepted and not settled: waiting, delayed, running, parked."),
    ("in_flight_entities", "in_flight", "Entities held by workers."),
    ("ready_entities", "ready", "Entities that wait for a worker."),
    ("parked_entities", "parked", "Entities held by a poisoned command until an operator decides."),
    ("limited", "limited", "Entities that wait for a limit."),
    ("suspended", "suspended", "Durable commands that wait without a worker."),
    ("suspensions", "suspensions", "Times since the namespace was made that a durable command was suspended."),
    ("snoozed", "snoozed", "Starts since the namespace was made whose handler put its command off."),
    ("folded", "folded", "Commands since the namespace was made that were dropped: another held their unique key."),
    ("superseded", "superseded", "Commands since the namespace was made that another of their unique key replaced."),
    ("pruned", "pruned", "Dead letters deleted since the namespace was made, as too old or too many."),
    ("paused", "paused", "Entities, entity types and buses that are paused or drained."),
    ("delayed", "delayed", "Commands and retries that wait for their time."),
    ("oldest_age_seconds", "oldest_age", "For how long the entity at the head of the line has waited for a worker."),
    (
        "longest_running_seconds",
        "longest_running",
        "For how long the attempt that runs longest has run, as its worker last said.",
    ),
    ("dead_letters", "dead_letters", "Letters in the dead-letter queue."),
    ("workers", "workers", "Live workers."),
    ("history", "history", "Ends of commands in the history."),
    ("states", "states", "States of entities."),
    ("schedules", "schedules", "Schedules that have a tick to come."),
    ("schedules_stored", "schedules_stored", "Schedules in all, also those that are paused or ended."),
    ("schedules_fired", "fired", "Firings of schedules since the namespace was made."),
    ("schedules_late", "fired_late", "Firings more than a second behind their time."),
    ("schedules_missed", "ticks_missed", "Ticks left out because no worker fired them in time."),
    ("schedules_skipped", "ticks_skipped", "Ticks left out because the firing before was not settled."),
    ("schedule_overdue_seconds", "schedule_overdue", "For how long the latest schedule has been due."),
)
"""Gauges of the whole namespace: name, attribute of `Stats`, help."""


def _sums(rows: Iterable[tuple[Any, str, str, str]], figures: Iterable[object]) -> Iterable[Metric]:
    """Yield the sums of figures, of ages the greatest: kind, name, attribute of each, help."""
    for kind, name, attribute, text in rows:
        family = kind(f"command_bus_{name}", text)
        found = [getattr(each, attribute) for each in figures]
        family.add_metric((), max(found) if name.endswith("_seconds") else sum(found))
        yield family


class PrometheusMetrics(Observer):
    """An observer that counts what a bus and its workers do; one for each bus.

    Args:
        registry: Collects the metrics, by default a new one; prometheus_client's `REGISTRY` adds metrics of the process.
        cache: Seconds for which the namespace's figures are kept, so that frequent scrapes do not load the server.
        max_names: How many commands have a label of their own.
        max_tenants: How many tenants have one: those that were served most in the last minute.

    Attributes:
        registry: Holds the metrics.
        content_type: Media type of the exposition.
        outward: Counts notifications, the requests of webhooks, and what relays of outboxes do.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(
        self, registry: CollectorRegistry | None = None, *, cache: float = 5.0, max_names: int = 500, max_tenants: int = 100
    ) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._cache = cache
        self._max_names = max_names
        self._max_tenants = max_tenants
        self._names: set[str] = set()
        self._workers: list[Callable[[], WorkerFigures]] = []
        self._reconnects: list[Callable[[], int]] = []
        self._namespace = ""
        self._stats: Stats | None = None
        self._served: Counts[Flow] = Counts()
        self._asked_at = -cache
        given: dict[str, Any] = {"namespace": "command_bus", "registry": self.registry}
        self._dispatched = Counter("commands_dispatched", "Commands sent by this process.", ("command", "status"), **given)
        self._called = Counter("calls", "Calls of this process, by how they ended.", ("command", "status"), **given)
        self._handled = Counter("commands_handled", "Attempts by outcome.", ("command", "outcome"), **given)
        self._retried = Counter(
            "retries", "Commands to be tried again, by the class of the error.", ("command", "error"), **given
        )
        self._dead = Counter("dead_letters", "Commands given up.", ("command", "reason"), **given)
        self._call_seconds = Histogram(
            "call_seconds", "From a call to its end, for its caller.", ("command",), buckets=_CALL_BUCKETS, **given
        )
        self._seconds = Histogram(
            "handler_seconds", "Time of one attempt in its handler.", ("command",), buckets=_HANDLER_BUCKETS, **given
        )
        self._wait = Histogram(
            "wait_seconds", "From acceptance to the first start.", ("command",), buckets=_WAIT_BUCKETS, **given
        )
        self._away = Gauge("server_away", "Servers that this process cannot reach.", **given)
        self._outages = Counter("server_outages", "How often a server could not be reached.", **given)
        self._children: dict[tuple[Any, ...], Any] = {}
        self.outward = OutwardMetrics(self.registry, max_names)
        self.registry.register(self)

    # The methods of `command_bus.observer.Observer`.

    def dispatched(self, command: str, status: str) -> None:
        """Implement `Observer`."""
        self._child(self._dispatched, command, status).inc()

    def called(self, command: str, status: str, seconds: float) -> None:
        """Implement `Observer`."""
        self._child(self._called, command, status).inc()
        self._child(self._call_seconds, command).observe(seconds)

    def handled(self, command: str, outcome: str) -> None:
        """Implement `Observer`."""
        self._child(self._handled, command, outcome).inc()

    def ran(self, command: str, seconds: float) -> None:
        """Implement `Observer`."""
        self._child(self._seconds, command).observe(seconds)

    def waited(self, command: str, seconds: float) -> None:
        """Implement `Observer`."""
        self._child(self._wait, command).observe(seconds)

    def retried(self, command: str, error: str) -> None:
        """Implement `Observer`."""
        self._child(self._retried, command, error).inc()

    def dead_lettered(self, command: str, reason: str) -> None:
        """Implement `Observer`."""
        self._child(self._dead, command, reason).inc()

    def server_away(self, server: str, reason: str) -> None:
        """Implement `Observer`."""
        self._away.inc()
        self._outages.inc()

    def server_back(self, server: str, seconds: float) -> None:
        """Implement `Observer`."""
        self._away.dec()

    def connects(self, reconnects: Callable[[], int]) -> None:
        """Implement `Observer`."""
        self._reconnects.append(reconnects)

    def works(self, figures: Callable[[], WorkerFigures]) -> None:
        """Implement `Observer`."""
        self._workers.append(figures)

    def _child(self, metric: Any, command: str, *labels: str) -> Any:
        key = (metric, command, *labels)
        child = self._children.get(key)
        if child is not None:
            return child
        if command and command not in self._names and len(self._names) >= self._max_names:
            return metric.labels(_OTHER, *labels)
        if command:
            self._names.add(command)
        child = self._children[key] = metric.labels(command or _UNKNOWN, *labels)
        return child

    # The exposition.

    async def refresh(self, bus: CommandBus | WorkerBus) -> None:
        """Read the namespace's figures from the server, unless they are cached. If it does not answer they are left out, not stale."""
        if mono() - self._asked_at < self._cache:
            return
        self._asked_at, self._namespace = mono(), bus.settings.namespace
        try:
            self._stats = stats = await bus.stats()
            self._served = await bus.session.transport.operator.shares.served() if stats.priorities else Counts()
        except CommandBusError:
            self._stats = None

    def exposition(self) -> bytes:
        """Return the metrics in Prometheus's text format."""
        return generate_latest(self.registry)

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics that are read at a scrape; called by prometheus_client."""
        figures = [ask() for ask in self._workers]
        yield from _sums(_PROCESS, figures)
        reconnects = CounterMetricFamily("command_bus_reconnects", "Requests repeated because the server did not answer.")
        reconnects.add_metric((), sum(ask() for ask in self._reconnects))
        yield reconnects
        odd = CounterMetricFamily("command_bus_odd_values", "Stored values that were passed over, by key.", labels=("key",))
        for kind, count in odd_values.counts().items():
            odd.add_metric((kind,), count)
        yield odd
        stats = self._stats
        if stats is not None:
            for name, attribute, text in _NAMESPACE:
                gauge = GaugeMetricFamily(f"command_bus_namespace_{name}", text, labels=("namespace",))
                figure = getattr(stats, attribute)
                gauge.add_metric((self._namespace,), len(figure) if attribute == "workers" else figure)
                yield gauge
            yield from self._of_priorities(stats.priorities)
            yield from self._of_tenants()

    def _of_tenants(self) -> Iterable[Metric]:
        """Return the starts of the tenants that were served most; tenants come from outside, so the others are one."""
        served: Counts[str] = Counts()
        for flow, count in self._served.items():
            served[flow.tenant] += count
        gauge = GaugeMetricFamily(
            "command_bus_namespace_tenant_starts_per_minute",
            f"Starts in the last minute by tenant, about; of the {self._max_tenants} with the most.",
            labels=("namespace", "tenant"),
        )
        shown = dict(served.most_common(self._max_tenants))
        if others := served.total() - sum(shown.values()):
            shown[_OTHER] = shown.get(_OTHER, 0) + others
        for tenant, count in shown.items():
            gauge.add_metric((self._namespace, tenant), count)
        yield from (gauge,) if set(shown) - {""} else ()

    def _of_priorities(self, priorities: Iterable[PriorityInfo]) -> Iterable[Metric]:
        labels = ("namespace", "priority")
        waiting = GaugeMetricFamily(
            "command_bus_namespace_line_entities", "Entities in line behind the ready stream, by priority.", labels=labels
        )
        started = CounterMetricFamily("command_bus_namespace_starts", "Starts by priority since it came into use.", labels=labels)
        for each in priorities:
            waiting.add_metric((self._namespace, each.priority), each.waiting)
            started.add_metric((self._namespace, each.priority), each.started)
        yield from (waiting, started) if waiting.samples else ()


def merge_expositions(texts: dict[str, str]) -> bytes:
    """Merge the metrics of several processes into one text. Each sample gets the label `process`, whose values are the keys."""
    families: dict[str, Metric] = {}
    for process, text in texts.items():
        for family in text_string_to_metric_families(text):
            whole = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                whole.add_sample(sample.name, {"process": process, **sample.labels}, sample.value)
    registry = CollectorRegistry()
    registry.register(_Collected(list(families.values())))
    return generate_latest(registry)


class _Collected:
    """A collector of families that were collected before."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
