"""The page of a reconciliation: one HTML file to attach to a ticket, without scripts and without anything to load.

`page.html.jinja` is the page; this module computes what it shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from command_bus.spark.reconciliation.charts import bar_chart, histogram, rate_chart, short_duration, short_number, stacked_bar
from command_bus.spark.reconciliation.verdict import EFFECTS, FLAGS, STATUSES, WRONG, Verdict
from command_bus.transport.ports.bulk import DispatchFacts

_COLOURS = {
    "completed": "good", "rejected": "ended", "expired": "ended", "dead_lettered": "held", "parked": "held", "cancelled": "ended",
    "discarded": "ended", "folded": "ended", "superseded": "ended", "quarantined": "ended", "dropped": "ended",
    "pending": "open", "forgotten": "bad", "missing": "bad", "unexpected": "open",
}  # fmt: skip
_MEANING = {
    "completed": "the handler returned",
    "rejected": "rejected by the handler, for business reasons",
    "expired": "not started in time",
    "dead_lettered": "dead letter after all attempts; may be replayed",
    "parked": "dead letter, and its entity waits for an operator",
    "cancelled": "cancelled before it started",
    "discarded": "its dead letter was discarded",
    "folded": "not sent: another command of its unique key waited or ran",
    "superseded": "accepted, then replaced by a later command of its unique key",
    "quarantined": "the row is no valid command; see the view 'rejects'",
    "dropped": "the row is no valid command, and no record of it was requested",
    "pending": "accepted, and waits or runs",
    "forgotten": "no trace, but outcomes were trimmed: not provable",
    "missing": "no outcome, not in a mailbox: must be none",
    "unexpected": "of the dispatch, but of none of these rows",
    "duplicated": "an outcome after the final one: must be none",
    "out_of_order": "ran after a later command of its entity: must be none",
    "effects": "rows of these commands in the table of effects",
    "effect_missing": "completed, and has no effect: must be none",
    "effect_twice": "more than one effect: must be none",
    "effect_unexpected": "an effect of a command that did not complete: must be none",
    "effect_early": "pending, and has an effect: it commits before the outcome is stored",
    "effect_unasked": "effects of none of these commands, as of other dispatches",
}
_PER_DECADE = 8
_LONGEST = 300  # characters of a cell
_MOST_ATTEMPTS = 8  # bars


@dataclass(frozen=True, slots=True)
class SlowEntity:
    """An entity with its slowest command. Times are in ms from acceptance to outcome; `handling_ms` is the sum from start to outcome."""

    entity: str
    commands: int
    mean_ms: float
    worst_ms: float
    handling_ms: float
    retried: int


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """One kind of error: how often it occurred, and one of its messages."""

    status: str
    error: str
    count: int
    example: str


@dataclass(frozen=True)
class ChartData:
    """The data of the charts.

    Attributes:
        first_ms: When the first command was accepted; 0 if none was.
        last_ms: When the last outcome was stored.
        step_ms: Width of a step of `accepted` and `finished`.
        accepted: Commands per step.
        finished: Outcomes per step.
        latency: Quantile (`p50` …) to ms from acceptance to outcome.
        handling: Quantile to ms from the first start to the outcome.
        bins: Lower end in ms and count of commands by latency; eight in a factor of ten.
        attempts: Commands by attempts.
        slowest: At most ten.
        errors: The most frequent kinds.
    """

    first_ms: int = 0
    last_ms: int = 0
    step_ms: int = 1
    accepted: list[int] = field(default_factory=list[int])
    finished: list[int] = field(default_factory=list[int])
    latency: dict[str, float] = field(default_factory=dict[str, float])
    handling: dict[str, float] = field(default_factory=dict[str, float])
    bins: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    attempts: dict[int, int] = field(default_factory=dict[int, int])
    slowest: list[SlowEntity] = field(default_factory=list[SlowEntity])
    errors: list[ErrorCount] = field(default_factory=list[ErrorCount])


@dataclass(frozen=True)
class Page:
    """All that the page shows."""

    facts: DispatchFacts
    verdict: Verdict
    data: ChartData
    target: str
    at_ms: int
    seconds: float


def write_page(page: Page, folder: Path) -> Path:
    """Write the page into a folder, which is made if it does not exist, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"reconciliation-{_file_name(page.facts.dispatch_id)}.html"
    path.write_text(render_page(page), encoding="utf-8")
    return path


