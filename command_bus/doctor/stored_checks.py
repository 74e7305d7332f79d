"""Checks of `doctor` for what is stored: schedules and subscriptions, durable commands, unique keys, limits, priorities, history, letters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Any

from command_bus.clock import format_duration
from command_bus.doctor.diagnosis import CommandLine, Finding, command_line
from command_bus.messages.event import handles
from command_bus.spelling import some_of, without_numbers

if TYPE_CHECKING:
    from command_bus.admin.info import EntityInfo, Stats
    from command_bus.admin.limits import LimitInfo
    from command_bus.admin.subscriptions import SubscriptionInfo
    from command_bus.bus import CommandBus
    from command_bus.scheduling.info import ScheduleInfo
    from command_bus.serialization.announcements import CommandInfo
    from command_bus.transport.records import HistoryExtent

_SCANNED = 20_000
_STORM = 10


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


ErrorOf = Callable[["EntityInfo"], str]
"""Returns the last error of an entity, as far as it may be shown."""


def first_line_of(entity: EntityInfo) -> str:
    """Return the first line of an entity's last error; empty if there is none."""
    return "" if entity.failure is None else entity.failure.text.partition("\n")[0]


async def examine_retries(bus: CommandBus, line: CommandLine, error_of: ErrorOf) -> list[Finding]:
    """Look at entities that wait for another attempt: a thousand at most."""
    page = await bus.entities.list(states={"retrying"}, order="age", limit=1000, scan=_SCANNED)
    return check_retries(page.entities, line, error_of)


def check_retries(
    retrying: Sequence[EntityInfo], line: CommandLine = command_line, error_of: ErrorOf = first_line_of
) -> list[Finding]:
    """Check for storms: ten entities or more that are tried again after the same error, but for numbers in it."""
    storms: dict[str, list[str]] = {}
    for each in retrying:
        if text := error_of(each):
            storms.setdefault(without_numbers(text), []).append(text)
    advice = f"{line('entities', '--state', 'retrying')} shows them; pause their type while what they call is down"
    return [
        Finding("retry storm", "warning", f"{len(texts):,} entities: {texts[0]}", advice)
        for texts in sorted(storms.values(), key=len, reverse=True)
        if len(texts) >= _STORM
    ]


_MANY_SKIPPED = 5


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
    unhandled = [
        f"{each.name} ({each.command})" for each in found if each.state != "ended" and not handles(handled, each.command)
    ]
    if unhandled:
        advice = "start a worker that handles their commands, or pause them"
        findings.append(Finding("schedules unhandled", "warning", some_of(unhandled), advice))
    skipping = [
        each for each in found if each.skipped + each.left_out >= _MANY_SKIPPED and each.skipped + each.left_out > each.runs
    ]
    if skipping:
        shown = [
            f"{each.name} ({each.skipped + each.left_out:,} of {each.runs + each.skipped + each.left_out:,})" for each in skipping
        ]
        advice = (
            f"its command takes longer than its period, or no worker was there: {line('schedules', 'show', skipping[0].name)}"
        )
        findings.append(Finding("schedules skip", "warning", f"most ticks of {some_of(shown)}", advice))
    for name, fault in wrong.items():
        findings.append(Finding("schedule declared", "warning", f"{name} {fault}", line("schedules", "show", name)))
    if found and not findings:
        findings.append(Finding("schedules", "ok", f"{len(found):,}"))
    return findings


_MANY_DELIVERIES = 10_000
_OLD_DELIVERY = 3600.0  # seconds


async def examine_subscriptions(bus: CommandBus, line: CommandLine) -> list[Finding]:
    """Read the subscriptions with what waits for them, and check them."""
    found = await bus.subscriptions.list()
    return check_subscriptions(found, await bus.session.transport.operator.entities.now_ms(), line) if found else []


def check_subscriptions(found: Sequence[SubscriptionInfo], now_ms: int, line: CommandLine = command_line) -> list[Finding]:
    """Check subscriptions for those without a worker, and those that fall behind. That one is paused `check_work` says, too."""
    findings: list[Finding] = []
    for each in found:
        show = line("subscriptions", "show", each.name)
        if not each.workers:
            waits = each.waiting > 0 and each.paused is None
            text = f"{each.name}: no live worker handles it{f', and {each.waiting:,} deliveries wait' if each.waiting else ''}"
            advice = f"start a worker that does, or {line('subscriptions', 'remove', each.name)}"
            findings.append(Finding("subscriptions", "bad" if waits else "warning", text, advice))
        if each.waiting > _MANY_DELIVERIES:
            text = f"{each.name}: {each.waiting:,} deliveries wait for {each.entities:,} entities"
            findings.append(Finding("subscriptions", "warning", text, f"more workers, or quicker handlers; {show}"))
        age = 0.0 if each.oldest_ms is None else (now_ms - each.oldest_ms) / 1000
        if age > _OLD_DELIVERY:
            text = f"{each.name}: the oldest delivery was accepted {format_duration(age)} ago"
            advice = f"is one parked, or do its handlers fail? {show}"
            if each.paused is not None:
                text += f"; it is paused{': ' if each.paused else ''}{each.paused}"
                advice = line("subscriptions", "resume", each.name)
            findings.append(Finding("subscriptions", "warning", text, advice))
    return findings or [Finding("subscriptions", "ok", f"{len(found):,}")]


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


_LONG_LIMITED = 300.0  # seconds until the last of those that wait for a limit may start, or for which a handler holds it


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
        if each.waiting and max(free_in, behind) >= _LONG_LIMITED and each.held_for < _LONG_LIMITED:
            found = (
                f"{each.name}: {each.waiting:,} entities wait, the last for about {format_duration(max(free_in, behind))} more"
            )
            advice = f"{line('limits', 'list', each.name)}; is it still right?"
            findings.append(Finding("limits", "warning", found, advice))
        if each.held_for >= _LONG_LIMITED:
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
