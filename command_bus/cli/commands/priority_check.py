"""A check of `doctor`: whether priorities still order anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from command_bus.cli.commands.diagnosis import Finding

if TYPE_CHECKING:
    from command_bus.admin.info import Stats

_MANY = 1_000


def check_priorities(stats: Stats) -> list[Finding]:
    """Check that not nearly all that waits is high: then nothing comes first."""
    waiting = {each.priority: each.waiting for each in stats.priorities}
    high, others = waiting.get("high", 0), waiting.get("normal", 0) + waiting.get("low", 0)
    if high < _MANY or high < 4 * others:
        return []
    return [
        Finding(
            "priorities",
            "warning",
            f"{high:,} of {high + others:,} entities in line are high: so nothing comes first",
            'keep "high" for what is urgent, and give bulk work priority="low"',
        )
    ]