def render_page(page: Page) -> str:
    """Return the page as HTML."""
    verdict, data = page.verdict, page.data
    per_second = 1000 / data.step_ms
    series = [
        ("accepted", "accepted", [count * per_second for count in data.accepted]),
        ("settled", "settled", [count * per_second for count in data.finished]),
    ]
    marks = [(name, data.latency[name]) for name in ("p50", "p99") if name in data.latency]
    attempts = _attempts(data)
    return _template().render(
        title=f"Reconciliation of dispatch {page.facts.dispatch_id}",
        subtitle=_subtitle(page),
        mood="good" if verdict.ok and verdict.settled else "open" if verdict.ok else "bad",
        verdict=_sentence(str(verdict)),
        notes=verdict.notes,
        shares=stacked_bar([(_words(name), _COLOURS[name], verdict.counts[name]) for name in STATUSES], "commands by status"),
        tiles=list(_tiles(page)),
        counts=[_count(verdict, name) for name in _names(verdict) if not _is_left_out(verdict, name)],
        none=[_words(name) for name in _names(verdict) if _is_left_out(verdict, name)],
        throughput=rate_chart(series, data.step_ms, "commands accepted and settled per second"),
        throughput_caption=f"of commands with an outcome; averages over {short_duration(data.step_ms)}, from {_moment(data.first_ms)} on",
        latency=histogram(data.bins, _PER_DECADE, marks, "commands by time from acceptance to outcome"),
        latency_caption=_latency_caption(data),
        attempts=bar_chart(attempts, "commands by attempts") if attempts else "",
        slowest=[_slow_entity(each) for each in data.slowest],
        errors=[(each.error, _words(each.status), f"{each.count:,}", each.example) for each in data.errors],
    )


@lru_cache(maxsize=1)
def _template() -> Template:
    """Return the template, read as a resource, so that it is found in a zip too."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["shortened"] = _shortened
    return environment.from_string(
        files("command_bus.spark.reconciliation").joinpath("page.html.jinja").read_text(encoding="utf-8")
    )


def _subtitle(page: Page) -> str:
    facts = page.facts
    parts = [
        page.target,
        f"commands: {facts.what}" if facts.what else "",
        f"opened {_moment(facts.first_ms)}",
        f"committed {_moment(facts.done_ms)}" if facts.done_ms else "not committed",
        f"reconciled {_moment(page.at_ms)} in {page.seconds:.1f} s",
    ]
    return " · ".join(part for part in parts if part)


def _tiles(page: Page) -> Iterator[tuple[str, str]]:
    data, counts = page.data, page.verdict.counts
    span = (data.last_ms - data.first_ms) / 1000
    done = sum(data.finished)
    yield "commands", f"{page.verdict.total:,}"
    yield "completed", f"{counts['completed']:,}"
    yield "faults that must be none", f"{sum(counts.get(name, 0) for name in WRONG):,}"
    if "effects" in counts:
        yield "effects", f"{counts['effects']:,}"
    yield "from first acceptance to last outcome", short_duration(span * 1000) if done else "–"
    yield "settled per second, on average", short_number(done / span) if span > 0 else "–"
    yield "median latency", short_duration(data.latency["p50"]) if data.latency else "–"
    yield "run more than once", f"{sum(count for attempt, count in data.attempts.items() if attempt > 1):,}"


def _names(verdict: Verdict) -> list[str]:
    return [name for name in (*STATUSES, *FLAGS, *EFFECTS) if name in verdict.counts]


def _is_left_out(verdict: Verdict, name: str) -> bool:
    """Return whether a count is 0 and not worth a row: faults are always shown."""
    return not verdict.counts[name] and name not in ("completed", "pending", "effects", *WRONG)


def _count(verdict: Verdict, name: str) -> dict[str, Any]:
    """Return a row of the counts."""
    count = verdict.counts[name]
    style = "alarm" if count and name in WRONG else "" if count else "none"
    colour = _COLOURS.get(name, "bad" if name in WRONG else "good" if name == "effects" else "open")
    return {"name": _words(name), "count": f"{count:,}", "meaning": _MEANING[name], "style": style, "colour": colour}


def _latency_caption(data: ChartData) -> str:
    latency = ", ".join(f"{name} {short_duration(ms)}" for name, ms in data.latency.items())
    handling = ", ".join(f"{name} {short_duration(ms)}" for name, ms in data.handling.items())
    return f"Commands by time from acceptance to outcome: {latency or 'none yet'}. From first start to outcome: {handling or 'none yet'}."


def _attempts(data: ChartData) -> list[tuple[str, int]]:
    """Return the number of commands by attempts; the last bar holds all that follow."""
    items = [(f"attempt {attempt}" if attempt else "never started", count) for attempt, count in sorted(data.attempts.items())]
    if len(items) <= _MOST_ATTEMPTS:
        return items
    shown, rest = items[: _MOST_ATTEMPTS - 1], items[_MOST_ATTEMPTS - 1 :]
    return [*shown, (f"{rest[0][0]} or more", sum(count for _, count in rest))]


def _slow_entity(entity: SlowEntity) -> tuple[str, ...]:
    times = (short_duration(ms) for ms in (entity.mean_ms, entity.worst_ms, entity.handling_ms))
    return (entity.entity, f"{entity.commands:,}", *times, f"{entity.retried:,}")


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if ms else "–"


def _file_name(dispatch_id: str) -> str:
    """Return the dispatch id as part of a file's name; a changed id gets a digest, so that two ids never share a file."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", dispatch_id)[:80].strip("-.")
    return plain if plain == dispatch_id else f"{plain}-{sha256(dispatch_id.encode()).hexdigest()[:8]}".lstrip("-")
