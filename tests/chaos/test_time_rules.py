"""The rules with a time limit: they do not count time with faults, nor what a worker was doing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.calm import AFTERMATH, Calm
from tests.chaos.facts import Facts, Violation
from tests.chaos.history import Asked, Ended, Fault, History, Started
from tests.chaos.line_rules import nothing_after_its_lease
from tests.chaos.time_rules import again_at_once, started_in_time

LEASE = 1.0


def waits(*, within: float = 1.0, asked: float = 10.0, started: float | None = 12.5, faults: tuple[Fault, ...] = ()) -> History:
    """Return a history with one command that started late."""
    history = History(LEASE, faults=list(faults))
    history.asked.append(Asked("c", "line:l", 0, "Apply", "scripted", "nemesis", asked, "accepted", asked + 0.01, within))
    if started is not None:
        history.started.append(Started("c", "line:l", 0, "w0.0", 100, 1, started))
    return history


def ends(how: str, pause: float, *, way: str = "scripted", faults: tuple[Fault, ...] = ()) -> History:
    """Return a history with an attempt that ended so, and the next after a pause."""
    history = History(LEASE, faults=list(faults))
    history.asked.append(Asked("c", "line:l", 0, "Apply", way, "nemesis", 9.9, "accepted", 9.91))
    history.started.append(Started("c", "line:l", 0, "w0.0", 100, 1, 10.0))
    history.ended.append(Ended("c", "w0.0", 100, how, 10.2))
    history.started.append(Started("c", "line:l", 0, "w1.0", 101, 2, 10.2 + pause))
    return history


def wakes(*moments: float) -> History:
    """Entities that went on elsewhere at 20.0, and were then started once more, each at its moment, by the worker that had slept."""
    history = History(LEASE)
    for number, moment in enumerate(moments):
        history.started.append(Started(f"c{number}", f"line:l{number}", 0, "w0.0", 100, 1, moment))
        history.started.append(Started(f"c{number}", f"line:l{number}", 0, "w1.0", 101, 2, 20.0))
    return history


def found(rule: Callable[[Facts], Any], history: History) -> list[Violation]:
    return list(rule(Facts(history)))


@pytest.mark.parametrize(
    ("history", "starved"),
    [
        pytest.param(waits(), True, id="longer than allowed"),
        pytest.param(waits(within=3.0), False, id="in time"),
        pytest.param(waits(within=0.0), False, id="no time was given"),
        pytest.param(waits(started=None), False, id="the record ends before its time is over"),
        pytest.param(waits(faults=(Fault("scripted", "server", 9.0, 13.0),)), True, id="a scripted load excuses nothing"),
        pytest.param(waits(faults=(Fault("load", "server", 9.0, 13.0),)), False, id="in the storm it does"),
        pytest.param(waits(faults=(Fault("backlog", "server", 9.0, 12.2),)), False, id="a backlog excuses its time"),
        pytest.param(waits(faults=(Fault("backlog", "server", 9.0, 11.0),)), True, id="and no more"),
        pytest.param(waits(faults=(Fault("block", "w0.0", 10.5, 11.0),)), True, id="a short block is not enough"),
        pytest.param(waits(faults=(Fault("block", "w0.0", 10.5, 12.2),)), False, id="a block excuses its time"),
        pytest.param(waits(faults=(Fault("kill", "w2.0", 10.2, 10.3),)), False, id="a fault and what follows from it"),
        pytest.param(waits(faults=(Fault("kill", "w2.0", 7.0, 7.1),)), True, id="a fault long before"),
    ],
)
def test_starved_is_a_wait_beyond_the_limit_without_a_fault(history: History, starved: bool) -> None:
    assert [violation.rule for violation in found(started_in_time, history)] == ["starved"] * starved


def test_what_never_starts_is_starved_when_its_time_is_over() -> None:
    history = waits(started=None)
    history.started.append(Started("other", "line:other", 0, "w0.0", 100, 1, 11.5))
    (violation,) = found(started_in_time, history)
    assert "never started in 1.5 s" in violation.text


@pytest.mark.parametrize(("started", "starved"), [(None, False), (12.5, True)])
def test_what_may_not_have_arrived_is_starved_only_if_it_started(started: float | None, starved: bool) -> None:
    history = waits(started=started)
    history.asked[0] = replace(history.asked[0], answer="unknown")
    history.started.append(Started("other", "line:other", 0, "w0.0", 100, 1, 13.0))
    assert [violation.rule for violation in found(started_in_time, history)] == ["starved"] * starved


def test_what_was_refused_is_not_starved() -> None:
    history = waits()
    history.asked[0] = replace(history.asked[0], answer="refused")
    assert not found(started_in_time, history)


@pytest.mark.parametrize(
    ("history", "still"),
    [
        pytest.param(ends("raise", 0.05), False, id="at once"),
        pytest.param(ends("raise", 1.1), True, id="raised, and a lease passed"),
        pytest.param(ends("shot", 1.1), True, id="cancelled by plan, and a lease passed"),
        pytest.param(ends("cancelled", 1.1), False, id="cancelled by the bus: another rule asks why"),
        pytest.param(ends("raise", 1.1, way="batch"), False, id="of the mixed load: who knows what it waits for"),
        pytest.param(ends("raise", 1.1, faults=(Fault("cut", "w0.0", 10.1, 10.1),)), False, id="with a fault"),
    ],
)
def test_the_next_attempt_comes_at_once(history: History, still: bool) -> None:
    assert [violation.rule for violation in found(again_at_once, history)] == ["standstill"] * still


@pytest.mark.parametrize(
    ("history", "late"),
    [
        pytest.param(wakes(20.5), False, id="one: it may have been stopped on its way to the handler"),
        pytest.param(wakes(20.5, 20.6), True, id="two at one waking"),
        pytest.param(wakes(20.5, 26.0), False, id="one at each of two wakings"),
        pytest.param(wakes(19.0, 19.1), False, id="before the others"),
    ],
)
def test_a_worker_that_wakes_starts_nothing_that_others_hold(history: History, late: bool) -> None:
    assert [violation.rule for violation in found(nothing_after_its_lease, history)] == ["late start"] * late


def test_calm_is_the_time_without_faults_and_aftermath() -> None:
    calm = Calm([Fault("kill", "w0.0", 10.0, 10.0), Fault("stop", "w1.0", 11.0, 12.0), Fault("block", "w1.0", 30.0, 31.0)], LEASE)
    assert calm.between(0.0, 10.0) == 10.0
    assert calm.between(9.0, 20.0) == pytest.approx(11.0 - (12.0 + LEASE + AFTERMATH - 10.0))
    assert calm.between(30.5, 32.0) == pytest.approx(1.0)
    assert calm.between(10.5, 11.5) == pytest.approx(0.0)
