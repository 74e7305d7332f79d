"""The check of `doctor` about old or many dead letters: a pure function from what was read to findings, each with advice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from command_bus.cli.commands.diagnosis import CommandLine, Finding, command_line
from command_bus.cli.output import format_duration

if TYPE_CHECKING:
    from command_bus.admin.info import Stats

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
