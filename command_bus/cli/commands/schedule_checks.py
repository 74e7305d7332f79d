"""The doctor's checks of schedules."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from command_bus.cli.commands.diagnosis import CommandLine, Finding
from command_bus.spelling import some_of

if TYPE_CHECKING:
    from command_bus.bus import CommandBus
    from command_bus.scheduling.info import ScheduleInfo

_OVERDUE = 60.0
_MOST = 10_000


async def examine_schedules(bus: CommandBus, handled: Sequence[str], line: CommandLine) -> list[Finding]:
    """Read at most ten thousand schedules, and check them and what the application declares.

    Args:
        bus: Open.
        handled: The commands that live workers handle.
        line: Makes the commands of the advice.
    """
    found: list[ScheduleInfo] = []
    async for info in bus.schedules.list():
        found.append(info)
        if len(found) == _MOST:
            break
    return check_schedules(found, await bus.schedules.compare(bus.registry), handled, time.time(), line)


def check_schedules(
    found: Sequence[ScheduleInfo], wrong: Mapping[str, str], handled: Sequence[str], now: float, line: CommandLine
) -> list[Finding]:
    """Check schedules for those that do not fire as they ought to."""
    findings: list[Finding] = []
    late = [each for each in found if each.next_at_ms is not None and now - each.next_at_ms / 1000 > _OVERDUE + each.jitter]
    if late:
        longest = max(now - (each.next_at_ms or 0) / 1000 for each in late)
        advice = f"is a worker with the extra `schedules` live? Are their entities full or drained? {line('schedules', 'show', late[0].name)}"
        text = f"{some_of([each.name for each in late])} overdue, by up to {longest:,.0f} s"
        findings.append(Finding("schedules overdue", "bad", text, advice))
    unhandled = [f"{each.name} ({each.command})" for each in found if each.state != "ended" and each.command not in handled]
    if unhandled:
        advice = "start a worker that handles their commands, or pause them"
        findings.append(Finding("schedules unhandled", "warning", some_of(unhandled), advice))
    for name, fault in wrong.items():
        findings.append(Finding("schedule declared", "warning", f"{name} {fault}", line("schedules", "show", name)))
    if found and not findings:
        findings.append(Finding("schedules", "ok", f"{len(found):,}"))
    return findings
