"""Rules for calls, for the sums, and for what is left in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.chaos.excuses import EVERYBODY
from tests.chaos.facts import Facts, Violation
from tests.chaos.history import Called
from tests.chaos.messages import expected_value

__all__ = ["calls_answered", "money_conserved", "nothing_left", "sums"]

_PATIENCE = 5.0


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
        if call.outcome != facts.final.outcomes.get(call.id, call.outcome) and not _lost_with_its_server(facts, call):
            text = f"{call.id} was told {call.outcome}, and is {facts.final.outcomes[call.id]}"
            yield Violation("answer", entity, text, call.at)
        if call.outcome == "completed" and call.value != expected_value(facts.number_of(call.id)):
            yield Violation("answer", entity, f"{call.id} was told the value {call.value}", call.at)


def _lost_with_its_server(facts: Facts, call: Called) -> bool:
    """Return whether the new primary may know nothing of an end that the old one had told the caller: not promised.

    It holds the command for interrupted, which is the end of one that is run at most once.
    """
    if (call.outcome, facts.final.outcomes[call.id]) != ("completed", "interrupted"):
        return False
    return any(fault.kind == "failover" and call.began <= fault.end and fault.start <= call.at for fault in facts.history.faults)


def _done_long_before(facts: Facts, call: Called) -> float | None:
    """Return when a timed-out call's command was done, if its answer should have arrived: its caller had no fault for a while since."""
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


def sums(facts: Facts) -> Iterator[Violation]:
    """dispatched = completed + rejected + dead-lettered + expired + pending, by the counters and by the marks; no letter twice."""
    final, counters = facts.final, facts.final.counters
    if "across" in facts.history.features:  # a move over two shards is counted for each of its parts
        return
    marks = Counter(final.outcomes.values())
    pairs = [("accepted", counters.get("accepted", 0), len(final.outcomes))]
    parked = sum(facts.is_parked_first(command) and "raise" in hows for command, hows in facts.hows.items())
    replayed = min(max(counters.get("dead_lettered", 0) - len(final.letters), 0), parked)  # each counted as a letter, too
    lapsed = marks["expired"] - sum(reason == "expired" for _, reason in final.letters)
    pairs += [
        ("completed", counters.get("completed", 0), marks["completed"]),
        ("rejected", counters.get("rejected", 0), marks["rejected"]),
        ("expired", counters.get("expired", 0), lapsed),
        ("dead-lettered", counters.get("dead_lettered", 0) - replayed, len(final.letters)),
        ("dead letters", len(final.letters), len({command for command, _ in final.letters})),
        ("failed", sum(reason == "failed" for _, reason in final.letters), marks["failed"]),
        ("interrupted", sum(reason == "interrupted" for _, reason in final.letters), marks["interrupted"]),
    ]
    settled = sum(counters.get(name, 0) for name in ("completed", "rejected", "expired", "dead_lettered")) + marks["cancelled"]
    pairs.append(("dispatched", counters.get("accepted", 0), settled - replayed + counters.get("depth", 0)))
    for name, counted, found in pairs:
        if counted != found:
            yield Violation("sums", "", f"{name}: {counted} by the counters, {found} found")


def money_conserved(facts: Facts) -> Iterator[Violation]:
    """Check that the sum of the accounts is unchanged."""
    if facts.final.idle and facts.final.total != facts.final.deposited:
        yield Violation("bank", "", f"the accounts hold {facts.final.total}, and began with {facts.final.deposited}")


def nothing_left(facts: Facts) -> Iterator[Violation]:
    """Find keys of entities and leases on the idle server, and processes that ended by themselves."""
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
