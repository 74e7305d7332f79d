"""Decides from a recorded history whether every promise was kept. Pure: it knows nothing but the history.

Per entity there is one producer, which sends nothing new before its last request is answered: so a command's number is its place in the order
of acceptance. Fences give the order of starts, whatever the clocks of the processes that recorded them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from tests.chaos.excuses import EVERYBODY, Excuses
from tests.chaos.history import Asked, Called, Ended, History, Started
from tests.chaos.messages import expected_value

__all__ = ["RULES", "Facts", "Violation", "check"]

_ACCEPTED = ("accepted", "duplicate")
_PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept.

    Attributes:
        rule: Which one.
        entity: Whose, empty if it is nobody's.
        text: What happened.
        at: When, 0.0 if at the end.
    """

    rule: str
    entity: str
    text: str
    at: float = 0.0

    def __str__(self) -> str:
        return f"{self.rule}: {self.entity + ': ' if self.entity else ''}{self.text}"


class Facts:
    """The history, looked up in the ways that the rules need."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.final = history.final
        self.excuses = Excuses(history.faults, history.lease)
        self.asked: dict[str, list[Asked]] = defaultdict(list)
        for request in history.asked:
            self.asked[request.id].append(request)
        self.by_entity: dict[str, list[Started]] = defaultdict(list)
        self.by_id: dict[str, list[Started]] = defaultdict(list)
        for start in sorted(history.started, key=lambda start: start.fence):
            self.by_entity[start.entity].append(start)
            self.by_id[start.id].append(start)
        self.ends: dict[tuple[str, int], Ended] = {(end.id, end.fence): end for end in history.ended}
        self.hows: dict[str, set[str]] = defaultdict(set)
        for end in history.ended:
            self.hows[end.id].add(end.how)
        self.effects = Counter(effect.id for effect in history.effects)

    def end_of(self, start: Started) -> Ended | None:
        """How a start ended, or None if nobody lived to tell."""
        return self.ends.get((start.id, start.fence))

    def entity_of(self, command_id: str) -> str:
        """The entity of a command."""
        return self.asked[command_id][0].entity if self.asked.get(command_id) else ""


Rule = Callable[[Facts], Iterator[Violation]]


def check(history: History) -> list[Violation]:
    """All violations, the earliest first."""
    facts = Facts(history)
    return sorted((found for rule in RULES for found in rule(facts)), key=lambda found: (found.at or float("inf"), found.rule))


# The line of an entity.


def order(facts: Facts) -> Iterator[Violation]:
    """I1: first starts are in the order of acceptance."""
    for entity, starts in facts.by_entity.items():
        seen: set[int] = set()
        highest = -1
        for start in starts:
            if start.number < 0 or start.number in seen:
                continue
            seen.add(start.number)
            if start.number < highest:
                yield Violation("order", entity, f"number {start.number} was first started after {highest}", start.at)
            highest = max(highest, start.number)


def effects_in_order(facts: Facts) -> Iterator[Violation]:
    """I1: what the ledger accepted is in order, and nothing after a newer fence."""
    lines: dict[str, tuple[int, int]] = {}
    for effect in facts.history.effects:
        number, fence = lines.get(effect.entity, (-1, 0))
        at = next((start.at for start in facts.by_id.get(effect.id, ()) if start.fence == effect.fence), 0.0)
        if effect.fence < fence:
            yield Violation("fence", effect.entity, f"an effect under fence {effect.fence} was accepted after {fence}", at)
        if 0 <= effect.number < number:
            yield Violation("order of effects", effect.entity, f"number {effect.number} took effect after {number}", at)
        lines[effect.entity] = (max(number, effect.number), max(fence, effect.fence))


def fences_grow(facts: Facts) -> Iterator[Violation]:
    """A later start has a higher fence, unless its worker slept between receiving and starting it; a rightful owner is never refused."""
    for entity, starts in facts.by_entity.items():
        highest: Started | None = None
        for start in sorted(starts, key=lambda start: start.at):
            if highest is None or start.fence > highest.fence:
                highest = start
            elif not facts.excuses.explains(start.who, highest.at, start.at):
                yield Violation("fence", entity, f"{start.id} started under {start.fence} after {highest.fence}", start.at)
        for refusal in facts.history.refused:
            if refusal.entity == entity and not any(start.fence > refusal.fence and start.at <= refusal.at for start in starts):
                yield Violation("fence", entity, f"the owner {refusal.who} was refused under {refusal.fence}", refusal.at)


def no_overlap(facts: Facts) -> Iterator[Violation]:
    """I2: nobody starts while another runs who still owns the lease."""
    for entity, starts in facts.by_entity.items():
        running: list[Started] = []
        for start in sorted(starts, key=lambda start: start.at):
            running = [other for other in running if not ((end := facts.end_of(other)) and end.at <= start.at)]
            for other in running:
                if not facts.excuses.explains(other.who, other.at, start.at):
                    text = f"{start.id} started at {start.who} while {other.id} ran at {other.who}, to which nothing had happened"
                    yield Violation("overlap", entity, text, start.at)
            running.append(start)


# A command.


def not_twice(facts: Facts) -> Iterator[Violation]:
    """I4: an at-most-once command is started once; a repeated id is not run again; each start is an attempt of its own."""
    for command, starts in facts.by_id.items():
        if starts[0].once and len(starts) > 1:
            yield Violation("at most once", starts[0].entity, f"{command} was started {len(starts)} times", starts[1].at)
        for first, second in pairwise(starts):
            if second.attempt <= first.attempt:
                text = f"{command} was started again as attempt {second.attempt}, after {first.attempt}"
                yield Violation("run twice", first.entity, text, second.at)


def interruptions_explained(facts: Facts) -> Iterator[Violation]:
    """I8: what was started and is started again, or given up as interrupted, failed by plan or met a fault."""
    given_up = {command for command, reason in facts.final.letters if reason == "interrupted"}
    for entity, starts in facts.by_entity.items():
        following = {first.fence: second.at for first, second in pairwise(starts)}
        again = {first.fence: second for command in {s.id for s in starts} for first, second in pairwise(facts.by_id[command])}
        for start in starts:
            next_start = again.get(start.fence)
            end = facts.end_of(start)
            planned = end is not None and end.how == "raise"
            if next_start is not None and not planned and not facts.excuses.explains(start.who, start.at, next_start.at):
                text = f"attempt {start.attempt} of {start.id} at {start.who} was interrupted though nothing had happened to it"
                yield Violation("unexplained", entity, text, next_start.at)
            if next_start is None and start.id in given_up:
                until = following.get(start.fence, float("inf"))
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
        elif problem := _untrue(facts, command, outcome):
            yield Violation(
                "outcome", entity, f"{command} {problem}", facts.by_id[command][-1].at if command in facts.by_id else 0.0
            )
    for command in facts.by_id:
        if command not in facts.asked:
            yield Violation("unasked", facts.by_id[command][0].entity, f"{command} ran, and nobody had asked for it")


def _untrue(facts: Facts, command: str, outcome: str) -> str | None:
    """What is wrong with an outcome."""
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
        case _:
            return f"was settled as {outcome}"


def _untrue_completion(facts: Facts, command: str, hows: set[str]) -> str | None:
    if "end" not in hows:
        return "was completed, and no handler had done it"
    if not facts.effects[command]:
        return "was completed, and the ledger has no effect of it"
    value = facts.final.values.get(command)
    return None if value == expected_value(_number(facts, command)) else f"was completed with the value {value}"


def _number(facts: Facts, command: str) -> int:
    return facts.asked[command][0].number


def effects_once(facts: Facts) -> Iterator[Violation]:
    """I4: every effect has a start of its own."""
    for command, count in facts.effects.items():
        starts = len(facts.by_id.get(command, ()))
        if count > starts:
            text = f"{command} took effect {count} times in {starts} starts"
            yield Violation(
                "effects", facts.entity_of(command), text, facts.asked[command][0].at if command in facts.asked else 0.0
            )


# A call.


def calls_answered(facts: Facts) -> Iterator[Violation]:
    """I7: one outcome for each call, the true one; none is lost."""
    told: dict[str, str] = {}
    for call in facts.history.called:
        entity = facts.entity_of(call.id)
        if call.outcome == "timeout":
            if (done := _done_long_before(facts, call)) is not None:
                text = (
                    f"{call.id} timed out {call.at - done:.1f} s after it was done, though {call.who} was left in peace meanwhile"
                )
                yield Violation("answer lost", entity, text, call.at)
            continue
        if told.setdefault(call.id, call.outcome) != call.outcome:
            yield Violation("answer", entity, f"{call.id} was told {told[call.id]}, then {call.outcome}", call.at)
        if call.outcome != facts.final.outcomes.get(call.id, call.outcome):
            text = f"{call.id} was told {call.outcome}, and is {facts.final.outcomes[call.id]}"
            yield Violation("answer", entity, text, call.at)
        if call.outcome == "completed" and call.value != expected_value(_number(facts, call.id)):
            yield Violation("answer", entity, f"{call.id} was told the value {call.value}", call.at)


def _done_long_before(facts: Facts, call: Called) -> float | None:
    """When a timed-out call's command was done, if its answer should have arrived: its caller was left in peace for a while since."""
    if facts.final.outcomes.get(call.id) != "completed":
        return None
    ends = [end.at for start in facts.by_id.get(call.id, ()) if (end := facts.end_of(start)) and end.how == "end"]
    if not ends or ends[-1] > call.at - _PATIENCE:
        return None
    quiet_since = ends[-1]
    spans = [(fault.start, fault.end) for fault in facts.history.faults if fault.victim in (call.who, EVERYBODY)]
    for since, until in [*sorted(span for span in spans if span[0] < call.at), (call.at, call.at)]:
        if since - quiet_since >= _PATIENCE:
            return ends[-1]
        quiet_since = max(quiet_since, until)
    return None


