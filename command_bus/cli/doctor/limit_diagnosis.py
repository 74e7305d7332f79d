"""The check of `doctor` about limits: a pure function from what was read to findings, each with advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from command_bus.cli.doctor.diagnosis import CommandLine, Finding, command_line
from command_bus.cli.output import format_duration
from command_bus.spelling import some_of

if TYPE_CHECKING:
    from command_bus.admin.info import Stats
    from command_bus.admin.limits import LimitInfo

_LONG = 300.0  # seconds until the last of those that wait for a limit may start, or for which a handler holds it


def check_limits(
    limits: Sequence[LimitInfo], named: Mapping[str, Sequence[str]], line: CommandLine = command_line
) -> list[Finding]:
    """Check limits: names without a rule, long queues and holds, and what was put above what code declares.

    Args:
        limits: All of them.
        named: The names of limits that classes name, by entity type.
        line: Makes commands to paste.
    """
    findings: list[Finding] = []
    known = {each.name for each in limits}
    unknown = sorted({name for names in named.values() for name in names} - known)
    if unknown:
        put = line("limits", "put", unknown[0], "--rate", "10/s")
        advice = (
            f"declare it in BusSettings(limits=…), or {put}; if no class names it any more, see docs/limits.md, What it costs"
        )
        findings.append(
            Finding("limits", "warning", f"{some_of(unknown)}: named by a class, and without a word on what it allows", advice)
        )
    for each in limits:
        free_in = each.free_in or 0.0
        behind = each.waiting / (each.rate / each.per) if each.rate and each.per else 0.0
        if each.waiting and max(free_in, behind) >= _LONG and each.held_for < _LONG:
            found = (
                f"{each.name}: {each.waiting:,} entities wait, the last for about {format_duration(max(free_in, behind))} more"
            )
            advice = f"{line('limits', 'list', each.name)}; is it still right?"
            findings.append(Finding("limits", "warning", found, advice))
        if each.held_for >= _LONG:
            found = f"{each.name}: a handler holds it for {format_duration(each.held_for)} more, {each.waiting:,} entities wait"
            advice = f"{line('limits', 'release', each.name)} ends that; with --key KEY for one bucket that {line('limits', 'list', each.name)} shows"
            findings.append(Finding("limits", "warning", found, advice))
        if each.declared:
            found = f"{each.name}: put by an operator, above what code declares ({each.declared})"
            findings.append(Finding("limits", "ok", found))
    return findings


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
