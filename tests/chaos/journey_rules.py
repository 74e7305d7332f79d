"""Rules for durable commands: each step one result, each call one command and one outcome, each signal seen, and an end that is true.

What undoes them has rules of its own: see `undo_rules`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby

from tests.chaos.facts import Facts, Violation
from tests.chaos.history import Seen, Told
from tests.chaos.journeys import CANCEL, Stage, route_of

__all__ = ["call_once", "journey_ended", "signals_seen", "steps_agree"]

_HOW_OF = {"completed": "end", "rejected": "reject", "failed": "poison"}
_OUTCOME_OF = {"CommandRejected": "rejected", "CommandFailed": "failed"}
_WAITS = ("signal", "pair")


def steps_agree(facts: Facts) -> Iterator[Violation]:
    """I16: one result of each step is stored: all runs see the same, and it is that of one of its effects, all under one key."""
    effects: dict[tuple[str, str], set[str]] = defaultdict(set)
    tokens: dict[tuple[str, str], set[str]] = defaultdict(set)
    for effect in facts.history.steps:
        effects[effect.id, effect.key].add(effect.value)
        tokens[effect.id, effect.key].add(effect.token)
    for (journey, key), seen in facts.seen.items():
        entity, first = facts.entity_of(journey), seen[0]
        for other in seen[1:]:
            if other.value != first.value and not facts.failed_over(first.at, facts.started_at(journey, other.fence)):
                text = f"{key} of {journey} came to {first.value}, and in a later run to {other.value}"
                yield Violation("step", entity, text, other.at)
                break
        if str(first.value).startswith(f"{key} ") and first.value not in effects[journey, key]:
            yield Violation("step", entity, f"{key} of {journey} came to {first.value}, which is none of its effects", first.at)
    for (journey, key), keys in tokens.items():
        if len(keys) > 1:
            yield Violation("step", facts.entity_of(journey), f"{key} of {journey} was done under {len(keys)} idempotency keys")


def call_once(facts: Facts) -> Iterator[Violation]:
    """I17: a call is one command, and what its caller saw is that command's outcome. A call that nobody made is none."""
    for (journey, key, undoes), commands in facts.called.items():
        entity = facts.entity_of(journey)
        if len(commands) > 1:
            yield Violation("call", entity, f"{key} of {journey} was sent {len(commands)} times: {sorted(commands)}")
        if not undoes:
            for seen in facts.seen.get((journey, key), ()):
                if problem := _untrue_answer(facts, seen, next(iter(commands))):
                    yield Violation("call", entity, f"{key} of {journey} {problem}", seen.at)
                    break
    never_began = [command for command in facts.final.outcomes if command.startswith("~") and command not in facts.by_id]
    open_calls = sum((seen.id, seen.key, False) not in facts.called for seen in facts.begun_calls)
    if len(never_began) > open_calls:
        yield Violation("call", "", f"{len(never_began)} commands never began, and {open_calls} calls had none that did")


def _untrue_answer(facts: Facts, seen: Seen, command: str) -> str | None:
    """Return what is wrong with what a caller saw of a call. After its time it sees nothing more of it."""
    outcome, value = facts.final.outcomes.get(command, "unknown"), facts.final.values.get(command)
    times = [start.at for start in facts.by_id.get(command, ())]
    if seen.value == "late" or facts.failed_over(min(times, default=0.0), max([seen.at, *times])):
        return None  # the new server may not know of the end that the old one had told, and so it ran again
    if isinstance(seen.value, int):
        return (
            None if (outcome, value) == ("completed", seen.value) else f"came to {seen.value}, and {command} is {outcome} {value}"
        )
    told = _OUTCOME_OF.get(str(seen.value).partition(" ")[0])
    return None if told == outcome else f"came to {seen.value}, and {command} is {outcome}"