# The whole.


def sums(facts: Facts) -> Iterator[Violation]:
    """dispatched = completed + rejected + dead-lettered + expired + pending, by the counters and by the marks; no letter twice."""
    final, counters = facts.final, facts.final.counters
    marks = Counter(final.outcomes.values())
    pairs = [("accepted", counters.get("accepted", 0), len(final.outcomes))]
    lapsed = marks["expired"] - sum(reason == "expired" for _, reason in final.letters)
    pairs += [
        ("completed", counters.get("completed", 0), marks["completed"]),
        ("rejected", counters.get("rejected", 0), marks["rejected"]),
        ("expired", counters.get("expired", 0), lapsed),
        ("dead-lettered", counters.get("dead_lettered", 0), len(final.letters)),
        ("dead letters", len(final.letters), len({command for command, _ in final.letters})),
        ("failed", sum(reason == "failed" for _, reason in final.letters), marks["failed"]),
        ("interrupted", sum(reason == "interrupted" for _, reason in final.letters), marks["interrupted"]),
    ]
    settled = sum(counters.get(name, 0) for name in ("completed", "rejected", "expired", "dead_lettered"))
    pairs.append(("dispatched", counters.get("accepted", 0), settled + counters.get("depth", 0)))
    for name, counted, found in pairs:
        if counted != found:
            yield Violation("sums", "", f"{name}: {counted} by the counters, {found} found")


