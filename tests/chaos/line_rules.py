"""Rules for the line of each entity: order, fences, one at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.chaos.facts import Facts, Violation
from tests.chaos.history import Started

__all__ = ["effects_in_order", "fences_grow", "no_overlap", "nothing_after_its_lease", "order"]

_ONE_WAKING = 1.0


def order(facts: Facts) -> Iterator[Violation]:
    """I1: first starts are in the order of acceptance."""
    for entity, starts in facts.by_entity.items():
        seen: set[int] = set()
        highest = -1
        for start in starts:
            if start.number < 0 or start.number in seen:
                continue
            seen.add(start.number)
            if start.number < highest:
                yield Violation("order", entity, f"number {start.number} was first started after {highest}", start.at)
            highest = max(highest, start.number)


def effects_in_order(facts: Facts) -> Iterator[Violation]:
    """I1: what the ledger accepted is in order, and nothing after a newer fence."""
    lines: dict[str, tuple[int, int]] = {}
    done: set[str] = set()
    for effect in facts.history.effects:
        number, fence = lines.get(effect.entity, (-1, 0))
        at = next((start.at for start in facts.by_id.get(effect.id, ()) if start.fence == effect.fence), 0.0)
        if effect.fence < fence:
            yield Violation("fence", effect.entity, f"an effect under fence {effect.fence} was accepted after {fence}", at)
        if 0 <= effect.number < number and not (effect.id in done and facts.runs_with_others(effect.id)):
            yield Violation("order of effects", effect.entity, f"number {effect.number} took effect after {number}", at)
        done.add(effect.id)
        lines[effect.entity] = (max(number, effect.number), max(fence, effect.fence))


def fences_grow(facts: Facts) -> Iterator[Violation]:
    """Find later starts with lower fences, unless the worker slept between receiving and starting; and refused rightful owners."""
    for entity, starts in facts.by_entity.items():
        highest: Started | None = None
        for start in sorted(starts, key=lambda start: start.at):
            if highest is None or start.fence > highest.fence:
                highest = start
            elif (start.who, start.fence) != (highest.who, highest.fence) and not facts.excuses.explains(
                start.who, highest.at, start.at
            ):
                yield Violation("fence", entity, f"{start.id} started under {start.fence} after {highest.fence}", start.at)
        for refusal in facts.history.refused:
            if refusal.entity == entity and not any(start.fence > refusal.fence and start.at <= refusal.at for start in starts):
                yield Violation("fence", entity, f"the owner {refusal.who} was refused under {refusal.fence}", refusal.at)


def nothing_after_its_lease(facts: Facts) -> Iterator[Violation]:
    """I11: a worker that slept beyond its leases starts nothing of them when it wakes.

    One start is allowed: its worker may have been stopped between the look at the lease and the handler's first line.
    """
    late: dict[str, list[Started]] = defaultdict(list)
    for starts in facts.by_entity.values():
        newest = 0
        for start in sorted(starts, key=lambda start: start.at):
            if start.fence < newest:
                late[start.who].append(start)
            newest = max(newest, start.fence)
    for who, starts in late.items():
        for together in _at_one_time(sorted(starts, key=lambda start: start.at)):
            if len(together) > 1:
                first = together[0]
                text = f"{who} started {len(together)} handlers whose entities others held already, {first.id} among them"
                yield Violation("late start", first.entity, text, first.at)


def _at_one_time(starts: list[Started]) -> list[list[Started]]:
    groups: list[list[Started]] = []
    for start in starts:
        if groups and start.at - groups[-1][-1].at < _ONE_WAKING:
            groups[-1].append(start)
        else:
            groups.append([start])
    return groups


def no_overlap(facts: Facts) -> Iterator[Violation]:
    """I2: find starts while another attempt runs that still owns the lease."""
    for entity, starts in facts.by_entity.items():
        running: list[Started] = []
        for start in sorted(starts, key=lambda start: start.at):
            running = [other for other in running if not ((end := facts.end_of(other)) and end.at <= start.at)]
            for other in running:
                if (start.who, start.fence) == (other.who, other.fence):
                    continue  # in one call, one after another
                if not facts.excuses.explains(other.who, other.at, start.at):
                    text = f"{start.id} started at {start.who} while {other.id} ran at {other.who}, to which nothing had happened"
                    yield Violation("overlap", entity, text, start.at)
            running.append(start)
