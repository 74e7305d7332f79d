"""The checker on made-up histories: a sound one is clean, and each broken promise is reported by the rule that it breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.checker import RULES, check
from tests.chaos.excuses import Excuses
from tests.chaos.facts import Facts
from tests.chaos.features import FEATURES, PLACES, RATE, tick_number
from tests.chaos.flow_breakages import FLOW_BREAKS, with_flows
from tests.chaos.history import Asked, Called, Effect, Ended, Fault, Final, History, Recorder, Refused, Started, read_events
from tests.chaos.journey_breakages import EXCUSED, JOURNEY_BREAKS, with_journey
from tests.chaos.messages import expected_value
from tests.chaos.recovery import measure
from tests.chaos.resume import Requests
from tests.chaos.run_breakages import RUN_BREAKS, with_mirrors, with_moves, with_run
from tests.chaos.timeline import timeline

LEASE = 1.0
LINE = "line:l0"


def name(number: int) -> str:
    return f"c{number}"


ENDS = (("c4", "dead_lettered"), ("c3", "rejected"), ("c2", "completed"), ("c1", "completed"), ("c0", "completed"))


def sound() -> History:
    """Five commands of a line: three done, one refused by its handler, one interrupted by a kill and given up; one call among them."""
    history = History(LEASE, features=tuple(each for each in FEATURES if each not in ("publication", "across")))
    for number in range(5):
        at = 10.0 * number
        worker = f"w{number % 2}.0"
        once = number == 4
        history.asked.append(
            Asked(name(number), LINE, number, "Once" if once else "Apply", "call", "p0.0", at, "accepted", at + 0.1)
        )
        history.started.append(Started(name(number), LINE, number, worker, 100 + number, 1, at + 1, once))
        if number < 3:
            history.ended.append(Ended(name(number), worker, 100 + number, "end", at + 2, expected_value(number)))
            history.effects.append(Effect(name(number), LINE, number, 100 + number))
    history.ended.append(Ended(name(3), "w1.0", 103, "reject", 32.0))
    history.faults.append(Fault("kill", "w0.0", 41.5, 41.6))
    history.called.append(Called(name(0), "completed", expected_value(0), "p0.0", 0.0, 2.5))
    outcomes = {name(0): "completed", name(1): "completed", name(2): "completed", name(3): "rejected", name(4): "interrupted"}
    counters = {"accepted": 5, "completed": 3, "rejected": 1, "expired": 0, "dead_lettered": 1, "depth": 0}
    values = {name(number): expected_value(number) for number in range(3)}
    history.final = Final(True, outcomes, values, ((name(4), "interrupted"),), counters, total=100, deposited=100, ends=ENDS)
    return history


def again(history: History, number: int, **changes: Any) -> None:
    """Start a command once more, with a fence above all."""
    start = next(start for start in history.started if start.number == number)
    values: dict[str, Any] = {"fence": 200, "attempt": 2, "at": start.at + 5, "who": "w2.0"} | changes
    history.started.append(replace(start, **values))
    history.ended.append(Ended(start.id, "w2.0", 200, "end", start.at + 6, expected_value(number)))


def set_final(history: History, **changes: Any) -> None:
    history.final = replace(history.final, **changes)


# What each mutation does to the sound history, by the rule that must report it.


def later_first(history: History) -> None:
    for index, number in ((0, 1), (1, 0)):
        history.started[index] = replace(history.started[index], number=number, id=name(number))


def effect_of_an_older_fence(history: History) -> None:
    history.effects[2] = replace(history.effects[2], fence=100)


def effects_swapped(history: History) -> None:
    history.effects[1], history.effects[2] = replace(history.effects[2], fence=101), replace(history.effects[1], fence=102)


def fence_goes_back(history: History) -> None:
    history.started[1] = replace(history.started[1], at=40.5)


def owner_refused(history: History) -> None:
    history.refused.append(Refused(name(2), LINE, 102, 21.5, "w0.0"))


def two_at_once(history: History) -> None:
    history.ended[0] = replace(history.ended[0], at=12.0)


def at_most_once_again(history: History) -> None:
    again(history, 4)


def same_attempt_again(history: History) -> None:
    history.ended[0] = replace(history.ended[0], how="raise")
    again(history, 0, attempt=1)


def lease_stolen(history: History) -> None:
    """Add an attempt after one that succeeded, at a worker without a fault."""
    again(history, 2)


def given_up_for_nothing(history: History) -> None:
    history.faults.clear()


def accepted_and_gone(history: History) -> None:
    del history.final.outcomes[name(1)]


def never_settled(history: History) -> None:
    history.final.outcomes[name(1)] = "waiting"


def refused_and_run(history: History) -> None:
    history.asked[1] = replace(history.asked[1], answer="refused")


def answered_with_an_error(history: History) -> None:
    history.asked[1] = replace(history.asked[1], answer="error IdempotencyConflict: used before")


def settled_without_running(history: History) -> None:
    history.ended = [end for end in history.ended if end.id != name(1)]


def settled_without_effect(history: History) -> None:
    del history.effects[1]


def wrong_value_kept(history: History) -> None:
    history.final.values[name(1)] = 1


def rejected_by_nobody(history: History) -> None:
    history.final.outcomes[name(2)] = "rejected"


def no_handler(history: History) -> None:
    history.final.outcomes[name(2)] = "unhandled"


def at_least_once_interrupted(history: History) -> None:
    history.asked[4] = replace(history.asked[4], kind="Apply")


def expired_after_its_start(history: History) -> None:
    history.final.outcomes[name(2)] = "expired"


def nobody_asked(history: History) -> None:
    del history.asked[2]


def more_effects_than_starts(history: History) -> None:
    history.effects.insert(1, history.effects[0])


def wrong_answer(history: History) -> None:
    history.called[0] = replace(history.called[0], value=1)


def two_answers(history: History) -> None:
    history.called.append(replace(history.called[0], outcome="rejected", value=None))


def untrue_answer(history: History) -> None:
    history.called[0] = replace(history.called[0], outcome="rejected", value=None)


def answer_lost(history: History) -> None:
    history.called[0] = replace(history.called[0], outcome="timeout", value=None, at=30.0)


def one_miscounted(history: History) -> None:
    history.final.counters["completed"] = 4


def letter_twice(history: History) -> None:
    set_final(history, letters=history.final.letters * 2)


def kept_waiting(history: History) -> None:
    history.asked[1] = replace(history.asked[1], within=0.9)


def never_started_in_time(history: History) -> None:
    history.asked.append(Asked("waits", "line:l9", 0, "Apply", "scripted", "nemesis", 20.0, "accepted", 20.1, within=3.0))


def a_lease_of_standstill(history: History) -> None:
    history.asked[0] = replace(history.asked[0], way="scripted")
    history.ended[0] = replace(history.ended[0], how="shot")
    again(history, 0)


def started_when_it_woke(history: History) -> None:
    """Two entities of a worker that slept go on at another; then it starts both."""
    for number, line in ((10, "line:l8"), (11, "line:l9")):
        history.started.append(Started(name(number), line, number, "w1.0", 300 + number, 2, 50.0))
        history.started.append(Started(name(number), line, number, "w0.0", 200 + number, 1, 50.5))
    history.faults.append(Fault("stop", "w0.0", 47.0, 50.4))


def money_made(history: History) -> None:
    set_final(history, total=101)


def key_left(history: History) -> None:
    set_final(history, keys=("{chaos:0}:m:line:l0",))


def lease_left(history: History) -> None:
    set_final(history, pending=1)


def never_idle(history: History) -> None:
    set_final(history, idle=False)


def worker_died(history: History) -> None:
    set_final(history, crashes=("w1.0 ended by itself with 1",))


def too_many_starts(history: History) -> None:
    most = int(RATE.tokens + RATE.count * 2 * LEASE)
    for number in range(most + 2):
        history.started.append(Started(f"a{number}", "account:a0", number, "w0.0", 10**15 + number, 1, 50.0))


def more_than_places(history: History) -> None:
    for number in range(PLACES + 1):
        history.started.append(Started(f"p{number}", f"line:p{number}", 0, "w1.0", 300 + number, 1, 60.0))
        history.ended.append(Ended(f"p{number}", "w1.0", 300 + number, "end", 60.5, 0))


def tick_left_out(history: History) -> None:
    for second in ("10.000", "10.500", "11.500"):
        tick = f"tick-0@2026-11-22T10:00:{second}Z"
        history.started.append(Started(tick, "ticker:tick-0", tick_number(tick), "w1.0", 400 + tick_number(tick), 1, 70.0))


def last_one_replaced(history: History) -> None:
    history.asked[2] = replace(history.asked[2], unique=True)
    history.final.outcomes[name(2)] = "cancelled"


def end_missing(history: History) -> None:
    set_final(history, ends=ENDS[1:])


def two_ends(history: History) -> None:
    set_final(history, ends=(*ENDS, ENDS[0]))


def another_end(history: History) -> None:
    set_final(history, ends=(*ENDS[:-1], ("c0", "rejected")))


def ended_and_waits(history: History) -> None:
    history.final.outcomes[name(0)] = "waiting"


BREAKS: list[tuple[str, Callable[[History], None]]] = [
    ("order", later_first),
    ("fence", effect_of_an_older_fence),
    ("order of effects", effects_swapped),
    ("fence", fence_goes_back),
    ("fence", owner_refused),
    ("overlap", two_at_once),
    ("at most once", at_most_once_again),
    ("run twice", same_attempt_again),
    ("unexplained", lease_stolen),
    ("unexplained", given_up_for_nothing),
    ("lost", accepted_and_gone),
    ("lost", never_settled),
    ("refused", refused_and_run),
    ("answer", answered_with_an_error),
    ("outcome", settled_without_running),
    ("outcome", settled_without_effect),
    ("outcome", wrong_value_kept),
    ("outcome", rejected_by_nobody),
    ("outcome", no_handler),
    ("outcome", at_least_once_interrupted),
    ("outcome", expired_after_its_start),
    ("unasked", nobody_asked),
    ("effects", more_effects_than_starts),
    ("answer", wrong_answer),
    ("answer", two_answers),
    ("answer", untrue_answer),
    ("answer lost", answer_lost),
    ("starved", kept_waiting),
    ("starved", never_started_in_time),
    ("standstill", a_lease_of_standstill),
    ("late start", started_when_it_woke),
    ("sums", one_miscounted),
    ("sums", letter_twice),
    ("bank", money_made),
    ("left over", key_left),
    ("left over", lease_left),
    ("stuck", never_idle),
    ("crash", worker_died),
    ("rate", too_many_starts),
    ("places", more_than_places),
    ("tick", tick_left_out),
    ("replaced", last_one_replaced),
    ("history", end_missing),
    ("history", two_ends),
    ("history", another_end),
    ("history", ended_and_waits),
]


def test_a_sound_history_is_clean() -> None:
    assert check(sound()) == []
    assert check(with_journey(sound())) == []
    assert check(with_run(sound())) == []
    assert check(with_flows(sound())) == []
    mirrored = sound()
    with_mirrors(mirrored)
    assert check(mirrored) == []
    moved = sound()
    with_moves(moved)
    assert check(moved) == []


@pytest.mark.parametrize(("rule", "breaks"), BREAKS, ids=[breaks.__name__ for _, breaks in BREAKS])
def test_a_broken_promise_is_reported(rule: str, breaks: Callable[[History], None]) -> None:
    history = sound()
    breaks(history)
    assert rule in {found.rule for found in check(history)}


@pytest.mark.parametrize(("rule", "breaks"), JOURNEY_BREAKS, ids=[breaks.__name__ for _, breaks in JOURNEY_BREAKS])
def test_a_broken_promise_to_a_journey_is_reported(rule: str, breaks: Callable[[History], None]) -> None:
    history = with_journey(sound())
    breaks(history)
    assert rule in {found.rule for found in check(history)}


@pytest.mark.parametrize(("rule", "breaks"), RUN_BREAKS, ids=[breaks.__name__ for _, breaks in RUN_BREAKS])
def test_a_broken_promise_to_a_run_is_reported(rule: str, breaks: Callable[[History], None]) -> None:
    history = with_run(sound())
    breaks(history)
    assert rule in {found.rule for found in check(history)}


@pytest.mark.parametrize(("rule", "breaks"), FLOW_BREAKS, ids=[breaks.__name__ for _, breaks in FLOW_BREAKS])
def test_a_broken_promise_to_a_workflow_is_reported(rule: str, breaks: Callable[[History], None]) -> None:
    history = with_flows(sound())
    breaks(history)
    assert rule in {found.rule for found in check(history)}


@pytest.mark.parametrize(("rule", "breaks", "faults", "is_excused"), EXCUSED)
def test_only_a_failover_in_between_takes_something_of_a_journey(
    rule: str, breaks: Callable[[History], None], faults: list[Fault], is_excused: bool
) -> None:
    history = with_journey(sound())
    breaks(history)
    history.faults += faults
    assert (rule not in {found.rule for found in check(history)}) == is_excused


def test_every_rule_is_broken_here() -> None:
    silent = set(RULES)
    for _, breaks in [*BREAKS, *JOURNEY_BREAKS, *RUN_BREAKS, *FLOW_BREAKS]:
        history = with_flows(with_journey(sound()))
        breaks(history)
        silent -= {rule for rule in RULES if list(rule(Facts(history)))}
    assert not silent


# What faults excuse, and what they do not.


@pytest.mark.parametrize(
    ("fault", "explained"),
    [
        (Fault("kill", "w0.0", 5.0, 5.0), True),
        (Fault("kill", "w1.0", 5.0, 5.0), False),
        (Fault("kill", "w0.0", 9.0, 9.0), False),
        (Fault("stop", "w0.0", 4.5, 6.0), True),
        (Fault("stop", "w1.0", 4.5, 6.0), False),
        (Fault("stop", "w0.0", 1.0, 2.5), False),
        (Fault("short_stop", "w0.0", 5.0, 5.3), False),
        (Fault("stall", "w0.0", 5.0, 5.8), True),
        (Fault("server", "*", 5.0, 5.8), True),
        (Fault("server", "*", 5.0, 5.1), False),
        (Fault("cut", "w0.0", 5.0, 5.0), False),
        (Fault("client_kill", "server", 5.0, 6.0), False),
        (Fault("script_flush", "server", 5.0, 6.0), False),
        (Fault("oom", "server", 5.0, 7.0), False),
        (Fault("clock", "w0.0", 5.0, 5.0), False),
        (Fault("deploy", "w0.0", 5.0, 7.0), False),
    ],
    ids=lambda value: f"{value.kind} of {value.victim} at {value.start}" if isinstance(value, Fault) else str(value),
)
def test_only_faults_that_can_cost_a_lease_are_excuses(fault: Fault, explained: bool) -> None:
    assert Excuses([fault], LEASE).explains("w0.0", 4.0, 7.0) is explained


def test_short_silences_without_a_pause_between_them_count_as_one() -> None:
    faults = [Fault("chop", "w0.0", 5.0 + 0.3 * turn, 5.2 + 0.3 * turn) for turn in range(3)]
    assert Excuses(faults, LEASE).explains("w0.0", 4.0, 7.0)
    assert not Excuses([replace(fault, start=fault.start * 3, end=fault.start * 3 + 0.2) for fault in faults], LEASE).explains(
        "w0.0", 14.0, 18.0
    )


def test_a_zombie_that_reports_late_is_excused() -> None:
    history = sound()
    fence_goes_back(history)
    history.faults.append(Fault("stop", "w1.0", 11.0, 40.4))
    assert "fence" not in {found.rule for found in check(history)}


def test_a_caller_that_was_cut_off_may_time_out() -> None:
    history = sound()
    answer_lost(history)
    history.called[0] = replace(history.called[0], at=9.0)
    history.faults.append(Fault("stall", "p0.0", 2.0, 4.5))
    assert check(history) == []


# The rest of what a verdict is made of.


@pytest.mark.parametrize(("kind", "wrong"), [("failover", False), ("stop", True)])
def test_only_a_failover_excuses_a_reply_to_what_is_held_for_interrupted(kind: str, wrong: bool) -> None:
    history = sound()
    history.called.append(Called(name(4), "completed", expected_value(4), "p0.0", 40.0, 43.0))
    history.faults.append(Fault(kind, "*", 41.6, 42.0))
    assert ("answer" in {found.rule for found in check(history)}) == wrong


def test_the_timeline_tells_the_story_of_the_entity() -> None:
    history = sound()
    at_most_once_again(history)
    history.asked.append(Asked("other", "line:l1", 0, "Apply", "dispatch", "p0.0", 41.0, "accepted", 41.1))
    found = next(found for found in check(history) if found.rule == "at most once")
    story = "\n".join(timeline(history, found))
    assert "w2.0   starts  c4 attempt 2 fence 200" in story
    assert "other" not in story


def test_recovery_is_measured_from_the_kill_to_the_next_start() -> None:
    history = sound()
    history.started.append(Started("c5", "line:l2", 5, "w0.0", 205, 1, 41.4))
    history.started.append(Started("c5", "line:l2", 5, "w1.0", 206, 2, 42.9))
    history.faults.append(Fault("server", "*", 50.0, 51.0))
    history.started.append(Started("c6", "line:l1", 6, "w1.0", 207, 1, 51.25))
    killed, server = measure(history)
    assert [(when, round(took, 3), alone) for when, took, alone in killed.times] == [(41.5, 1.4, True)]
    assert [(when, round(took, 3), alone) for when, took, alone in server.times] == [(51.0, 0.25, True)]


def test_events_come_back_as_they_were_recorded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "log", "p0.0")
    recorder.note("ask", id="a", entity=LINE, number=0, kind="Apply", way="call", spec={})
    recorder.note("answer", id="a", answer="accepted")
    recorder.note("ask", id="b", entity=LINE, number=1, kind="Apply", way="call", spec={})
    recorder.note("fault", kind="gap", victim="p0.0", start=1.0, end=2.0)
    with (tmp_path / "log").open("a") as file:
        file.write('{"ev": "torn')
    history = History(LEASE)
    history.add(read_events(tmp_path / "log"))
    assert [(request.id, request.answer) for request in history.asked] == [("a", "accepted"), ("b", "unknown")]
    assert history.faults == [Fault("gap", "p0.0", 1.0, 2.0)]


def test_a_killed_producer_s_open_requests_are_handed_on(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "log", "p0.0")
    specs = [{"id": f"c{number}", "entity": LINE, "number": number} for number in range(3)]
    for spec in specs:
        recorder.note("ask", **spec, kind="Apply", way="batch", spec=spec)
    recorder.note("answer", id="c0", answer="accepted")
    recorder.note("answer", id="c1", answer="unknown")
    requests = Requests(tmp_path / "log")
    requests.leave(tmp_path / "resume")
    assert (tmp_path / "resume").read_text() == (
        '{"numbers": {"line:l0": 3}, "open": [{"id": "c1", "entity": "line:l0", "number": 1}, '
        '{"id": "c2", "entity": "line:l0", "number": 2}]}'
    )
