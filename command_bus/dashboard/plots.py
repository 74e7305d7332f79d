"""Plots as SVG, made on the server: lines over time, and bars of a distribution. Their colours are the style sheet's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from command_bus.dashboard.words import count, when

_WIDTH, _HEIGHT = 560, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 8, 10, 24
_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (0.001, "ms"))


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a plot.

    Attributes:
        name: The name of what.
        values: One for each time; None is a gap.
        tone: Its colour.
    """

    name: str
    values: Sequence[float | None]
    tone: str = "accent"


def nice_top(most: float) -> float:
    """Return the next larger of 1, 2, 5, 10, 20, …: the top of an axis."""
    if most <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(most))
    return next(size * each for each in (1, 2, 5, 10) if most <= size * each * (1 + 1e-9))


def unit_of(seconds: float) -> tuple[float, str]:
    """Return the seconds of the unit in which an axis up to so many is short, and its name."""
    return next((each for each in _UNITS if seconds > 2 * each[0]), _UNITS[-2])


def line_plot(label: str, times: Sequence[int], lines: Sequence[Line], *, seconds: bool = False) -> Markup:
    """Return a plot of lines over time (ms). Values are numbers, or seconds."""
    most = max((value for line in lines for value in line.values if value is not None), default=0.0)
    size, unit = unit_of(most) if seconds else (1.0, "")
    top = nice_top(most / size) * size
    first, last = (times[0], times[-1]) if times else (0, 1)
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(at: int) -> float:
        return _LEFT + wide * (at - first) / max(last - first, 1)

    def y(value: float) -> float:
        return _TOP + high * (1 - min(value / top, 1.0))

    parts = [_grid(top / size, unit), _clock(first, last)]
    for line in lines:
        path = _path([(x(at), None if value is None else y(value)) for at, value in zip(times, line.values, strict=True)])
        parts.append(Markup('<path class="line {}" d="{}"/>').format(line.tone, path))
    return _figure(label, parts, lines)


def bars(label: str, names: Sequence[str], values: Sequence[float]) -> Markup:
    """Return a plot of bars, with its names below."""
    top, wide = nice_top(max(values, default=0)), (_WIDTH - _LEFT - _RIGHT) / max(len(values), 1)
    high = _HEIGHT - _TOP - _BOTTOM
    parts = [_grid(top)]
    for at, (name, value) in enumerate(zip(names, values, strict=True)):
        tall = high * value / top
        left = _LEFT + at * wide
        bar = Markup('<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}: {}</title></rect>')
        parts.append(bar.format(left + 2, _TOP + high - tall, max(wide - 4, 1), tall, name, count(value)))
        text = Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>')
        parts.append(text.format(left + wide / 2, _HEIGHT - 6, name))
    return _figure(label, parts, ())


def _figure(label: str, parts: Sequence[Markup], lines: Sequence[Line]) -> Markup:
    legend = Markup("").join(
        Markup('<span class="key {}"><span class="swatch" aria-hidden="true"></span>{}</span>').format(line.tone, line.name)
        for line in lines
    )
    drawing = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        _WIDTH, _HEIGHT, label, Markup("").join(parts)
    )
    shown = Markup('<div class="legend">{}</div>').format(legend) if lines else Markup("")
    return Markup('<figure class="plot"><figcaption>{}</figcaption>{}{}</figure>').format(escape(label), drawing, shown)


def _grid(top: float, unit: str = "") -> Markup:
    """Return the lines behind a plot with their numbers, of a unit or none."""
    parts: list[Markup] = []
    for step in range(3):
        value, at = top * step / 2, _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - step / 2)
        parts.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(_LEFT, _WIDTH - _RIGHT, at, at)
        )
        name = f"{value:g} {unit}" if unit else count(value)
        parts.append(Markup('<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(_LEFT - 8, at + 4, name))
    return Markup("").join(parts)


def _clock(first: int, last: int) -> Markup:
    """Return the times below: begin, middle and end, in UTC."""
    parts: list[Markup] = []
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        at = _LEFT + (_WIDTH - _LEFT - _RIGHT) * share
        text = Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="{}">{}</text>')
        parts.append(text.format(at, _HEIGHT - 6, anchor, when(int(first + (last - first) * share))[11:16]))
    return Markup("").join(parts)


def _path(points: Sequence[tuple[float, float | None]]) -> str:
    """Return the path of a line, interrupted at gaps."""
    parts: list[str] = []
    begins = True
    for x, y in points:
        if y is None:
            begins = True
            continue
        parts.append(f"{'M' if begins else 'L'}{x:.1f} {y:.1f}")
        begins = False
    return " ".join(parts)