def journey_ended(facts: Facts) -> Iterator[Violation]:
    """I18: an end is what the last run came to, none fails unplanned, and nothing of an entity runs between the runs of one command."""
    for journey in facts.journeys:
        entity, outcome, starts = facts.entity_of(journey), facts.final.outcomes.get(journey, ""), facts.by_id.get(journey, [])
        ends = [end for start in starts if (end := facts.end_of(start)) is not None]
        for end in ends:
            if end.how.startswith("error"):
                yield Violation("journey", entity, f"{journey} failed unplanned: {end.how}", end.at)
        last = ends[-1].how if ends else "nothing"
        if outcome in _HOW_OF and last != _HOW_OF[outcome]:
            yield Violation("journey", entity, f"{journey} is {outcome}, and its last run ended with {last}")
        if outcome == "cancelled" and not any(told.told == CANCEL for told in facts.told[journey]):
            yield Violation("journey", entity, f"{journey} was cancelled by nobody")
        if outcome not in (*_HOW_OF, "cancelled", "waiting", ""):
            yield Violation("journey", entity, f"{journey} was settled as {outcome}")
    for entity, starts in facts.by_entity.items():
        line = [command for command, _ in groupby(starts, key=lambda start: start.id) if command in facts.journeys]
        if len(line) != len(set(line)):
            mixed = next(command for command in line if line.count(command) > 1)
            yield Violation("journey", entity, f"others ran between the runs of {mixed}", facts.by_id[mixed][-1].at)


def signals_seen(facts: Facts) -> Iterator[Violation]:
    """I19: a signal is taken once, where it was sent to; what was taken before it was waited for is seen; only what has ended takes none."""
    for journey in facts.journeys:
        told = facts.told[journey]
        for stage in route_of(facts.history.seed, journey).stages:
            yield from _of_stage(facts, journey, stage, told)
        yield from _gone(facts, journey, told)


def _of_stage(facts: Facts, journey: str, stage: Stage, told: list[Told]) -> Iterator[Violation]:
    entity = facts.entity_of(journey)
    seen = [facts.seen[journey, key][0] for key in stage.signals if (journey, key) in facts.seen]
    values = [each.value for each in seen if each.value != "late"]
    sent = {each.told for each in told if each.told in {f"{journey}/{key}" for key in stage.signals}}
    for value in values:
        if value not in sent:
            yield Violation(
                "signal", entity, f"{stage.key} of {journey} got the signal {value}, which was not for it", seen[0].at
            )
    if len(values) != len(set(values)):
        yield Violation("signal", entity, f"{stage.key} of {journey} got one signal twice", seen[-1].at)
    began = facts.reached_by.get((journey, stage.key))
    late = [each for each in seen if each.value == "late"]
    if stage.kind not in _WAITS or began is None or not late:
        return
    before = {
        each.told: each.at for each in told if each.answer in ("taken", "repeated") and each.at < began and each.told in sent
    }
    if len(late) > len(stage.signals) - len(before) and not facts.failed_over(min(before.values()), late[0].at):
        yield Violation(
            "signal", entity, f"{stage.key} of {journey} missed a signal that was there before: {[*before]}", late[0].at
        )


def _gone(facts: Facts, journey: str, told: list[Told]) -> Iterator[Violation]:
    """Find journeys that go on after a signal was told that they have ended."""
    starts = facts.by_id.get(journey, [])
    if not any(request.answer in ("accepted", "duplicate") for request in facts.asked[journey]):
        return
    for each in told:
        if each.answer != "gone" or each.told == CANCEL:
            continue
        accepted = min((request.answered for request in facts.asked[journey] if request.answer == "accepted"), default=each.at)
        before = max((start.fence for start in starts if start.at <= each.at), default=0)
        later = next((start for start in starts if start.at > each.at and start.fence > before), None)
        if later is not None and accepted < each.at and not facts.failed_over(accepted, later.at):
            yield Violation("signal", facts.entity_of(journey), f"{journey} had ended for {each.told}, and ran again", later.at)
