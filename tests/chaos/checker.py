"""Checks whether a recorded history keeps every promise. Pure: it knows only the history.

Each entity has one producer, which sends nothing new before its last request is answered. So a command's number is its place in the
order of acceptance. Fences give the order of starts, independent of the clocks of the recording processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.chaos.command_rules import effects_once, interruptions_explained, not_twice, nothing_lost, outcomes_true
from tests.chaos.facts import Facts, Violation
from tests.chaos.feature_rules import (
    each_tick_once,
    ends_kept,
    last_trigger_runs,
    mirrored,
    moved_in_both,
    places_kept,
    rate_kept,
    state_agrees,
)
from tests.chaos.flow_rules import flow_ended, flow_undone
from tests.chaos.history import History
from tests.chaos.journey_rules import call_once, journey_ended, signals_seen, steps_agree
from tests.chaos.line_rules import effects_in_order, fences_grow, no_overlap, nothing_after_its_lease, order
from tests.chaos.time_rules import again_at_once, started_in_time
from tests.chaos.undo_rules import nothing_when_it_is_over, undone_as_done
from tests.chaos.whole_rules import calls_answered, money_conserved, nothing_left, sums

__all__ = ["RULES", "Rule", "check"]

Rule = Callable[[Facts], Iterator[Violation]]

RULES: tuple[Rule, ...] = (
    order,
    effects_in_order,
    fences_grow,
    no_overlap,
    nothing_after_its_lease,
    not_twice,
    interruptions_explained,
    nothing_lost,
    outcomes_true,
    effects_once,
    calls_answered,
    sums,
    money_conserved,
    nothing_left,
    started_in_time,
    again_at_once,
    rate_kept,
    places_kept,
    each_tick_once,
    last_trigger_runs,
    ends_kept,
    state_agrees,
    mirrored,
    moved_in_both,
    flow_ended,
    flow_undone,
    steps_agree,
    call_once,
    journey_ended,
    signals_seen,
    undone_as_done,
    nothing_when_it_is_over,
)


def check(history: History) -> list[Violation]:
    """Return all violations, the earliest first."""
    facts = Facts(history)
    return sorted((found for rule in RULES for found in rule(facts)), key=lambda found: (found.at or float("inf"), found.rule))
