"""Rules for what handlers send with their settlement."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.history import Execution, History, of_commands

__all__ = ["follow_ups"]


def follow_ups(history: History) -> Iterator[tuple[str, str]]:
    """Find follow-ups without the settlement of their cause, settlements without their follow-ups, and such in another order than sent."""
    runs_of = of_commands(history)
    buried = {(letter.payload or {}).get("tag", "") for letter in history.letters}
    for cause, names in history.follow_ups.items():
        runs = runs_of.get(cause, [])
        entity = history.sent[cause].entity
        firsts = {name: runs_of[name][0] for name in names if name in runs_of}
        ended = [run for run in runs if run.how == "returned" and run.ended is not None]
        for name, first in firsts.items():
            if not any(run.ended is not None and run.ended <= first.began for run in ended):
                yield entity, f"{name} started, and {cause}, which sends it, had not returned"
        last, sent = max(runs, key=lambda run: run.fence) if runs else None, history.sent[cause]
        # A cancel that comes while the worker readies what a handler sends, which has returned, ends it without that.
        excused = cause in buried or sent.discarded or sent.cancelled or history.stuck
        if last is not None and last in ended and not excused:
            for name in names:
                if name not in firsts and name not in buried and not history.sent[name].cancelled:
                    yield entity, f"{cause} returned and was settled, and {name}, which it sends, never started"
        yield from _out_of_order(names, firsts)


def _out_of_order(names: list[str], firsts: dict[str, Execution]) -> Iterator[tuple[str, str]]:
    for at, name in enumerate(names):
        for later in names[at + 1 :]:
            one, other = firsts.get(name), firsts.get(later)
            if one is not None and other is not None and one.entity == other.entity and other.fence < one.fence:
                yield one.entity, f"{later} started before {name}, which was sent first"
