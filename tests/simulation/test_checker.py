"""The checker sees each promise broken, in histories written for it; and nothing in one that is right."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation.checker import check
from tests.simulation.durable_breakages import DURABLE_BREAKAGES
from tests.simulation.end_load import BROUGHT_BY, Ender
from tests.simulation.history import Claim, End, Execution, History, Sent, Told, Trigger
from tests.simulation.publication_breakages import PUBLICATION_BREAKAGES
from tests.simulation.scheduling import Ticked
from tests.simulation.several_breakages import SEVERAL_BREAKAGES
from tests.tables.ends import ENDS


def process(*troubles: tuple[str, float, float]) -> Any:
    return SimpleNamespace(name="w1", troubles=list(troubles), dead=any(kind == "kill" for kind, _, _ in troubles))


def fence(at: float) -> int:
    return int((at + 1_700_000_000) * 1e6)


def sent(history: History, name: str, at: float, **more: Any) -> Sent:
    one = Sent(name, "e1", more.pop("kind", "work"), more.pop("how", "dispatch"), "p1", at, **more)
    if one.how != "call":
        one.acked, one.admissions = at + 0.01, ["accepted"]
    history.sent[name] = one
    return one


def ran(history: History, name: str, began: float, ended: float | None, how: str = "returned", **more: Any) -> Execution:
    one = Execution(
        name, "e1", more.pop("attempt", 1), more.pop("fence", fence(began)), more.pop("worker", "aaaa"),
        more.pop("process", process()), began, ended, how, more.pop("puts_off", None),
    )  # fmt: skip
    history.executions.append(one)
    return one


def right() -> History:
    """Return two commands, one after the other; a third that is retried."""
    history = History(lambda: 1000.0)
    for at, name in enumerate(("p1.1", "p1.2", "p1.3")):
        sent(history, name, 1000.0 + at)
    ran(history, "p1.1", 1000.1, 1000.2)
    ran(history, "p1.2", 1001.1, 1001.2)
    ran(history, "p1.3", 1002.1, 1002.2, "failed")
    ran(history, "p1.3", 1002.5, 1002.6, attempt=2)
    return history


def claimed(history: History, at: float, idle: float, old: str = "aaaa") -> None:
    history.homes["7-0"] = "item:e1"
    history.claims.append(Claim(at, "7-0", "item:e1", old, "bbbb", idle))


def letter(tag: str, reason: str, attempts: int) -> Any:
    return SimpleNamespace(payload={"tag": tag}, reason=reason, attempts=attempts)


def sent_without_the_end(history: History) -> None:
    history.follow_ups["p1.2"] = ["p1.1"]  # which started before it returned


def settled_without_what_it_sends(history: History) -> None:
    history.sent["p1.1.f0"] = Sent("p1.1.f0", "e1", "work", "follow-up", "", 1000.1)
    history.follow_ups["p1.1"] = ["p1.1.f0"]


def sent_in_another_order(history: History) -> None:
    history.follow_ups["p1.1"] = ["p1.3", "p1.2"]


def out_of_order(history: History) -> None:
    one, other = history.executions[:2]
    one.id, other.id = other.id, one.id


def too_soon(history: History) -> None:
    sent(history, "p1.4", 1003.0, how="delayed", delay=2.0)
    ran(history, "p1.4", 1003.1, 1003.2)


def tied_out_of_order(history: History) -> None:
    for place, began in ((0, 1005.1), (1, 1005.0)):
        sent(history, f"p1.{4 + place}", 1003.0, how="delayed", delay=2.0, batch=3, position=place)
        ran(history, f"p1.{4 + place}", began, began + 0.01)
    history.executions[-2:] = reversed(history.executions[-2:])


def overtaken_when_it_was_due(history: History) -> None:
    sent(history, "p1.4", 1003.0, how="delayed", delay=2.0)
    sent(history, "p1.5", 1005.5)
    ran(history, "p1.5", 1005.6, 1005.7)
    ran(history, "p1.4", 1005.8, 1005.9)


def same_fence(history: History) -> None:
    history.executions[1].fence = history.executions[0].fence


def falling_fence(history: History) -> None:
    history.executions[1].fence = history.executions[0].fence - 1


def at_the_same_time(history: History) -> None:
    history.executions[0].ended = 1001.15


def beyond_its_lease(history: History) -> None:
    sent(history, "p1.4", 1003.0)
    ran(history, "p1.4", 1003.1, 1009.0)


def after_its_lease(history: History) -> None:
    sent(history, "p1.4", 1003.0)
    history.homes["7-0"] = "item:e1"
    history.touches["7-0"] = [(1003.05, "aaaa")]
    ran(history, "p1.4", 1005.5, 1005.6)


def beside_its_successor(history: History) -> None:
    sent(history, "p1.4", 1003.0)
    ran(history, "p1.4", 1003.1, 1012.0, process=process(("cut off", 1003.2, 1006.0)))
    claimed(history, 1006.0, 2.5)
    ran(history, "p1.4", 1006.1, 1006.3, attempt=2, worker="bbbb")


def lease_taken_from_the_living(history: History) -> None:
    claimed(history, 1002.15, 0.6)


def lease_lost_without_trouble(history: History) -> None:
    claimed(history, 1002.15, 2.5)


def started_too_often(history: History) -> None:
    history.sent["p1.3"].kind = "once"


def run_again(history: History) -> None:
    history.executions[2].how = "returned"


def attempt_from_nowhere(history: History) -> None:
    history.executions[1].attempt = 2


def given_up_unprovoked(history: History) -> None:
    """Give a command up as interrupted whose thread ran to its end each time."""
    sent(history, "p1.4", 1003.0, kind="sync")
    ran(history, "p1.4", 1003.1, 1003.9, "failed", attempt=1)
    ran(history, "p1.4", 1004.0, 1004.1, "failed", attempt=2)
    ran(history, "p1.4", 1004.5, 1004.9, "failed", attempt=3)
    history.letters.append(letter("p1.4", "interrupted", 3))


def given_up_too_soon(history: History) -> None:
    history.letters.append(letter("p1.3", "failed", 2))


def never_run(history: History) -> None:
    sent(history, "p1.4", 1003.0)


def run_after_it_was_cancelled(history: History) -> None:
    name = history.executions[0].id
    history.sent[name].removed = history.executions[0].began - 0.1


def mailbox_and_counter_disagree(history: History) -> None:
    history.states.append((1001.0, "item:e1", "its only command is no entry of its mailbox, which has entries"))


def refused_and_run(history: History) -> None:
    one = history.sent["p1.1"]
    one.acked, one.refused = None, "queue_full"


def accepted_again(history: History) -> None:
    history.sent["p1.1"].admissions.append("accepted")


def called_a_duplicate(history: History) -> None:
    history.sent["p1.1"].admissions[:] = ["duplicate"]


def answered_by_another_run(history: History) -> None:
    one = sent(history, "p1.4", 1003.0, how="call", timeout=30.0)
    one.outcome, one.value, one.answered = "value", 5, 1003.2
    ran(history, "p1.4", 1003.1, 1003.15)


def never_answered(history: History) -> None:
    sent(history, "p1.4", 1003.0, how="call", timeout=30.0)
    ran(history, "p1.4", 1003.1, 1003.15)


def answered_too_late(history: History) -> None:
    one = sent(history, "p1.4", 1003.0, how="call", timeout=30.0)
    one.outcome, one.answered = "timeout", 1033.0
    ran(history, "p1.4", 1003.1, 1003.15)


def kept_waiting(history: History) -> None:
    history.sent["p1.2"].within = 0.05


def never_had_its_turn(history: History) -> None:
    one = sent(history, "p1.4", 1003.0, how="call", timeout=5.0, within=1.0)
    one.outcome, one.answered = "expired", 1008.0


def started_again_after_a_lease(history: History) -> None:
    history.sent["p1.3"].within = 0.2


def started_while_paused(history: History) -> None:
    history.pauses.append(("e1", 1001.0, 1001.5))


def stuck(history: History) -> None:
    history.stuck = "for ever"


def left_behind(history: History) -> None:
    history.leftovers.append("m:item:e1")


def wrong_depth(history: History) -> None:
    history.counters["depth"] = 1


def told_of_nothing(history: History) -> None:
    history.told = []


def told_out_of_order(history: History) -> None:
    told_rightly(history)
    assert history.told is not None
    history.told[0], history.told[1] = history.told[1], history.told[0]


def told_twice(history: History) -> None:
    told_rightly(history)
    assert history.told is not None
    history.told.append(history.told[-1])


def not_told_of_the_end(history: History) -> None:
    told_rightly(history)
    assert history.told is not None
    history.told.pop()


def triggered(history: History) -> None:
    """Note two triggers, after the last of which a command ran."""
    history.triggers += [Trigger("e1", "p1.1", 1000.0, 1000.01), Trigger("e1", "p1.3", 1002.3, 1002.31)]


def told_rightly(history: History) -> None:
    """Return events that are right for `right()`."""
    history.told = []
    for run in history.executions:
        if run.attempt == 1:
            history.told.append(Told("accepted", run.entity, run.id, 0, 0))
        history.told.append(Told("started", run.entity, run.id, run.attempt, run.fence))
        history.told.append(Told("completed" if run.how == "returned" else "retried", run.entity, run.id, run.attempt, run.fence))


def put_off_rightly(history: History) -> None:
    sent(history, "p1.4", 1003.0)
    ran(history, "p1.4", 1003.1, 1003.2, "put off", puts_off=0.5)
    ran(history, "p1.4", 1003.8, 1003.9)


def woken_too_early(history: History) -> None:
    put_off_rightly(history)
    history.executions[-1].began = 1003.3


def counted_as_an_attempt(history: History) -> None:
    put_off_rightly(history)
    history.executions[-1].attempt = 2


def overtaken(history: History) -> None:
    put_off_rightly(history)
    sent(history, "p1.5", 1003.05)
    ran(history, "p1.5", 1003.3, 1003.4)


def expired_after_a_snooze(history: History) -> None:
    put_off_rightly(history)
    history.executions.pop()
    history.sent["p1.4"].how, history.sent["p1.4"].outcome = "call", "expired"


def started_after_it_was_given_up(history: History) -> None:
    history.executions[2].how = "gave up"


def no_run_after_a_trigger(history: History) -> None:
    history.triggers += [Trigger("e1", "p1.1", 1000.0, 1000.01), Trigger("e1", "p1.3", 1003.0, 1003.01)]


def tick_fired_twice(history: History) -> None:
    history.ticked += [Ticked("poll", "poll@2026-11-22T10:00:00Z", 1, at) for at in (1000.0, 1001.0)]


def ticks_out_of_order(history: History) -> None:
    history.ticked += [Ticked("poll", f"poll@2026-11-22T10:00:0{second}Z", 1, 1000.0) for second in (2, 1)]


def fired_after_its_removal(history: History) -> None:
    history.fired_then, history.fired_in_the_end = 3, 4


def ended_rightly(history: History) -> None:
    fences = {run.id: run.fence for run in history.executions}
    history.ends = [End(name, name, "completed", fence) for name, fence in fences.items()]


def ended_without_an_end(history: History) -> None:
    ended_rightly(history)
    assert history.ends is not None
    del history.ends[0]


def ended_twice(history: History) -> None:
    ended_rightly(history)
    assert history.ends is not None
    history.ends.append(history.ends[0])


def ended_otherwise(history: History) -> None:
    ended_rightly(history)
    assert history.ends is not None
    history.ends[0] = history.ends[0]._replace(status="cancelled")


def ended_under_another_fence(history: History) -> None:
    ended_rightly(history)
    assert history.ends is not None
    history.ends[0] = history.ends[0]._replace(fence=1)


def ended_and_not_found(history: History) -> None:
    ended_rightly(history)
    assert history.ends is not None
    history.ends[0] = history.ends[0]._replace(is_found=False)


def shared_evenly(history: History) -> None:
    for number in range(40):
        name = f"scene.{number}"
        sent(history, name, 1010.0, kind="weighed").entity = f"{'big' if number % 2 else 'small'}{number}"
        ran(history, name, 1011.0 + number, 1011.5 + number).entity = history.sent[name].entity


def changed_rightly(history: History) -> None:
    """Let the first two commands change the state, and the third see that."""
    runs = [f"{run.id} {run.fence}" for run in history.executions[:2]]
    history.kept_states = {"e1": runs}
    for number, run in enumerate(history.executions):
        run.saw = runs[: min(number, 2)]


def state_lost(history: History) -> None:
    changed_rightly(history)
    history.kept_states = {"e1": []}


def state_changed_twice(history: History) -> None:
    changed_rightly(history)
    assert history.kept_states is not None
    history.kept_states["e1"].append(history.kept_states["e1"][0])


def state_seen_too_old(history: History) -> None:
    changed_rightly(history)
    history.executions[2].saw = []


def state_by_a_run_that_failed(history: History) -> None:
    changed_rightly(history)
    assert history.kept_states is not None
    failed = history.executions[2]
    history.kept_states["e1"].append(f"{failed.id} {failed.fence}")


def state_behind_its_reply(history: History) -> None:
    changed_rightly(history)
    called = sent(history, "p1.4", 1003.0, how="call", outcome="value", answered=1003.3)
    called.value = ran(history, "p1.4", 1003.1, 1003.2).fence


BREAKAGES: dict[str, list[Callable[[History], None]]] = {
    "order": [out_of_order],
    "due": [too_soon, tied_out_of_order],
    "behind": [overtaken_when_it_was_due],
    "fences": [same_fence, falling_fence],
    "overlap": [at_the_same_time],
    "deadline": [beyond_its_lease],
    "late": [after_its_lease],
    "lost_lease": [beside_its_successor],
    "stolen": [lease_taken_from_the_living],
    "explained": [lease_lost_without_trouble],
    "once": [started_too_often],
    "twice": [run_again],
    "attempts": [attempt_from_nowhere],
    "letters": [given_up_too_soon, given_up_unprovoked],
    "lost": [never_run],
    "phantom": [refused_and_run],
    "refusals": [refused_and_run],
    "removed": [run_after_it_was_cancelled],
    "states": [mailbox_and_counter_disagree],
    "admissions": [accepted_again, called_a_duplicate],
    "calls": [answered_by_another_run, never_answered, answered_too_late],
    "starved": [kept_waiting, never_had_its_turn],
    "standstill": [started_again_after_a_lease],
    "paused": [started_while_paused],
    "follow_ups": [sent_without_the_end, settled_without_what_it_sends, sent_in_another_order],
    "ends": [ended_without_an_end, ended_twice, ended_otherwise, ended_under_another_fence, ended_and_not_found],
    "put_off": [woken_too_early, counted_as_an_attempt, overtaken, expired_after_a_snooze],
    "given_up": [started_after_it_was_given_up],
    "told": [told_of_nothing, told_out_of_order, told_twice, not_told_of_the_end],
    "after_the_last_trigger": [no_run_after_a_trigger],
    "firings": [tick_fired_twice, ticks_out_of_order],
    "removed_schedules": [fired_after_its_removal],
    "durable": DURABLE_BREAKAGES,
    "publication": PUBLICATION_BREAKAGES,
    "several": SEVERAL_BREAKAGES,
    "shares": [shared_evenly],
    "entity_states": [state_lost, state_changed_twice, state_seen_too_old, state_by_a_run_that_failed, state_behind_its_reply],
    "drained": [stuck, left_behind, wrong_depth],
}


def test_a_right_history_breaks_nothing() -> None:
    history = right()
    assert check(history) == []
    put_off_rightly(history)
    assert check(history) == []
    history = right()
    ended_rightly(history)
    told_rightly(history)
    triggered(history)
    assert check(history) == []
    changed_rightly(history)
    assert check(history) == []
    history.triggers.append(Trigger("e1", "p1.3", 1003.0))
    assert check(history) == [], "it may not have arrived"


@pytest.mark.parametrize(("invariant", "breakage"), [(name, one) for name, several in BREAKAGES.items() for one in several])
def test_each_broken_promise_is_seen(invariant: str, breakage: Callable[[History], None]) -> None:
    history = right()
    breakage(history)
    assert invariant in {name for name, _, _ in check(history)}


@pytest.mark.parametrize("breakage", [kept_waiting, started_again_after_a_lease])
def test_faults_excuse_starvation(breakage: Callable[[History], None]) -> None:
    history = right()
    breakage(history)
    history.processes.append(process(("cut off", 1000.5, 1003.0)))
    assert check(history) == []


def test_an_operator_who_ends_an_attempt_interrupts_it() -> None:
    history = right()
    given_up_unprovoked(history)
    history.aborts.append(("e1", 1004.6, 1004.7))
    assert check(history) == []


def test_the_timeline_tells_the_story_of_an_entity() -> None:
    history = right()
    history.note("", "*** something")
    lines = history.timeline("e1")
    assert any("p1.3 failed (attempt 1)" in line for line in lines)
    assert any("***" in line for line in lines)


def test_each_end_is_brought_about_or_there_is_a_reason() -> None:
    assert list(BROUGHT_BY) == list(ENDS)
    assert all(hasattr(Ender, f"_{end}") for end, who in BROUGHT_BY.items() if who == "operator")


def test_every_rule_has_a_history_that_breaks_it() -> None:
    from tests.simulation.checker import RULES

    assert {found.__name__ for found in RULES} == set(BREAKAGES)
