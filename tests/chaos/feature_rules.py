"""Rules for what a run may switch on: limits, schedules, unique keys, the history."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import get_args

from command_bus.serialization.outcome import Status
from tests.chaos.facts import Facts, Violation
from tests.chaos.features import JOURNEYS, PLACES, RATE, SUBSCRIPTIONS, is_firing, tick_number
from tests.chaos.history import Started
from tests.chaos.messages import Total

__all__ = [
    "each_tick_once",
    "ends_kept",
    "last_trigger_runs",
    "mirrored",
    "moved_in_both",
    "places_kept",
    "rate_kept",
    "state_agrees",
]


def rate_kept(facts: Facts) -> Iterator[Violation]:
    """I11: accounts start no more often than their rate allows, by the server's time, which a fence is.

    A start of another shard is allowed by the first one, and follows within the lease. A failover may take what the first shard had counted.
    """
    if "limits" not in facts.history.features:
        return
    failovers = sum(fault.kind == "failover" for fault in facts.history.faults)
    second = RATE.count / RATE.per
    burst = (1 + failovers) * RATE.tokens + second * (2 * facts.history.lease + failovers)
    full = 0.0  # when the bucket is full again, in seconds
    for start in sorted(_of(facts, "account"), key=lambda start: start.fence):
        at = start.fence / 1_000_000
        full = max(full, at) + 1 / second
        if full - at > burst / second:
            yield Violation("rate", start.entity, f"{start.id} was a start too many", start.at)
            return


def places_kept(facts: Facts) -> Iterator[Violation]:
    """I12: no more lines, or journeys, run at a time than there are places. Handlers beyond their lease do not count."""
    if "limits" in facts.history.features:
        yield from _of_type_kept(facts, "line", PLACES)
        yield from _of_type_kept(facts, "journey", JOURNEYS)


def _of_type_kept(facts: Facts, entity_type: str, places: int) -> Iterator[Violation]:
    moments: list[tuple[float, int, Started]] = []
    for start in _of(facts, entity_type):
        end = facts.end_of(start)
        if end is not None and not facts.excuses.explains(start.who, start.at, end.at):
            moments += [(start.at, 1, start), (end.at, -1, start)]
    running = 0
    for at, change, start in sorted(moments, key=lambda moment: moment[:2]):
        running += change
        if running > places:
            yield Violation("places", start.entity, f"{start.id} ran as number {running} at a time, {places} may", at)
            return


def each_tick_once(facts: Facts) -> Iterator[Violation]:
    """I13: each tick of a schedule is fired, none is left out. That none runs twice, `not_twice` says."""
    fired: dict[str, list[int]] = defaultdict(list)
    for command in {*facts.by_id, *facts.final.outcomes}:
        if is_firing(command):
            fired[command.rpartition("@")[0]].append(tick_number(command))
    for name, numbers in fired.items():
        for earlier, later in pairwise(sorted(numbers)):
            if later != earlier + 1:
                yield Violation("tick", name, f"{later - earlier - 1} ticks after {earlier} were left out")


def last_trigger_runs(facts: Facts) -> Iterator[Violation]:
    """I14: a command is replaced only by a later one of its key, and the last one is not."""
    last: dict[str, int] = defaultdict(lambda: -1)
    for requests in facts.asked.values():
        first = requests[0]
        if first.unique and any(request.answer in ("accepted", "duplicate") for request in requests):
            last[first.entity] = max(last[first.entity], first.number)
    for command, outcome in facts.final.outcomes.items():
        if outcome != "cancelled" or not facts.asked.get(command):
            continue
        first = facts.asked[command][0]
        if first.kind in ("Journey", "Errand"):
            continue  # `journey_ended` and `outcomes_true` decide
        if not first.unique or first.number >= last[first.entity]:
            yield Violation(
                "replaced", first.entity, f"{command} was replaced, and no later one of its key was accepted", first.at
            )


def ends_kept(facts: Facts) -> Iterator[Violation]:
    """I15: with a history, each settled command has one end there, which agrees with its outcome."""
    if "history" not in facts.history.features:
        return
    ends: dict[str, str] = {}
    for command, status in facts.final.ends:
        if command in ends:
            yield Violation("history", facts.entity_of(command), f"{command} has two ends, {ends[command]} and {status}")
        ends[command] = status
    for command, outcome in facts.final.outcomes.items():
        status = ends.get(command, "")
        if outcome == "waiting":
            if status:
                yield Violation("history", facts.entity_of(command), f"{command} waits, and has ended as {status}")
        elif status not in _STATUSES.get(outcome, _LETTERS):
            yield Violation("history", facts.entity_of(command), f"{command} is {outcome}, and its end {status or 'is missing'}")


def state_agrees(facts: Facts) -> Iterator[Violation]:
    """I16: the state of an entity is what its completed commands make of it, each once, in their order."""
    if "state" not in facts.history.features:
        return
    completed: dict[str, list[int]] = defaultdict(list)
    for command, outcome in facts.final.outcomes.items():
        if outcome == "completed" and facts.asked[command] and facts.asked[command][0].kind == "Tally":
            completed[facts.asked[command][0].entity].append(facts.asked[command][0].number)
    for entity in {*completed, *facts.final.totals}:
        total = Total()
        for number in sorted(completed[entity]):
            total.add(number)
        found = facts.final.totals.get(entity, (0, 0))
        if found != (total.count, total.digest):
            yield Violation(
                "state", entity, f"its state has counted {found[0]}, and {total.count} were completed; or in another order"
            )


def moved_in_both(facts: Facts) -> Iterator[Violation]:
    """I18: a move took effect in the lines of both vaults or in none, and was started in both."""
    for command in facts.asked:
        if not command.endswith("~"):
            continue
        home = command.removesuffix("~")
        for what, here, there in (
            ("took effect", facts.effects[command], facts.effects[home]),
            ("was started", len(facts.by_id.get(command, ())), len(facts.by_id.get(home, ()))),
        ):
            # A worker that dies between two notes has noted the place alone.
            if here < there or (what == "took effect" and here != there):
                yield Violation(
                    "both lines", facts.entity_of(command), f"{home} {what} {there} times in one line, {here} times in the other"
                )


def mirrored(facts: Facts) -> Iterator[Violation]:
    """I17: each subscription has one effect for each completed `Apply` of a line, in their order."""
    if "publication" not in facts.history.features:
        return
    effects: dict[str, list[int]] = defaultdict(list)
    for effect in facts.history.effects:
        effects[effect.entity].append(effect.number)
    completed: dict[str, list[int]] = defaultdict(list)
    for command, outcome in facts.final.outcomes.items():
        first = facts.asked[command][0] if facts.asked[command] else None
        if outcome == "completed" and first is not None and first.kind == "Apply" and facts.by_id.get(command):
            completed[first.entity.partition(":")[2]].append(first.number)
    for line, numbers in completed.items():
        for name in SUBSCRIPTIONS:
            found = [*dict.fromkeys(effects[f"line@{name}:{line}"])]
            if sorted(numbers) != found:
                missing, surplus = sorted({*numbers} - {*found})[:5], sorted({*found} - {*numbers})[:5]
                yield Violation(
                    "mirror", f"line@{name}:{line}", f"misses {missing}, has {surplus} too many; {len(found)} of {len(numbers)}"
                )


_LETTERS = ("dead_lettered", "expired", "parked", "discarded")
_STATUSES = {
    "completed": ("completed",),
    "rejected": ("rejected",),
    "cancelled": ("cancelled", "superseded"),
    "settled": get_args(Status),
}


def _of(facts: Facts, entity_type: str) -> list[Started]:
    return [start for start in facts.history.started if start.entity.startswith(f"{entity_type}:")]
