"""The rules of schedules: each tick fires once and in order, and nothing fires behind a removal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.history import History

__all__ = ["firings", "removed_schedules"]


def firings(history: History) -> Iterator[tuple[str, str]]:
    """Check that each tick of a schedule fires once, and that they run in the order of their times.

    Not in order if the server's clock went back: a put with other times counts from its time then.
    """
    ran: dict[str, list[str]] = defaultdict(list)
    for each in history.ticked:
        if each.attempt == 1:
            ran[each.schedule].append(each.id)
    for name, ids in ran.items():
        for twice in sorted({each for each in ids if ids.count(each) > 1}):
            yield f"tick:{name}", f"{twice} fired {ids.count(twice)} times"
        planned = [each for each in dict.fromkeys(ids) if not each.endswith("!")]
        if planned != sorted(planned) and not any(seconds < 0 for _, seconds in history.jumps):
            yield f"tick:{name}", f"firings out of order: {planned}"


def removed_schedules(history: History) -> Iterator[tuple[str, str]]:
    """Nothing fires once the removal of the schedules was answered."""
    if history.fired_then is not None and history.fired_in_the_end != history.fired_then:
        yield "tick", f"{history.fired_then} firings when all schedules were removed, {history.fired_in_the_end} in the end"
