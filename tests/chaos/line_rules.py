"""What must hold of the line of each entity: order, fences, one at a time."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.facts import Facts, Violation
from tests.chaos.history import Started

__all__ = ["effects_in_order", "fences_grow", "no_overlap", "order"]


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
    for effect in facts.history.effects:
        number, fence = lines.get(effect.entity, (-1, 0))
        at = next((start.at for start in facts.by_id.get(effect.id, ()) if start.fence == effect.fence), 0.0)
        if effect.fence < fence:
            yield Violation("fence", effect.entity, f"an effect under fence {effect.fence} was accepted after {fence}", at)
        if 0 <= effect.number < number:
            yield Violation("order of effects", effect.entity, f"number {effect.number} took effect after {number}", at)
        lines[effect.entity] = (max(number, effect.number), max(fence, effect.fence))


def fences_grow(facts: Facts) -> Iterator[Violation]:
    """A later start has a higher fence, unless its worker slept between receiving and starting it; a rightful owner is never refused."""
    for entity, starts in facts.by_entity.items():
        highest: Started | None = None
        for start in sorted(starts, key=lambda start: start.at):
            if highest is None or start.fence > highest.fence:
                highest = start
            elif not facts.excuses.explains(start.who, highest.at, start.at):
                yield Violation("fence", entity, f"{start.id} started under {start.fence} after {highest.fence}", start.at)
        for refusal in facts.history.refused:
            if refusal.entity == entity and not any(start.fence > refusal.fence and start.at <= refusal.at for start in starts):
                yield Violation("fence", entity, f"the owner {refusal.who} was refused under {refusal.fence}", refusal.at)


def no_overlap(facts: Facts) -> Iterator[Violation]:
    """I2: nobody starts while another runs who still owns the lease."""
    for entity, starts in facts.by_entity.items():
        running: list[Started] = []
        for start in sorted(starts, key=lambda start: start.at):
            running = [other for other in running if not ((end := facts.end_of(other)) and end.at <= start.at)]
            for other in running:
                if not facts.excuses.explains(other.who, other.at, start.at):
                    text = f"{start.id} started at {start.who} while {other.id} ran at {other.who}, to which nothing had happened"
                    yield Violation("overlap", entity, text, start.at)
            running.append(start)
