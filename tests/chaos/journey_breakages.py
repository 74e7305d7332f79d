"""Histories with a journey in which a promise to durable commands is broken, for the tests of the checker."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

from tests.chaos.history import Acted, Asked, Effect, Ended, ErrandRun, Fault, History, Seen, Started, StepEffect, Told
from tests.chaos.journeys import Route, Stage, route_of

__all__ = ["EXCUSED", "JOURNEY_BREAKS", "with_journey"]

_ENTITY, _BEGAN, _AGAIN, _UNDONE = "journey:t", 60.0, 62.0, 64.0
_FIRST, _SECOND, _CHILD, _UNDO = 500, 510, 505, 520
_KINDS = {"compensate", "undo", "pair", "step"}


def _found() -> tuple[str, Route]:
    """Return a journey with one stage of each of these kinds, which waits for signals for a limited time and rejects."""
    for number in itertools.count():
        journey = f"journey-t.{number}"
        route = route_of(0, journey)
        kinds, is_rejected = {stage.kind for stage in route.stages}, route.end == "reject" and route.cancelled_after is None
        if is_rejected and kinds == _KINDS and len(route.stages) == len(kinds) and _of_kind(route, "pair").timeout is not None:
            return journey, route
    raise AssertionError


def _of_kind(route: Route, kind: str) -> Stage:
    return next(stage for stage in route.stages if stage.kind == kind)


_JOURNEY, _ROUTE = _found()
_STEP, _PAIR, _CALL, _NAMED = (_of_kind(_ROUTE, kind) for kind in ("step", "pair", "undo", "compensate"))
_CALLED, _UNDOES = "~child", {_CALL.calls[0]: "~undo-call", _NAMED.key: "~undo-step"}


def _values(stage: Stage) -> dict[str, str | int]:
    match stage.kind:
        case "undo":
            return {stage.calls[0]: _CHILD}
        case "pair":
            return {key: f"{_JOURNEY}/{key}" for key in stage.signals}
        case _:
            return {stage.key: f"{stage.key} 1"}


def with_journey(history: History) -> History:
    """Add a journey that was suspended once, rejected, and was undone."""
    history.asked.append(Asked(_JOURNEY, _ENTITY, 0, "Journey", "dispatch", "p0.0", 59.0, "accepted", 59.1))
    for fence, at, how in ((_FIRST, _BEGAN, "suspended"), (_SECOND, _AGAIN, "reject")):
        history.started.append(Started(_JOURNEY, _ENTITY, 0, "w1.0", fence, 1, at))
        for stage in _ROUTE.stages:
            history.seen += [Seen(_JOURNEY, fence, key, "w1.0", at + 0.1, begins=True) for key in (stage.key, *stage.calls)]
            history.seen += [Seen(_JOURNEY, fence, key, "w1.0", at + 0.2, value) for key, value in _values(stage).items()]
        history.ended.append(Ended(_JOURNEY, "w1.0", fence, how, at + 1))
    history.steps += [StepEffect(_JOURNEY, key, f"token {key}", _FIRST, f"{key} 1") for key in (_STEP.key, _NAMED.key)]
    history.acted += [Acted(_JOURNEY, _FIRST, key, "w1.0", _BEGAN + 0.15) for key in (_STEP.key, _NAMED.key)]
    for key in _PAIR.signals:
        history.told += [
            Told(_JOURNEY, f"{_JOURNEY}/{key}", "p0.0", 59.2),
            Told(_JOURNEY, f"{_JOURNEY}/{key}", "p0.0", 59.3, "taken"),
        ]
    _run(history, _CALLED, _CALL.calls[0], _CHILD, 60.15, undoes=False)
    for place, stage in enumerate(reversed([stage for stage in _ROUTE.stages if stage.undone])):
        _run(history, _UNDOES[str(stage.undone)], str(stage.undone), _UNDO + place, _UNDONE + place, undoes=True)
    counters = history.final.counters
    counters |= {
        "accepted": counters["accepted"] + 4,
        "completed": counters["completed"] + 3,
        "rejected": counters["rejected"] + 1,
    }
    history.final.outcomes[_JOURNEY] = "rejected"
    ends = ((_CALLED, "completed"), *((undo, "completed") for undo in _UNDOES.values()), (_JOURNEY, "rejected"))
    history.final = replace(history.final, ends=(*history.final.ends, *ends))
    history.add_errands()
    return history


def _run(history: History, command: str, key: str, fence: int, at: float, *, undoes: bool) -> None:
    entity = f"undo:{key}" if undoes else f"errand:{key}"
    history.errands.append(ErrandRun(command, _JOURNEY, key, undoes, "w1.0", at))
    history.started.append(Started(command, entity, -1, "w1.0", fence, 1, at))
    history.ended.append(Ended(command, "w1.0", fence, "end", at + 0.01, fence))
    history.effects.append(Effect(command, entity, -1, fence))
    history.final.outcomes[command], history.final.values[command] = "completed", fence


def _see(history: History, key: str, value: str | int, *, fence: int | None = None) -> None:
    for place, seen in enumerate(history.seen):
        if seen.key == key and not seen.begins and fence in (None, seen.fence):
            history.seen[place] = replace(seen, value=value)


def _forget(history: History, command: str) -> None:
    """Let a command never have run."""
    history.errands = [run for run in history.errands if run.id != command]
    history.started = [start for start in history.started if start.id != command]
    history.effects = [effect for effect in history.effects if effect.id != command]
    history.asked = [request for request in history.asked if request.id != command]
    del history.final.outcomes[command]


def another_result_later(history: History) -> None:
    history.steps.append(StepEffect(_JOURNEY, _STEP.key, f"token {_STEP.key}", _SECOND, f"{_STEP.key} 2"))
    _see(history, _STEP.key, f"{_STEP.key} 2", fence=_SECOND)


def result_of_no_effect(history: History) -> None:
    _see(history, _STEP.key, f"{_STEP.key} 7")


def two_idempotency_keys(history: History) -> None:
    history.steps.append(StepEffect(_JOURNEY, _STEP.key, "token of another", _SECOND, f"{_STEP.key} 1"))


def called_twice(history: History) -> None:
    _run(history, "~child-again", _CALL.calls[0], 506, 60.18, undoes=False)


def answer_of_another(history: History) -> None:
    _see(history, _CALL.calls[0], 499)


def answer_of_another_kind(history: History) -> None:
    _see(history, _CALL.calls[0], "CommandRejected told")


def called_by_nobody(history: History) -> None:
    history.final.outcomes["~of-nobody"] = "cancelled"


def failed_unplanned(history: History) -> None:
    history.ended.append(Ended(_JOURNEY, "w1.0", _SECOND, "error StepMismatch: another step", 63.0))


def ended_as_it_did_not(history: History) -> None:
    history.ended.append(Ended(_JOURNEY, "w1.0", _SECOND, "end", 63.0, 3))


def cancelled_by_nobody(history: History) -> None:
    history.final.outcomes[_JOURNEY] = "cancelled"


def settled_as_interrupted(history: History) -> None:
    history.final.outcomes[_JOURNEY] = "interrupted"


def suspended_for_ever(history: History) -> None:
    history.final.outcomes[_JOURNEY] = "waiting"


def others_between_its_runs(history: History) -> None:
    history.asked.append(Asked("journey-t.x", _ENTITY, 1, "Journey", "dispatch", "p0.0", 59.5, "accepted", 59.6))
    history.started.append(Started("journey-t.x", _ENTITY, 1, "w1.0", _FIRST + 1, 1, _BEGAN + 1.5))


def signal_of_another(history: History) -> None:
    _see(history, _PAIR.signals[0], "journey-other/0.s0")


def signal_twice(history: History) -> None:
    _see(history, _PAIR.signals[0], f"{_JOURNEY}/{_PAIR.signals[1]}")


def signal_missed(history: History) -> None:
    _see(history, _PAIR.signals[1], "late")


def gone_and_runs_again(history: History) -> None:
    history.told.append(Told(_JOURNEY, f"{_JOURNEY}/{_PAIR.signals[0]}", "p0.0", 61.5, "gone"))


def not_undone(history: History) -> None:
    _forget(history, _UNDOES[_CALL.calls[0]])


def step_not_undone(history: History) -> None:
    _forget(history, _UNDOES[_NAMED.key])


def undone_though_completed(history: History) -> None:
    history.final.outcomes[_JOURNEY] = "completed"


def undone_although_it_did_nothing(history: History) -> None:
    history.final.outcomes[_CALLED] = "rejected"


def undone_though_never_begun(history: History) -> None:
    history.seen = [seen for seen in history.seen if seen.key not in (_CALL.key, *_CALL.calls)]


def undone_in_order(history: History) -> None:
    swapped = {_UNDONE: _UNDONE + 1, _UNDONE + 1: _UNDONE}
    history.started = [replace(start, at=swapped.get(start.at, start.at)) for start in history.started]


def done_beside_the_next_run(history: History) -> None:
    history.acted.append(Acted(_JOURNEY, _FIRST, _STEP.key, "w1.0", _AGAIN + 0.5))


def done_behind_what_undoes_it(history: History) -> None:
    history.acted.append(Acted(_JOURNEY, _SECOND, _STEP.key, "w1.0", _UNDONE + 0.5))


def called_behind_what_undoes_it(history: History) -> None:
    history.started.append(Started(_CALLED, f"errand:{_CALL.calls[0]}", -1, "w1.0", _CHILD + 1, 2, _UNDONE + 0.5))


def undone_while_a_call_runs(history: History) -> None:
    history.ended = [replace(end, at=_UNDONE + 0.5) if end.id == _CALLED else end for end in history.ended]


def undone_twice(history: History) -> None:
    _run(history, "~undo-again", _CALL.calls[0], 530, 70.0, undoes=True)


JOURNEY_BREAKS: list[tuple[str, Callable[[History], None]]] = [
    ("step", another_result_later),
    ("step", result_of_no_effect),
    ("step", two_idempotency_keys),
    ("call", called_twice),
    ("call", answer_of_another),
    ("call", answer_of_another_kind),
    ("call", called_by_nobody),
    ("call", undone_twice),
    ("journey", failed_unplanned),
    ("journey", ended_as_it_did_not),
    ("journey", cancelled_by_nobody),
    ("journey", settled_as_interrupted),
    ("journey", others_between_its_runs),
    ("lost", suspended_for_ever),
    ("signal", signal_of_another),
    ("signal", signal_twice),
    ("signal", signal_missed),
    ("signal", gone_and_runs_again),
    ("undo", not_undone),
    ("undo", step_not_undone),
    ("undo", undone_though_completed),
    ("undo", undone_although_it_did_nothing),
    ("undo", undone_though_never_begun),
    ("undo", undone_in_order),
    ("over", done_beside_the_next_run),
    ("over", done_behind_what_undoes_it),
    ("over", called_behind_what_undoes_it),
    ("over", undone_while_a_call_runs),
]
"""Each breaks the sound history with a journey; the first is the rule that must report it."""


def _failover(start: float, end: float) -> list[Fault]:
    return [Fault("failover", "*", start, end)]


EXCUSED: list[tuple[str, Callable[[History], None], list[Fault], bool]] = [
    ("step", another_result_later, _failover(61.0, 61.5), True),
    ("step", another_result_later, _failover(20.0, 30.0), False),
    ("step", another_result_later, [Fault("kill", "w1.0", 61.0, 61.0)], False),
    ("signal", signal_missed, _failover(59.5, 59.8), True),
    ("signal", signal_missed, _failover(63.0, 64.0), False),
    ("call", answer_of_another, _failover(60.16, 60.18), True),
    ("call", answer_of_another, _failover(64.0, 65.0), False),
    ("over", done_beside_the_next_run, [Fault("stop", "w1.0", 61.0, 62.4)], True),
    ("over", done_beside_the_next_run, [Fault("stop", "w2.0", 61.0, 62.4)], False),
    ("over", called_behind_what_undoes_it, _failover(64.2, 64.6), True),
]
"""What a failover may take, and what not: a rule, a break, faults, whether they excuse it."""
