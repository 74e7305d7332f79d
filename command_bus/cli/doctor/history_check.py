"""The check of `doctor` about the history: whether it keeps up with deleting what is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from command_bus.cli.doctor.diagnosis import CommandLine, Finding, command_line
from command_bus.cli.output import format_duration

if TYPE_CHECKING:
    from command_bus.admin.info import Stats
    from command_bus.bus import CommandBus
    from command_bus.transport.records import HistoryExtent

_LOOKED_AT = 20
"""Ends of each shard that are looked at. Each may have a payload, so they are few."""
_LATE = 86_400.0
"""Seconds for which an end may be kept beyond its age: each new end deletes two, so a quiet night leaves some."""
_FEW = 1000
"""Ends of a shard that need no warning."""
_BEYOND = 0.1
"""The part of its number by which a history may be longer."""


async def examine_history(bus: CommandBus) -> list[Finding]:
    """Look at the oldest ends of each shard, as far as this user may."""
    from command_bus.errors import CommandBusError

    try:
        return check_history(await bus.session.transport.operator.history.extents(_LOOKED_AT))
    except CommandBusError:
        return []


def check_history(extents: Sequence[HistoryExtent]) -> list[Finding]:
    """Check for histories that are longer, or keep ends for longer, than they were told to."""
    long = [each for each in extents if each.ends > _FEW]
    findings: list[Finding] = []
    beyond = [(each.ends, number, each.shard) for each in long if each.ends > (number := _number(each)) * (1 + _BEYOND)]
    if beyond:
        ends, number, shard = max(beyond)
        advice = (
            "each new end deletes two that are over, so it shrinks as commands end; was the number of `history=` made smaller?"
        )
        findings.append(Finding("history number", "warning", f"shard {shard} keeps {ends:,} ends, of {number:,}", advice))
    late = [(seconds, each.shard) for each in long if (seconds := _late(each)) > _LATE]
    if late:
        seconds, shard = max(late)
        advice = (
            "each new end deletes two that are over, and one with a long age holds those behind it: give what ends often no longer age "
            "than the rest, or let the memory be; search does not show them"
        )
        text = f"shard {shard} keeps ends whose age was over {format_duration(seconds)} ago"
        findings.append(Finding("history age", "warning", text, advice))
    total = sum(each.ends for each in extents)
    if total and not findings:
        findings.append(Finding("history", "ok", f"{total:,} ends"))
    return findings


def _number(extent: HistoryExtent) -> int:
    """Return the number that the oldest end of a history is kept among: an end with a larger one holds those behind it."""
    return extent.oldest[0].number if extent.oldest else extent.ends


def _late(extent: HistoryExtent) -> float:
    """Return for how many seconds the age of one of the oldest ends has been over; negative: it is not."""
    return max(((extent.now_ms - each.settled_ms - each.age_ms) / 1000 for each in extent.oldest), default=-1.0)


_MANY_LETTERS, _OLD_LETTER = 10_000, 30 * 86_400.0  # letters; seconds


def check_dead_letters(
    stats: Stats,
    age: float | None,
    line: CommandLine = command_line,
    *,
    ttl: float | None = None,
    most: int | None = None,
) -> list[Finding]:
    """Check for old or many dead letters.

    Args:
        stats: The namespace's figures.
        age: Seconds since the oldest was written; None if there is none.
        line: Makes the commands of the advice.
        ttl: `dead_letter_ttl` of this environment; workers may have another.
        most: `max_dead_letters` of this environment.
    """
    if age is None or (stats.dead_letters < max(_MANY_LETTERS, most or 0) and age < max(_OLD_LETTER, ttl or 0.0)):
        return []
    found = f"{stats.dead_letters:,} dead letters, the oldest from {format_duration(age)} ago"
    if ttl or most or stats.pruned:
        found += ": workers delete the oldest, but none that parks an entity"
        advice = f"replay or discard them: {line('entities', '--state', 'parked')}; do all workers have the same bounds?"
    else:
        purge = line("dlq", "purge", "--until", "30d", "--yes")
        found += ": without a bound none goes away by itself"
        advice = f"replay or discard them, and set dead_letter_ttl or max_dead_letters, or run `{purge}` every day"
    return [Finding("retention", "warning", found, advice)]
