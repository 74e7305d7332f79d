"""A chain that was undone and a chord in a made-up history, and what breaks the promises to them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.chaos.flows import FLOW, Flow, flow_of
from tests.chaos.history import Asked, Effect, Ended, ErrandRun, History, Seen, Started

__all__ = ["FLOW_BREAKS", "with_flows"]

_FENCE = 700


def _found(suits: Callable[[Flow], bool]) -> str:
    return next(name for number in itertools.count() if suits(flow_of(0, name := f"flow-t.{number}")))


_CHAIN = _found(
    lambda plan: not plan.is_group and plan.keys == ["0", "1", "2"] and plan.undone == {"0", "1"} and not plan.shelved
)
_CHORD = _found(lambda plan: plan.keys == ["0", "1", "chord"] and plan.ignores and not plan.shelved)


def _run(history: History, flow: str, key: str, at: float, how: str = "end", got: Any = None, *, undoes: bool = False) -> int:
    """Let a node run, or what undoes it; return the fence of its run."""
    command, fence = f"~{flow}/{key}{'!' * undoes}", _FENCE + len(history.started)
    entity = f"{'undo' if undoes else 'errand'}:{command}"
    history.errands.append(ErrandRun(command, flow, key, undoes, "w1.0", at))
    history.started.append(Started(command, entity, -1, "w1.0", fence, 1, at))
    history.ended.append(Ended(command, "w1.0", fence, how, at + 0.5, fence if how == "end" else None))
    _end(history, command, "completed" if how == "end" else "rejected")
    if how == "end":
        history.effects.append(Effect(command, entity, -1, fence))
        history.final.values[command] = fence
    if got is not None:
        history.seen.append(Seen(flow, fence, f"{key}<", "w1.0", at, json.dumps(got)))
    return fence


def _end(history: History, command: str, outcome: str) -> None:
    history.final.outcomes[command] = outcome
    counters = history.final.counters
    counters |= {"accepted": counters["accepted"] + 1, outcome: counters[outcome] + 1}
    history.final = replace(history.final, ends=(*history.final.ends, (command, outcome)))


def with_flows(history: History) -> History:
    """Add a chain whose last node is rejected, and a chord over a group of which a node is, as it may be."""
    for flow in (_CHAIN, _CHORD):
        history.asked.append(Asked(flow, f"flow:{flow}", 0, FLOW, "dispatch", "p0.0", 80.0, "accepted", 80.1))
    first = _run(history, _CHAIN, "0", 81.0)
    second = _run(history, _CHAIN, "1", 82.0, got=first)
    _run(history, _CHAIN, "2", 83.0, "reject", second)
    for place, key in enumerate(("1", "0")):
        _run(history, _CHAIN, key, 84.0 + place, undoes=True)
    one = _run(history, _CHORD, "0", 81.0)
    _run(history, _CHORD, "1", 81.1, "reject")
    chord = _run(history, _CHORD, "chord", 82.0, got=[one, f"~{_CHORD}/1"])
    _end(history, _CHAIN, "rejected")
    _end(history, _CHORD, "completed")
    history.final.values[_CHORD] = chord
    history.add_errands()
    return history


def _move(history: History, command: str, at: float) -> None:
    history.started = [replace(start, at=at) if start.id == command else start for start in history.started]
    history.ended = [replace(end, at=at + 0.5) if end.id == command else end for end in history.ended]


def _forget(history: History, command: str) -> None:
    history.errands = [run for run in history.errands if run.id != command]


def completed_all_the_same(history: History) -> None:
    history.final.outcomes[_CHAIN] = "completed"


def settled_as_failed(history: History) -> None:
    history.final.outcomes[_CHORD] = "failed"


def never_ended(history: History) -> None:
    history.final.outcomes[_CHORD] = "waiting"


def ended_with_another_result(history: History) -> None:
    history.final.values[_CHORD] += 1


def node_before_its_turn(history: History) -> None:
    _move(history, f"~{_CHAIN}/1", 81.2)


def chord_before_the_group_has_ended(history: History) -> None:
    _move(history, f"~{_CHORD}/1", 81.8)


def results_in_another_order(history: History) -> None:
    seen = history.seen[-1]
    history.seen[-1] = replace(seen, value=json.dumps(json.loads(str(seen.value))[::-1]))


def nothing_handed_on(history: History) -> None:
    history.seen.pop()


def node_left_out(history: History) -> None:
    _forget(history, f"~{_CHORD}/0")


def node_behind_a_failure(history: History) -> None:
    history.final.outcomes[f"~{_CHAIN}/0"] = "rejected"


def node_twice(history: History) -> None:
    history.errands.append(ErrandRun("~again", _CHORD, "0", False, "w1.0", 82.0))


def not_undone(history: History) -> None:
    _forget(history, f"~{_CHAIN}/1!")


def undone_in_order(history: History) -> None:
    _move(history, f"~{_CHAIN}/1!", 87.0)


def undone_side_by_side(history: History) -> None:
    _move(history, f"~{_CHAIN}/0!", 84.2)


def undone_though_completed(history: History) -> None:
    _run(history, _CHORD, "0", 90.0, undoes=True)


def undone_before_all_has_ended(history: History) -> None:
    _move(history, f"~{_CHAIN}/2", 83.8)


FLOW_BREAKS: list[tuple[str, Callable[[History], None]]] = [
    ("flow", completed_all_the_same),
    ("flow", settled_as_failed),
    ("lost", never_ended),
    ("flow", ended_with_another_result),
    ("flow", node_before_its_turn),
    ("flow", chord_before_the_group_has_ended),
    ("flow", results_in_another_order),
    ("flow", nothing_handed_on),
    ("flow", node_left_out),
    ("flow", node_behind_a_failure),
    ("call", node_twice),
    ("flow undone", not_undone),
    ("flow undone", undone_in_order),
    ("flow undone", undone_side_by_side),
    ("flow undone", undone_though_completed),
    ("over", undone_before_all_has_ended),
]
"""Each breaks the sound history with workflows; the first is the rule that must report it."""