def money_conserved(facts: Facts) -> Iterator[Violation]:
    """The accounts hold what they began with."""
    if facts.final.idle and facts.final.total != facts.final.deposited:
        yield Violation("bank", "", f"the accounts hold {facts.final.total}, and began with {facts.final.deposited}")


def nothing_left(facts: Facts) -> Iterator[Violation]:
    """When all is idle the server holds nothing of any entity, and nobody holds a lease; no process ended by itself."""
    final = facts.final
    if not final.idle:
        waiting = [command for command, outcome in final.outcomes.items() if outcome == "waiting"]
        entity = facts.entity_of(waiting[0]) if waiting else ""
        yield Violation("stuck", entity, f"{len(waiting)} commands were not settled in time, {waiting[:3]} among them")
        return
    if final.keys:
        yield Violation("left over", "", f"{len(final.keys)} keys of idle entities, {final.keys[:3]} among them")
    if final.pending:
        yield Violation("left over", "", f"{final.pending} leases that nobody needs")
    for crash in final.crashes:
        yield Violation("crash", "", crash)


RULES: tuple[Rule, ...] = (
    order,
    effects_in_order,
    fences_grow,
    no_overlap,
    not_twice,
    interruptions_explained,
    nothing_lost,
    outcomes_true,
    effects_once,
    calls_answered,
    sums,
    money_conserved,
    nothing_left,
)
