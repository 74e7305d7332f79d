"""Crash certificates: ten handlers with a planted fault are found, with its line; as many that survive any crash are clean."""

from __future__ import annotations

import asyncio
import linecache
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from command_bus import Command, randomness
from command_bus.testing import TestBus, Verdict, crash_certificate
from tests.kit import crashing_shop as shop


def one(command: Callable[..., Command[Any]]) -> Callable[[TestBus], Any]:
    async def scenario(bus: TestBus) -> None:
        await bus.dispatch(command(order="o-1"))

    return scenario


def certified(scenario: Callable[[TestBus], Any], **options: Any) -> Verdict:
    given: dict[str, Any] = {"effects": shop.psp.seen, "state": lambda: dict(shop.books), "reset": shop.clear}
    return crash_certificate(shop.registry, scenario, **given | options)


FAULTS: dict[str, tuple[Callable[[TestBus], Any], Callable[..., Any], str]] = {
    "charge first": (one(shop.ChargeFirst), shop.charge_first, "repeated"),
    "add to a total": (one(shop.AddToTotal), shop.add_to_total, "state"),
    "dispatch without an id": (shop.placed, shop.bill, "repeated"),
    "step without its key": (one(shop.StepWithoutKey), shop.pay, "repeated"),
    "effect outside of steps": (one(shop.OutsideOfSteps), shop.outside_of_steps, "repeated"),
    "mark first": (one(shop.MarkFirst), shop.mark_first, "lost"),
    "in a thread": (one(shop.InThread), shop.in_thread, "repeated"),
    "gather": (one(shop.Gather), shop.charge_part, "repeated"),
    "batch": (shop.rows, shop.insert, "repeated"),
    "one attempt": (one(shop.OneAttempt), shop.one_attempt, "lost"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_with_its_line(name: str) -> None:
    scenario, handler, kind = FAULTS[name]
    verdict = certified(scenario)
    assert not verdict.clean
    found = {(finding.kind, finding.where.line, finding.where.function) for finding in verdict.findings if finding.where}
    code = handler.__code__
    lines = range(code.co_firstlineno, code.co_firstlineno + 12)
    (line,) = [line for line in lines if f"fault: {kind}" in linecache.getline(code.co_filename, line)][:1]
    assert (kind, line, code.co_qualname) in found, str(verdict)


WELL = {
    "id": one(shop.Charge),
    "state of the entity": shop.deposited,
    "send": one(shop.PlaceWell),
    "steps, sleep, call and signal": shop.packed,
    "at most once": one(shop.Once),
    "thread": one(shop.ThreadWell),
    "task group": one(shop.GatherWell),
    "compensation": one(shop.Undo),
    "batch": shop.rows_well,
    "two entities, retries in place": shop.transferred,
}


@pytest.mark.parametrize("name", WELL)
def test_one_that_survives_any_crash_is_clean(name: str) -> None:
    more = {"state": shop.total} if name == "state of the entity" else {}
    verdict = certified(WELL[name], **more)
    assert verdict.clean, verdict
    assert verdict.places["lines"] >= 2
    assert verdict.places["requests"] >= 1
    assert verdict.places["missed"] <= 2  # a busy machine makes another number of requests
    assert bool(verdict.contract) is (name == "at most once")


def found(verdict: Verdict) -> list[str]:
    return [f"{each.kind} {each.what}, {each.first}" for each in verdict.findings]


def test_a_frame_that_was_resumed_by_a_throw_is_still_looked_at() -> None:
    """As coverage#2124 found, Python 3.11 tells nobody of such a resumption (cpython#106749)."""
    verdict = certified(one(shop.TimedOut))
    assert any("killed before" in each and "books[command.order] = 2" in each for each in found(verdict))


def test_lines_are_looked_at_after_a_recursion_error() -> None:
    """It ends tracing of the thread (cpython#134216). Nothing is killed so deep that a kill has no room."""
    verdict = certified(one(shop.Recursive), most=8)
    assert verdict.places["left"] > 100
    assert {each.kind for each in verdict.findings} <= {"repeated"}


@pytest.mark.parametrize("command", [shop.Locked, shop.CatchesAll, shop.Cancelled])
def test_a_dead_process_runs_no_finally_and_catches_nothing(command: type[Command[Any]]) -> None:
    assert not any("unlocked" in each for each in found(certified(one(command))) if "killed before /" in each)


def test_a_scenario_that_differs_by_itself_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match=r"two undisturbed runs .* differ.*lost \('charge', 0\.\d+\)"):
        certified(one(shop.Random))


def test_something_has_to_be_compared_and_no_loop_may_run() -> None:
    with pytest.raises(pytest.UsageError, match="nothing to compare"):
        certified(one(shop.Charge), effects=None, state=None)

    async def within() -> None:
        certified(one(shop.Charge))

    with pytest.raises(RuntimeError, match="make the test a plain function"):
        asyncio.run(within())


def test_a_trace_function_that_was_there_sees_the_first_run_and_is_there_again() -> None:
    """A debugger (hypothesis#3226, #985), or coverage (coverage#83)."""
    lines: list[int] = []

    def mine(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is shop.charge.__code__ and event == "line":
            lines.append(frame.f_lineno)
        return mine if frame.f_code.co_filename == shop.__file__ else None

    before = sys.gettrace()
    sys.settrace(mine)
    try:
        certified(one(shop.Charge))
        assert sys.gettrace() is mine
    finally:
        sys.settrace(before)
    assert lines


def test_what_is_allowed_is_no_finding() -> None:
    verdict = certified(one(shop.ChargeFirst))
    assert not verdict.allows("mail", repeated=True)
    assert not verdict.allows("charge", lost=True)
    assert verdict.allows("charge", repeated=True)
    assert verdict.allowed


def test_a_sample_is_the_same_by_its_seed() -> None:
    first, again = (certified(shop.packed, most=5, seed=3) for _ in range(2))
    assert first.killed + first.places["missed"] == 5
    assert first.places["left"] == again.places["left"] > 10


def test_nothing_of_a_run_is_left() -> None:
    source, jitter, threads = randomness.token.__globals__["_source"], randomness.JITTER.getstate(), threading.active_count()
    assert certified(one(shop.ThreadWell))
    assert randomness.token.__globals__["_source"] is source
    assert randomness.JITTER.getstate() == jitter
    assert threading.active_count() <= threads + 20
    assert not shop.psp.seen
