"""Histories of durable commands in which a promise is broken, for the tests of the checker."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from tests.simulation.history import Act, Execution, History, Journey, JourneyRun, Sent

__all__ = ["DURABLE_BREAKAGES"]


def _journey(history: History) -> Journey:
    """Return a journey that was accepted, ran twice and was cancelled rightly."""
    one = Journey("trip", "e1", acked=True, cancelled=True, outcome="cancelled")
    worker = SimpleNamespace(name="w1", troubles=[], dead=False)
    one.effects["s1"] = ["s1 a"]
    for number, (began, ended) in enumerate(((1000.1, 1000.2), (1000.5, 1000.6))):
        one.runs.append(JourneyRun(7 + number, 1, "aaaa", worker, began, ended, "returned", [("s1", "s1 a")]))
    history.journeys["trip"] = one
    return one


def step_with_two_results(history: History) -> None:
    one = _journey(history)
    one.effects["s1"].append("s1 b")
    one.runs[1].saw[:] = [("s1", "s1 b")]


def step_with_a_foreign_result(history: History) -> None:
    for run in _journey(history).runs:
        run.saw[:] = [("s1", "s1 c")]


def done_although_another_took_its_place(history: History) -> None:
    for run in _journey(history).runs:
        run.saw[:] = [("s1", "declined")]


def without_an_end(history: History) -> None:
    _journey(history).outcome = ""


def cancelled_by_itself(history: History) -> None:
    _journey(history).cancelled = False


def signal_taken_twice(history: History) -> None:
    one = _journey(history)
    one.signals.append("go 1")
    for run in one.runs:
        run.saw += [("g1", "go 1"), ("g2", "go 1")]


def not_undone(history: History) -> None:
    one = _journey(history)
    one.undos.append("u1")
    one.compensations.add("u1")


def undone_while_a_call_stands_in_line(history: History) -> None:
    _called(history, 1000.7, 1000.8)


def undone_while_a_call_runs(history: History) -> None:
    _called(history, 1000.3, 1000.8)


def done_beside_the_next_run(history: History) -> None:
    _journey(history).acts.append(Act("s1", 7, 1000.55))


def done_behind_what_undoes_it(history: History) -> None:
    one = _journey(history)
    one.acts.append(Act("s1", 8, 1000.9))
    one.undos.append("u1")
    one.compensations.add("u1")
    one.undone.append(("u1", "g1"))
    one.undone_at = 1000.7


def _called(history: History, began: float, ended: float) -> None:
    """Let what the journey did be undone while a call of it has not ended."""
    one = _journey(history)
    one.calls.add("c1")
    one.undos.append("u1")
    one.compensations.add("u1")
    one.undone.append(("u1", "g1"))
    one.undone_at = 1000.65
    history.sent["c1"] = Sent("c1", "c0", "work", "follow-up", "", 1000.2)
    worker = SimpleNamespace(name="w1", troubles=[], dead=False)
    history.executions.append(Execution("c1", "c0", 1, 20, "aaaa", worker, began, ended, "returned", command_id="~c1"))


DURABLE_BREAKAGES: list[Callable[[History], None]] = [
    step_with_two_results,
    step_with_a_foreign_result,
    done_although_another_took_its_place,
    without_an_end,
    cancelled_by_itself,
    signal_taken_twice,
    not_undone,
    undone_while_a_call_stands_in_line,
    undone_while_a_call_runs,
    done_beside_the_next_run,
    done_behind_what_undoes_it,
]
