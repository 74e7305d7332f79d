"""Figures and times as people read them; the filters of the templates."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any

import jinja2

from command_bus.clock import wall_ms

_LAST_MS = 253_402_300_799_000  # the end of the year 9999
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))

TONES = {
    "bad": (
        "bad",
        "parked",
        "no handler",
        "no_handler",
        "dead_lettered",
        "failed",
        "interrupted",
        "lost",
        "refused",
        "missed",
        "expired",
    ),
    "warn": (
        "warning",
        "paused",
        "long",
        "retrying",
        "retried",
        "draining",
        "limited",
        "late",
        "rejected",
        "skipped",
        "cancelled",
        "discarded",
        "handed_back",
    ),
    "good": ("running", "completed", "alive", "live", "active", "started", "firing", "done", "ok"),
}
"""The colour of a state's word. What is not named is quiet."""

_TONE_OF = {word: name for name, words in TONES.items() for word in words}


def tone(word: str) -> str:
    """Return the colour of a state."""
    return _TONE_OF.get(word, "calm")


def span(seconds: float | None) -> str:
    """Return a length of time in its two largest units: `3 min 4 s`; empty for None."""
    if seconds is None:
        return ""
    if seconds == 0:
        return "0 s"
    if 0 < seconds < 0.001:
        return "< 1 ms"
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s" if seconds >= 1 else f"{max(seconds, 0) * 1000:.0f} ms"
    left, parts = int(seconds), list[str]()
    for size, name in _UNITS:
        if left >= size or (parts and len(parts) < 2):
            parts.append(f"{left // size} {name}")
            left %= size
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if not part.startswith("0 "))


def ago(at_ms: int | None, now_ms: int | None = None) -> str:
    """Return how long ago a time is, or in how long it comes; empty for none."""
    if not at_ms:
        return ""
    seconds = ((wall_ms() if now_ms is None else now_ms) - at_ms) / 1000
    if abs(seconds) < 1:
        return "now"
    return f"{span(seconds)} ago" if seconds > 0 else f"in {span(-seconds)}"


def when(at_ms: int | None) -> str:
    """Return a time in UTC: `2026-11-23 08:30:12`; empty for none."""
    return "" if not at_ms else _moment(at_ms).strftime("%Y-%m-%d %H:%M:%S")


def stamp(at_ms: int | None) -> str:
    """Return a time for programs, in ISO 8601; empty for none."""
    return "" if not at_ms else _moment(at_ms).isoformat(timespec="milliseconds")


def count(number: float | None) -> str:
    """Return a number with groups of thousands; empty for None."""
    if number is None:
        return ""
    return f"{number:,.0f}" if float(number).is_integer() or number >= 100 else f"{number:,.2f}".rstrip("0").rstrip(".")


def sentence(text: str) -> str:
    """Return a text with a large first letter, unless it begins with the name of something."""
    return text[:1].upper() + text[1:] if text.partition(" ")[0].isalpha() else text


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(min(max(at_ms, 0), _LAST_MS) / 1000, UTC)


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("command_bus.dashboard"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(ago=ago, count=count, sentence=sentence, span=span, stamp=stamp, tone=tone, when=when)
    return made


def render(template: str, **values: Any) -> str:
    """Return a page as text."""
    return _environment().get_template(template).render(**values)
