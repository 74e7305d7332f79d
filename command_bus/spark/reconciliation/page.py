"""The page of a reconciliation: one HTML file to attach to a ticket, without scripts and without anything to load."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from pathlib import Path

from command_bus.spark.reconciliation.charts import bars, compact, duration, histogram, lines, strip
from command_bus.spark.reconciliation.verdict import FLAGS, STATUSES, Verdict
from command_bus.transport.bulk import DispatchFacts

__all__ = ["ChartData", "ErrorCount", "Page", "SlowEntity", "render_page", "write_page"]

_COLOURS = {
    "completed": "good", "rejected": "told", "expired": "told", "dead_lettered": "held", "parked": "held", "cancelled": "told",
    "discarded": "told", "quarantined": "told", "dropped": "told", "pending": "open", "forgotten": "bad", "missing": "bad",
    "unexpected": "open",
}  # fmt: skip
_MEANING = {
    "completed": "the handler returned",
    "rejected": "refused by the handler, for business reasons",
    "expired": "not started in time",
    "dead_lettered": "given up after all attempts; may be replayed",
    "parked": "given up, and its entity waits for an operator",
    "cancelled": "taken out of line before it started",
    "discarded": "its dead letter was discarded",
    "quarantined": "the row is no valid command; see the view 'rejects'",
    "dropped": "the row is no valid command, and no record of it was asked for",
    "pending": "accepted, and waits or runs",
    "forgotten": "no trace, but outcomes were trimmed: not provable",
    "missing": "no outcome, not in a mailbox: must be none",
    "unexpected": "of the dispatch, but of none of these rows",
    "duplicated": "an outcome after the final one: must be none",
    "out_of_order": "ran after a later command of its entity: must be none",
}
_MUST_BE_NONE = ("forgotten", "missing", *FLAGS)
_STYLE = """
:root { --ink: #1d2733; --soft: #647282; --rule: #dde3ea; --paper: #fff; --good: #2e7d5b; --told: #8a97a6; --held: #d9822b; --open: #6b8fd6;
  --bad: #c0392b; --accepted: #9aa9bb; --settled: #2b6cb0; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 32px 28px 48px; max-width: 1200px; color: var(--ink); background: var(--paper);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; }
h1 { margin: 0 0 4px; font-size: 23px; font-weight: 650; overflow-wrap: anywhere; } h2 { margin: 0 0 8px; font-size: 15px; font-weight: 650; }
p { margin: 0 0 8px; } .soft, figcaption { color: var(--soft); } svg { display: block; width: 100%; height: auto; }
.verdict { margin: 18px 0 14px; padding: 12px 16px; border-left: 6px solid var(--good); background: #f2f8f5; font-size: 17px; font-weight: 600; }
.verdict.open { border-color: var(--open); background: #f1f5fc; } .verdict.bad { border-color: var(--bad); background: #fcf1ef; }
ul.notes { margin: 0 0 16px; padding-left: 20px; } .tiles { display: flex; flex-wrap: wrap; gap: 12px 36px; margin: 20px 0 22px; }
.tiles b { display: block; font-size: 22px; font-weight: 650; } .grid2 { display: grid;
  grid-template-columns: 1fr 1fr; gap: 30px 28px; margin-top: 28px; }
figure { margin: 0; } figcaption { font-size: 12.5px; margin-top: 4px; } section { min-width: 0; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: 12.5px; } th, td {
  padding: 4px 10px 4px 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; overflow-wrap: break-word; } .n { text-align: right; } .n, .k { white-space: nowrap; }
td:last-child { overflow-wrap: anywhere; }
tr.none td { color: var(--soft); }
tr.alarm td { color: var(--bad); font-weight: 650; } .dot { display: inline-block; width: 10px; height: 10px; margin-right: 8px; border-radius: 2px; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); } svg text.strong { fill: var(--ink); font-weight: 600; }
.line { fill: none; stroke-width: 1.8; } .area { opacity: .16; } .grid { stroke: var(--rule); } .mark { stroke: var(--ink); stroke-dasharray: 3 3; }
.legend span { margin-right: 16px; } @media (max-width: 820px) { .grid2 { grid-template-columns: 1fr; } } @media print { body { padding: 0; } }
"""
_CLASSES = "".join(
    f".fill.{name}, .area.{name} {{ fill: var(--{name}); }} .line.{name} {{ stroke: var(--{name}); }} .dot.{name} {{ background: var(--{name}); }}\n"
    for name in ("good", "told", "held", "open", "bad", "accepted", "settled")
)
_PER_DECADE = 8
_LONGEST = 300  # characters of a cell


@dataclass(frozen=True, slots=True)
class SlowEntity:
    """An entity by its slowest command; times in ms from acceptance to the end, `handling_ms` from start to end, added up."""

    entity: str
    commands: int
    mean_ms: float
    worst_ms: float
    handling_ms: float
    retried: int


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """One kind of error, with one message of it."""

    fate: str
    error: str
    count: int
    example: str


@dataclass(frozen=True)
class ChartData:
    """What the pictures show.

    Attributes:
        first_ms: When the first command was accepted; 0 if none was.
        last_ms: When the last outcome came.
        step_ms: Width of a step of `accepted` and `finished`.
        accepted: Commands per step.
        finished: BulkOutcomes per step.
        latency: Quantile (`p50` …) to ms from acceptance to the end.
        handling: Likewise from the first start to the end.
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
    """All that the page tells."""

    facts: DispatchFacts
    verdict: Verdict
    figures: ChartData
    place: str
    at_ms: int
    seconds: float


def write_page(page: Page, folder: Path) -> Path:
    """Write the page into the folder, which is made if need be; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"reconciliation-{_file_name(page.facts.dispatch_id)}.html"
    path.write_text(render_page(page), encoding="utf-8")
    return path


def render_page(page: Page) -> str:
    """The page as HTML."""
    verdict, figures = page.verdict, page.figures
    title = f"Reconciliation of dispatch {page.facts.dispatch_id}"
    mood = "good" if verdict.ok and verdict.settled else "open" if verdict.ok else "bad"
    shares = [(_words(name), _COLOURS[name], verdict.counts[name]) for name in STATUSES]
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(_subtitle(page))}</p>',
        f'<div class="verdict {mood}">{escape(_sentence(str(verdict)))}.</div>',
        _notes(verdict.notes),
        strip(shares, "commands by fate"),
        _tiles(page),
        '<div class="grid2">',
        _section("What became of the commands", _counts(verdict)),
        _section("Throughput", _throughput(figures)),
        _section("From acceptance to outcome", _latency(figures)),
        _section("Attempts", _attempts(figures)),
        _section("Slowest entities", _slowest(figures.slowest)),
        _section("Errors by type", _errors(figures.errors)),
        "</div>",
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title><style>{_STYLE}{_CLASSES}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(body) + "\n</body></html>\n"


def _subtitle(page: Page) -> str:
    facts = page.facts
    parts = [
        f"{page.place}",
        f"commands: {facts.what}" if facts.what else "",
        f"opened {_moment(facts.first_ms)}",
        f"committed {_moment(facts.done_ms)}" if facts.done_ms else "not committed",
        f"reconciled {_moment(page.at_ms)} in {page.seconds:.1f} s",
    ]
    return " · ".join(part for part in parts if part)


def _notes(notes: Sequence[str]) -> str:
    return f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul>' if notes else ""


def _tiles(page: Page) -> str:
    figures, counts = page.figures, page.verdict.counts
    span = (figures.last_ms - figures.first_ms) / 1000
    done = sum(figures.finished)
    tiles = [
        ("commands", f"{page.verdict.total:,}"),
        ("completed", f"{counts['completed']:,}"),
        ("missing, twice or out of order", f"{sum(counts[name] for name in _MUST_BE_NONE):,}"),
        ("from first acceptance to last outcome", duration(span * 1000) if done else "–"),
        ("settled per second, on average", compact(done / span) if span > 0 else "–"),
        ("median latency", duration(figures.latency["p50"]) if figures.latency else "–"),
        ("run more than once", f"{sum(count for attempt, count in figures.attempts.items() if attempt > 1):,}"),
    ]
    return f'<div class="tiles">{"".join(f"<div><b>{escape(value)}</b><span class=soft>{escape(name)}</span></div>" for name, value in tiles)}</div>'


def _counts(verdict: Verdict) -> str:
    """What there is, and what must not be there; the rest in one line."""
    rows: list[str] = []
    none: list[str] = []
    for name in (*STATUSES, *FLAGS):
        count = verdict.counts[name]
        if not count and name not in ("completed", "pending", *_MUST_BE_NONE):
            none.append(_words(name))
            continue
        style = "alarm" if count and name in _MUST_BE_NONE else "" if count else "none"
        dot = f'<span class="dot {_COLOURS.get(name, "bad")}"></span>'
        cells = (
            f'<td class="k">{dot}{_words(name)}</td><td class="n">{count:,}</td><td class="soft">{escape(_MEANING[name])}</td>'
        )
        rows.append(f'<tr class="{style}">{cells}</tr>')
    rest = f'<p class="soft" style="margin-top:8px">None {", ".join(none)}.</p>' if none else ""
    return f"<table>{''.join(rows)}</table>{rest}"


def _throughput(figures: ChartData) -> str:
    per_second = 1000 / figures.step_ms
    series = [
        ("accepted", "accepted", [count * per_second for count in figures.accepted]),
        ("settled", "settled", [count * per_second for count in figures.finished]),
    ]
    legend = "".join(f'<span><span class="dot {colour}"></span>{name} per second</span>' for name, colour, _ in series)
    told = f"of commands with an outcome; averages over {duration(figures.step_ms)}, from {_moment(figures.first_ms)} on"
    caption = f'<figcaption class="legend">{legend}{escape(told)}</figcaption>'
    return f"<figure>{lines(series, figures.step_ms, 'commands accepted and settled per second')}{caption}</figure>"


def _latency(figures: ChartData) -> str:
    marks = [(name, figures.latency[name]) for name in ("p50", "p99") if name in figures.latency]
    picture = histogram(figures.bins, _PER_DECADE, marks, "commands by time from acceptance to outcome")
    told = ", ".join(f"{name} {duration(ms)}" for name, ms in figures.latency.items())
    inside = ", ".join(f"{name} {duration(ms)}" for name, ms in figures.handling.items())
    caption = (
        f"Commands by time from acceptance to outcome: {told or 'none yet'}. From first start to outcome: {inside or 'none yet'}."
    )
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"


def _attempts(figures: ChartData) -> str:
    items = [(f"attempt {attempt}" if attempt else "never started", count) for attempt, count in sorted(figures.attempts.items())]
    shown = items[:8]
    if len(items) > len(shown):
        shown[-1] = (f"{items[7][0]} or more", sum(count for _, count in items[7:]))
    if not shown:
        return '<p class="soft">Nothing has settled yet.</p>'
    picture = bars(shown, "commands by attempts")
    return f"<figure>{picture}<figcaption>Commands by the attempt that settled them; logarithmic.</figcaption></figure>"


def _slowest(entities: Sequence[SlowEntity]) -> str:
    if not entities:
        return '<p class="soft">None: nothing has settled yet, or the commands have no entities.</p>'
    head = _row(("entity", "commands", "mean", "slowest", "handling, sum", "retried"), numbers=range(1, 6), tag="th")
    rows = (
        [
            each.entity,
            f"{each.commands:,}",
            duration(each.mean_ms),
            duration(each.worst_ms),
            duration(each.handling_ms),
            f"{each.retried:,}",
        ]
        for each in entities
    )
    return f"<table>{head}{''.join(_row(row, numbers=range(1, 6)) for row in rows)}</table>"


def _errors(errors: Sequence[ErrorCount]) -> str:
    if not errors:
        return '<p class="soft">None.</p>'
    head = _row(("error", "fate", "commands", "for example"), numbers=(2,), tag="th")
    rows = ([each.error, _words(each.fate), f"{each.count:,}", each.example] for each in errors)
    return f"<table>{head}{''.join(_row(row, numbers=(2,)) for row in rows)}</table>"


def _row(cells: Iterable[str], *, numbers: Iterable[int], tag: str = "td") -> str:
    right = set(numbers)
    shown = (f"<{tag}{' class=n' if at in right else ''}>{escape(_cut(cell))}</{tag}>" for at, cell in enumerate(cells))
    return f"<tr>{''.join(shown)}</tr>"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if ms else "–"


def _file_name(dispatch_id: str) -> str:
    """The dispatch id as part of a file's name; ids that had to be changed get a digest, so that two never share a file."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", dispatch_id)[:80].strip("-.")
    return plain if plain == dispatch_id else f"{plain}-{sha256(dispatch_id.encode()).hexdigest()[:8]}".lstrip("-")
