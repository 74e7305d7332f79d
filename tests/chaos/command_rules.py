"""Rules for each command: not lost, not run twice, interrupted only by a fault, settled with its true outcome."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tests.chaos.facts import PLANNED_ENDS, Facts, Violation
from tests.chaos.flows import FLOW
from tests.chaos.messages import expected_value

__all__ = ["effects_once", "interruptions_explained", "not_twice", "nothing_lost", "outcomes_true"]

_ACCEPTED = ("accepted", "duplicate")


def not_twice(facts: Facts) -> Iterator[Violation]:
    """I4: an at-most-once command is started once; a repeated id is not run again; each start is an attempt of its own."""
    for command, starts in facts.by_id.items():
        if starts[0].once and len(starts) > 1:
            yield Violation("at most once", starts[0].entity, f"{command} was started {len(starts)} times", starts[1].at)
        for first, second in pairwise(starts):
            if second.attempt <= first.attempt and not (
                command in facts.journeys or facts.is_parked_first(command) or facts.runs_with_others(command)
            ):
                text = f"{command} was started again as attempt {second.attempt}, after {first.attempt}"
                yield Violation("run twice", first.entity, text, second.at)


def interruptions_explained(facts: Facts) -> Iterator[Violation]:
    """I8: what was started and is started again, or given up as interrupted, failed by plan or met a fault."""
    given_up = {command for command, reason in facts.final.letters if reason == "interrupted"}
    for entity, starts in facts.by_entity.items():
        following = {(first.id, first.fence): second.at for first, second in pairwise(starts)}
        again = {
            (first.id, first.fence): second
            for command in {s.id for s in starts}
            for first, second in pairwise(facts.by_id[command])
        }
        for start in starts:
            next_start = again.get((start.id, start.fence))
            end = facts.end_of(start)
            planned = end is not None and end.how in PLANNED_ENDS
            planned = planned or (
                next_start is not None and next_start.fence == start.fence
            )  # a call of several is repeated with its halves
            if next_start is not None and not planned and not facts.excuses.explains(start.who, start.at, next_start.at):
                text = f"attempt {start.attempt} of {start.id} at {start.who} was interrupted though nothing had happened to it"
                yield Violation("unexplained", entity, text, next_start.at)
            if next_start is None and start.id in given_up and not planned:
                until = following.get((start.id, start.fence), float("inf"))
                if not facts.excuses.explains(start.who, start.at, until):
                    text = f"{start.id} at {start.who} was given up as interrupted though nothing had happened to it"
                    yield Violation("unexplained", entity, text, start.at)


def nothing_lost(facts: Facts) -> Iterator[Violation]:
    """I3: what was accepted is settled, or waits."""
    for command, requests in facts.asked.items():
        accepted = next((request for request in requests if request.answer in _ACCEPTED), None)
        outcome = facts.final.outcomes.get(command)
        entity = requests[0].entity
        if accepted is not None and outcome is None:
            yield Violation(
                "lost", entity, f"{command} was {accepted.answer}, and the server knows nothing of it", accepted.answered
            )
        if outcome == "waiting" and facts.final.idle:
            yield Violation("lost", entity, f"{command} was never settled, though nothing is left to do", requests[-1].at)
        if all(request.answer == "refused" for request in requests) and facts.by_id.get(command):
            yield Violation("refused", entity, f"{command} was refused, and ran", requests[-1].at)
        for request in requests:
            if request.answer.startswith("error"):
                yield Violation("answer", entity, f"{command} was answered with {request.answer}", request.answered)


def outcomes_true(facts: Facts) -> Iterator[Violation]:
    """I3: how a command was settled is what its handler did."""
    for command, outcome in facts.final.outcomes.items():
        entity = facts.entity_of(command)
        if not entity:
            yield Violation("outcome", "", f"{command} is known to the server, and nobody asked for it")
        elif facts.asked[command][0].kind == FLOW or (command in facts.journeys and outcome not in ("completed", "rejected")):
            pass  # `nothing_lost`, `flow_ended` and `journey_ended` decide
        elif problem := _untrue(facts, command, outcome):
            yield Violation(
                "outcome", entity, f"{command} {problem}", facts.by_id[command][-1].at if command in facts.by_id else 0.0
            )
    for command in facts.by_id:
        if command not in facts.asked:
            yield Violation("unasked", facts.by_id[command][0].entity, f"{command} ran, and nobody had asked for it")


def _untrue(facts: Facts, command: str, outcome: str) -> str | None:
    """Return what is wrong with an outcome."""
    hows = facts.hows.get(command, set())
    match outcome:
        case "completed":
            return _untrue_completion(facts, command, hows)
        case "rejected":
            return None if "reject" in hows else "was rejected, and no handler had refused it"
        case "failed":
            return None if "raise" in hows else "was given up as failed, and no handler had failed"
        case "interrupted":
            once = facts.asked[command][0].kind == "Once"
            return None if once else "was given up as interrupted, and may be run again"
        case "expired":
            return "was started, and settled as expired" if facts.by_id.get(command) else None
        case "waiting":
            return None  # `nothing_lost` decides
        case "cancelled" if facts.asked[command][0].unique or facts.asked[command][0].kind == "Errand":
            # `last_trigger_runs` decides; what a journey called and waits for no more is taken out of line
            return "was started, and then replaced or taken out" if facts.by_id.get(command) else None
        case "unhandled" if facts.asked[command][0].kind == "Ghost":
            return None  # its worker was lost while it was offered, so it cannot expire any more
        case _:
            return f"was settled as {outcome}"


def _untrue_completion(facts: Facts, command: str, hows: set[str]) -> str | None:
    if "end" not in hows:
        return "was completed, and no handler had done it"
    if not facts.effects[command]:
        return "was completed, and the ledger has no effect of it"
    value = facts.final.values.get(command)
    if facts.asked[command][0].kind in ("Errand", "TakeBack"):
        fences = {start.fence for start in facts.by_id[command] if (end := facts.end_of(start)) and end.how == "end"}
        return None if value in fences else f"was completed with {value}, which none of its runs returned"
    expected = None if facts.asked[command][0].kind == "Applied" else expected_value(facts.number_of(command))
    return None if value == expected else f"was completed with the value {value}"


def effects_once(facts: Facts) -> Iterator[Violation]:
    """I4: every effect has a start of its own."""
    for command, count in facts.effects.items():
        starts = len(facts.by_id.get(command, ()))
        if count > starts:
            text = f"{command} took effect {count} times in {starts} starts"
            yield Violation(
                "effects", facts.entity_of(command), text, facts.asked[command][0].at if command in facts.asked else 0.0
            )
