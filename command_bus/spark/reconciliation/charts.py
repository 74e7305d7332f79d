"""The charts of a reconciliation, as handwritten SVG: the page needs no library and no other file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

WIDTH, HEIGHT = 560, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 14, 34
_TICKS = 4

Series = tuple[str, str, Sequence[float]]
"""Name, CSS class, values."""


_Scale = Sequence[tuple[float, float, str]]
"""The values below which a unit is used, its size, and its name."""
_NUMBERS: _Scale = ((999.5, 1, ""), (999.5e3, 1e3, "k"), (999.5e6, 1e6, "M"), (math.inf, 1e9, "G"))
_DURATIONS: _Scale = (
    (1e3, 1, " ms"), (120e3, 1e3, " s"), (7.2e6, 6e4, " min"), (1.728e8, 3.6e6, " h"), (math.inf, 8.64e7, " d")
)  # fmt: skip


def short_number(value: float) -> str:
    """Return a number in few characters: 950, 12.5k, 3.1M."""
    return _short(value, _NUMBERS)


def short_duration(ms: float) -> str:
    """Return milliseconds for people: 8 ms, 1.5 s, 12 min, 3.2 h, 2 d."""
    return _short(ms, _DURATIONS)


def _short(value: float, scale: _Scale) -> str:
    size, unit = next(((size, unit) for limit, size, unit in scale if abs(value) < limit), (1, ""))
    short = value / size
    return (f"{short:.1f}".removesuffix(".0") if abs(short) < 100 else f"{short:.0f}") + unit


def rate_chart(series: Sequence[Series], step_ms: float, title: str) -> str:
    """Draw rates over time: each value is an average over one step."""
    count = max((len(values) for _, _, values in series), default=0)
    top = _nice(max((value for _, _, values in series for value in values), default=0.0))
    parts = [_y_axis(top), *_time_axis(count * step_ms)]
    for name, colour, values in series:
        points: list[str] = []
        for index, value in enumerate(values):
            y = _y(value, top)
            points += [f"{_x(index, count):.1f},{y:.1f}", f"{_x(index + 1, count):.1f},{y:.1f}"]
        if points:
            base = f"{_x(0, count):.1f},{_y(0, top):.1f}"
            end = f"{_x(len(values), count):.1f},{_y(0, top):.1f}"
            parts.append(f'<polygon class="area {colour}" points="{base} {" ".join(points)} {end}"/>')
            parts.append(f'<polyline class="line {colour}" points="{" ".join(points)}"><title>{escape(name)}</title></polyline>')
    return _svg(parts, title)


def histogram(bins: Sequence[tuple[float, int]], per_decade: int, marks: Iterable[tuple[str, float]], title: str) -> str:
    """Draw counts of durations on a logarithmic axis.

    Args:
        bins: Lower end in ms and count, ascending.
        per_decade: Bins in a factor of ten.
        marks: Name and ms of vertical lines.
        title: Text for screen readers.
    """
    if not bins:
        return _svg([_text(WIDTH / 2, HEIGHT / 2, "nothing has settled yet", "middle")], title)
    low = math.floor(math.log10(bins[0][0]) * per_decade + 1e-9)
    high = max(math.floor(math.log10(bins[-1][0]) * per_decade + 1e-9) + 1, low + 1)
    if high - low < 2 * per_decade:  # at least two labels, to read a width from
        low, high = low // per_decade * per_decade, -(-high // per_decade) * per_decade
    top = _nice(max(count for _, count in bins))
    count = high - low
    parts = [_y_axis(top)]
    for start, value in bins:
        at = round(math.log10(start) * per_decade) - low
        x, y = _x(at, count), _y(value, top)
        parts.append(
            f'<rect class="fill settled" x="{x + 0.5:.1f}" y="{y:.1f}" width="{_x(at + 1, count) - x - 1:.1f}" height="{_y(0, top) - y:.1f}">'
            f"<title>{short_duration(start)} to {short_duration(start * 10 ** (1 / per_decade))}: {value:,}</title></rect>"
        )
    decades = range(math.ceil(low / per_decade), high // per_decade + 1)
    parts += [
        _text(_x(at * per_decade - low, count), HEIGHT - _BOTTOM + 16, short_duration(10.0**at), "middle") for at in decades
    ]
    for level, (name, ms) in enumerate(marks):
        x = _x(min(max(math.log10(max(ms, 1.0)) * per_decade - low, 0), count), count)
        side = "end" if x > WIDTH * 0.7 else "start"
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_y(0, top):.1f}"/>')
        parts.append(
            _text(x + (-4 if side == "end" else 4), _TOP + 9 + 13 * level, f"{name} {short_duration(ms)}", side, "strong")
        )
    return _svg(parts, title)


def bar_chart(items: Sequence[tuple[str, int]], title: str) -> str:
    """Draw counts by name, as horizontal bars on a logarithmic scale, which shows rare retries beside millions of first attempts."""
    row, left = 26, 110
    top = max((count for _, count in items), default=1)
    parts: list[str] = []
    for index, (name, count) in enumerate(items):
        y = index * row + 4
        width = (WIDTH - left - 90) * math.log10(count + 1) / math.log10(top + 1)
        parts.append(_text(left - 8, y + 14, name, "end"))
        parts.append(f'<rect class="fill settled" x="{left}" y="{y}" width="{max(width, 1):.1f}" height="{row - 8}" rx="2"/>')
        parts.append(_text(left + max(width, 1) + 6, y + 14, f"{count:,}", "start", "strong"))
    return _svg(parts, title, max(len(items), 1) * row + 8)


def stacked_bar(shares: Sequence[tuple[str, str, int]], title: str) -> str:
    """Draw one divided bar: name, CSS class and count of each part. Even the smallest part is visible."""
    shown = [(name, colour, count) for name, colour, count in shares if count]
    width, least = 1144, 3.0
    total = sum(count for _, _, count in shown) or 1
    room = width - least * len(shown)
    x = 0.0
    parts: list[str] = []
    for name, colour, count in shown:
        part = least + room * count / total
        parts.append(
            f'<rect class="fill {colour}" x="{x:.1f}" y="0" width="{max(part - 1, 1):.1f}" height="22">'
            f"<title>{escape(name)}: {count:,}</title></rect>"
        )
        x += part
    return _svg(parts, title, 22, width)


def _svg(parts: Iterable[str], title: str, height: float = HEIGHT, width: float = WIDTH) -> str:
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title, quote=True)}">{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, anchor: str, style: str = "soft") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _x(index: float, count: int) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * index / max(count, 1)


def _y(value: float, top: float) -> float:
    return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * value / top


def _y_axis(top: float) -> str:
    parts: list[str] = []
    for tick in range(_TICKS + 1):
        value = top * tick / _TICKS
        y = _y(value, top)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(_LEFT - 6, y + 4, short_number(value), "end"))
    return "".join(parts)


def _time_axis(span_ms: float) -> list[str]:
    """Return labels at round times, from the start on."""
    if span_ms <= 0:
        return []
    steps = (
        *(factor * 10**power for power in range(5) for factor in (1, 2, 5)),
        *(minutes * 60_000 for minutes in (1, 2, 5, 10, 30)),
        *(hours * 3_600_000 for hours in (1, 2, 6, 12, 24, 48, 168, 720)),
    )
    step = next((step for step in steps if span_ms / step <= 6), span_ms / 5)
    return [
        _text(
            _LEFT + (WIDTH - _LEFT - _RIGHT) * at * step / span_ms,
            HEIGHT - _BOTTOM + 16,
            short_duration(at * step) if at else "0",
            "middle",
        )
        for at in range(int(span_ms / step) + 1)
    ]


def _nice(value: float) -> float:
    """Return a round number not below the value, which four ticks divide well."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 4, 8, 10) if factor * power >= value * 0.9999)
