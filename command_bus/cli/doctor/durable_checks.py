"""Checks of `doctor` for durable commands: what is suspended for long, and what was stored for commands that are not known."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Any

from command_bus.cli.doctor.diagnosis import CommandLine, Finding, command_line
from command_bus.cli.output import format_duration
from command_bus.spelling import some_of

if TYPE_CHECKING:
    from command_bus.admin.info import EntityInfo
    from command_bus.bus import CommandBus
    from command_bus.scheduling.info import ScheduleInfo
    from command_bus.serialization.announcements import CommandInfo

_SCANNED = 20_000


async def examine_durable(bus: CommandBus, longest: float, line: CommandLine) -> list[Finding]:
    """Look at suspended commands and side records, as far as this user may.

    Args:
        bus: Open.
        longest: Seconds after which a suspension is worth a warning.
        line: Makes command lines.
    """
    from command_bus.errors import CommandBusError

    transport = bus.session.transport
    page = await bus.entities.list(states={"suspended"}, order="age", limit=1000, scan=_SCANNED)
    found = check_suspended(page.entities, longest, await transport.operator.entities.now_ms(), line)
    try:
        return found + check_orphans(await transport.durable.orphans(_SCANNED))
    except CommandBusError:  # a user that may not look through all keys
        return found


def check_suspended(
    suspended: Sequence[EntityInfo], longest: float, now_ms: int, line: CommandLine = command_line
) -> list[Finding]:
    """Check for commands that have been suspended for longer than so many seconds."""
    long = [
        (each.name, waited, each.suspension)
        for each in suspended
        if each.suspension is not None and (waited := (now_ms - each.suspension.since_ms) / 1000) >= longest
    ]
    if not long:
        return []
    shown = [f"{name} for {format_duration(waited)}: {suspension}" for name, waited, suspension in long]
    _, _, first = long[0]
    advice = f"is it still wanted? {line('command', first.command_id)} shows it; signal or cancel --running ends the wait"
    return [Finding("suspended for long", "warning", some_of(shown), advice)]


def check_orphans(command_ids: Sequence[str]) -> list[Finding]:
    """Check for stored steps of commands that are not known."""
    if not command_ids:
        return []
    advice = (
        "they are of commands that were removed by hand or lost in a failover; delete the keys `x:<id>` once they are of no use"
    )
    return [Finding("stored steps", "warning", f"of {len(command_ids):,} unknown commands: {some_of(list(command_ids))}", advice)]


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


_LONG = 3600.0  # seconds for which a command that fails may hold its key


def check_unique(commands: Sequence[CommandInfo]) -> list[Finding]:
    """Check the unique keys that classes have, as their workers announce them.

    Args:
        commands: All that are announced.
    """
    keyed = [(each, each.policy["unique"]) for each in commands if isinstance(each.policy.get("unique"), Mapping)]
    return [*_shared_keys(keyed), *_long_retries(keyed)]


def _shared_keys(keyed: Sequence[tuple[CommandInfo, Mapping[str, Any]]]) -> Iterator[Finding]:
    """Find keys that classes of one entity type share, and fold in different ways."""
    sharing: dict[tuple[str | None, str], dict[str, Mapping[str, Any]]] = {}
    for each, unique in keyed:
        sharing.setdefault((each.entity, str(unique.get("key"))), {})[each.name] = unique
    for (entity, key), found in sharing.items():
        if len({(unique.get("wins"), unique.get("until")) for unique in found.values()}) > 1:
            yield Finding(
                "unique keys",
                "warning",
                f"{some_of(sorted(found))} of {entity}: share the key {key!r}, and differ in which of two wins or how long it is held",
                "give each a key of its own, or the same `wins` and `until`",
            )


def _long_retries(keyed: Sequence[tuple[CommandInfo, Mapping[str, Any]]]) -> Iterator[Finding]:
    """Find commands that drop what comes for as long as their retries take."""
    for each, unique in keyed:
        held = longest_retry(each.policy)
        if unique.get("until") == "settled" and held > _LONG:
            yield Finding(
                "unique keys",
                "warning",
                f"{each.name}: one that fails is retried for up to {format_duration(held)}, and all with its key are dropped meanwhile",
                "write Unique(until='started') or wins='latest', or fewer or quicker retries",
            )


def longest_retry(policy: Mapping[str, Any]) -> float:
    """Return for how many seconds the retries of an announced policy wait at most; 0 if it does not say."""
    attempts, delays, most = policy.get("attempts"), policy.get("delays"), policy.get("max_delay")
    if not isinstance(attempts, int) or attempts < 2:
        return 0.0
    if isinstance(delays, Sequence) and delays and all(isinstance(each, int | float) for each in delays):
        return float(sum(delays[: attempts - 1]))
    factors = {"exponential": policy.get("factor"), "fixed": 1}  # of a function nothing is known
    delay, factor = policy.get("delay"), factors.get(str(policy.get("backoff")))
    if not isinstance(delay, int | float) or not isinstance(factor, int | float) or not isinstance(most, int | float):
        return 0.0
    limit: float = most
    times = min(attempts, 1000) - 2
    return float(sum(accumulate(repeat(factor, times), lambda wait, by: min(wait * by, limit), initial=min(delay, limit))))
