"""Finds broken promises in a history. It knows nothing of the implementation, except leases and their renewal.

Every rule is a function that yields (entity, what happened); its name is that of the invariant. What a fault excuses is said where it is
excused, and as narrowly as the history allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from command_bus.durable.in_flight import LAST_WORDS
from tests.simulation.due_rules import behind, due
from tests.simulation.durable_rules import durable
from tests.simulation.end_rules import ends
from tests.simulation.entity_states import entity_states
from tests.simulation.event_rules import told
from tests.simulation.follow_up_rules import follow_ups
from tests.simulation.history import Execution, History, Sent, of_commands
from tests.simulation.publication_rules import publication
from tests.simulation.put_off_rules import given_up, put_off
from tests.simulation.schedule_rules import firings, removed_schedules
from tests.simulation.several_rules import several
from tests.simulation.share_rules import shares
from tests.simulation.time_rules import standstill, starved
from tests.simulation.unique_rules import after_the_last_trigger

__all__ = ["RULES", "check"]

Broken = Iterator[tuple[str, str]]
ATTEMPTS = {"work": 3, "shared": 3, "weighed": 3, "once": 1, "park": 2, "order": 3, "sync": 3, "fold": 50, "run": 3}
TOLERANCE = 2.0
"""Seconds after the end of its lease in which a handler must have been cancelled: the keeper looks every second, and waits for answers."""
RULES: list[Callable[[History], Broken]] = []


def rule(function: Callable[[History], Broken]) -> Callable[[History], Broken]:
    """Register a rule."""
    RULES.append(function)
    return function


def check(history: History) -> list[tuple[str, str, str]]:
    """Return all violations: invariant, entity, what happened."""
    return [(found.__name__, entity, text) for found in RULES for entity, text in found(history)]


def _of_entities(history: History) -> dict[str, list[Execution]]:
    found: dict[str, list[Execution]] = {}
    for run in history.executions:
        found.setdefault(run.entity, []).append(run)
    return found


def _held(run: Execution, start: float, end: float) -> bool:
    """Return whether its process or loop was stopped at some time in this span, or was killed before its end."""
    return any(
        kind in ("pause", "block", "kill") and begin <= end and start <= until for kind, begin, until in run.process.troubles
    )


def _killed_at(run: Execution) -> float | None:
    return next((begin for kind, begin, _ in run.process.troubles if kind == "kill"), None)


def _last_touch(history: History, run: Execution, before: float) -> float | None:
    """Return when its worker last renewed or read its activation."""
    mine: list[float] = []
    for activation, touches in history.touches.items():
        if history.homes.get(activation) == f"item:{run.entity}" and touches[0][0] <= run.began:
            mine += [at for at, who in touches if who == run.worker and at <= before][-1:]
    return max(mine, default=None)


def _in_thread(history: History, run: Execution) -> bool:
    """Return whether it runs in a thread, so that nothing can cancel it."""
    return history.sent[run.id].kind == "sync"


def _jumped(history: History, start: float = 0.0, end: float = 1e12) -> bool:
    return any(start <= at <= end for at, _ in history.jumps)


def _accepted(sent: Sent) -> bool:
    return sent.acked is not None or sent.outcome in ("value", "rejected", "failed", "interrupted")


# The invariants.


@rule
def order(history: History) -> Broken:
    """Find first starts out of order. Of two commands, the one that was acknowledged before the other was sent starts first; in a batch,
    and among the dispatches of one process, the earlier one."""
    for entity, runs in _of_entities(history).items():
        first: dict[str, Execution] = {}
        for run in runs:
            first.setdefault(run.id, run)
        line = [history.sent[name] for name in first if history.sent[name].how != "delayed"]
        for at, later in enumerate(line):
            for sooner in line[at + 1 :]:
                if _precedes(sooner, later):
                    yield entity, f"{later.id} started before {sooner.id}, which was accepted first"


def _precedes(one: Sent, other: Sent) -> bool:
    if one.tries > 1 or other.tries > 1:
        return one.acked is not None and one.acked < other.invoked
    if one.how == other.how == "batch" and one.process == other.process and one.batch == other.batch:
        return one.position < other.position and _accepted(one)
    if one.acked is not None and one.acked < other.invoked:
        return True
    single = ("dispatch", "call")
    same_line = one.process == other.process and one.how in single and other.how in single
    return same_line and one.invoked < other.invoked and _accepted(one) and _accepted(other)


@rule
def fences(history: History) -> Broken:
    """Check that no fence is given twice, and an entity's handlers start under growing fences (unless a jump of the clock ended leases early)."""
    for entity, runs in _of_entities(history).items():
        seen: dict[int, Execution] = {}
        for run in runs:
            if run.fence in seen and not run.is_with(seen[run.fence]):
                yield entity, f"{seen[run.fence].id} and {run.id} started under the same fence {run.fence}"
            seen[run.fence] = run
        for one, other in pairwise(runs):
            if other.fence < one.fence and not _jumped(history, 0.0, other.began):
                yield entity, f"{other.id} started under fence {other.fence} after {one.id} had {one.fence}"


@rule
def overlap(history: History) -> Broken:
    """Two handlers of an entity run at a time only if the first one's lease ended while its process could not know it."""
    for entity, runs in _of_entities(history).items():
        by_fence = sorted(runs, key=lambda run: run.fence)
        for at, one in enumerate(by_fence):
            end = one.ended if one.ended is not None else _killed_at(one)
            for other in by_fence[at + 1 :]:
                if (end is not None and other.began >= end) or one.is_with(other):
                    continue
                if (reason := _unexcused(history, one, other, end)) is not None:
                    yield (
                        entity,
                        f"{one.id} (fence {one.fence}) and {other.id} (fence {other.fence}) ran at the same time: {reason}",
                    )


def _taken_over(history: History, one: Execution, until: float) -> bool:
    """Return whether its lease was taken over in that time; `stolen` checks that this was right.

    A thread may begin after that: its process was stopped after it had renewed the lease, and goes on before its own time is over (`late`).
    """
    home, since = f"item:{one.entity}", one.began
    if _in_thread(history, one) and (touch := _last_touch(history, one, one.began)) is not None:
        since = touch
    return any(claim.entity == home and since <= claim.at <= until for claim in history.claims)


def _unexcused(history: History, one: Execution, other: Execution, end: float | None) -> str | None:
    if not _taken_over(history, one, other.began):
        return "nobody had taken the first one's lease over"
    return None if end is not None or _in_thread(history, one) else "the first never ended"


@rule
def deadline(history: History) -> Broken:
    """Find handlers that ran on after their lease ended: they must be cancelled then, or as soon as their process runs again."""
    for run in history.executions:
        end = run.ended
        if end is None or end - run.began < history.lease or _in_thread(history, run):
            continue
        touch = _last_touch(history, run, end)
        over = (touch if touch is not None else run.began) + history.lease + TOLERANCE
        begin = max(
            [over, *(until + TOLERANCE for kind, _, until in run.process.troubles if kind in ("pause", "block") and until <= end)]
        )
        if end > begin and not _held(run, over, end - TOLERANCE):
            yield run.entity, f"{run.id} on {run.process} ran for {end - over + TOLERANCE:.2f} s after its lease was over"


@rule
def late(history: History) -> Broken:
    """Find starts after the end of the lease, which are forbidden even if the worker gets its lease late."""
    for run in history.executions:
        touch = _last_touch(history, run, run.began)
        if touch is not None and run.began > touch + history.lease + 0.05:
            yield run.entity, f"{run.id} was started {run.began - touch:.2f} s after its lease had been renewed"


@rule
def lost_lease(history: History) -> Broken:
    """Find handlers that ran on after a renewal reported that another worker has the lease."""
    for entity, runs in _of_entities(history).items():
        by_fence = sorted(runs, key=lambda run: run.fence)
        for one, other in pairwise(by_fence):
            end = one.ended
            if end is None or one.how == "cancelled" or other.began >= end or _in_thread(history, one) or one.is_with(other):
                continue
            begin = max([other.began, *(until for kind, _, until in one.process.troubles if until <= end and kind != "kill")])
            busy = any(
                start <= end and begin <= until for kind, start, until in one.process.troubles if start > begin or until > end
            )
            if end - begin > TOLERANCE and not busy:
                yield entity, f"{one.id} ran on for {end - begin:.2f} s beside {other.id}, which holds its lease"


@rule
def stolen(history: History) -> Broken:
    """Nobody takes over the lease of an owner who renews it."""
    for claim in history.claims:
        least = history.lease / 3 if history.jumps else history.lease
        if claim.old != claim.new and claim.idle < least - 0.05:
            yield (
                claim.entity,
                f"the lease of {claim.old[:4]} was taken over by {claim.new[:4]} after {claim.idle:.2f} s of silence",
            )


@rule
def explained(history: History) -> Broken:
    """Whoever loses a lease had some trouble: a worker that lives and reaches the server keeps what it holds."""
    if history.jumps:
        return
    processes = {run.worker: run.process for run in history.executions}
    for claim in history.claims:
        process = processes.get(claim.old)
        if process is None or claim.old == claim.new:
            continue
        # Whoever took it over from a holder that seemed to be back (a late request of its had started a command) has left it to that holder.
        before = (one.old for one in history.claims if one.activation == claim.activation and one.new == claim.old)
        losers = [process, *(processes[owner] for owner in before if owner in processes)]
        troubles = [trouble for loser in losers for trouble in loser.troubles]
        # A durable run that has lost its lease keeps the activation until it has ended.
        since = claim.at - history.lease - 1.0 - (LAST_WORDS if claim.entity.startswith("journey:") else 0.0)
        if not any(begin <= claim.at and since <= until for _, begin, until in troubles):
            yield claim.entity, f"{process} lost a lease to {claim.new[:4]} at {claim.at - 1000:.3f} s without any trouble"
    for run in history.executions:
        if run.how == "cancelled" and run.ended is not None:
            start, troubles = run.ended - history.lease - TOLERANCE, [*run.process.troubles]
            for claim in history.claims:  # who took it over may be slow to say so
                if claim.old == run.worker and claim.entity == f"item:{run.entity}" and run.began <= claim.at <= run.ended:
                    troubles += processes[claim.new].troubles if claim.new in processes else ()
            if not history.was_aborted(run) and not any(begin <= run.ended and start <= until for _, begin, until in troubles):
                yield run.entity, f"{run.id} was cancelled on {run.process} without any trouble"


@rule
def once(history: History) -> Broken:
    """Find at-most-once commands that started more than once (plus once for each replay by an operator)."""
    for name, runs in of_commands(history).items():
        sent = history.sent[name]
        most, counted = ATTEMPTS[sent.kind] * (1 + sent.replays), [run for run in runs if not run.is_uncounted]
        if len(counted) > most or any(run.attempt > ATTEMPTS[sent.kind] for run in runs):
            yield runs[0].entity, f"{name} ({sent.kind}) started {len(counted)} times, allowed are {most}"


@rule
def twice(history: History) -> Broken:
    """Find commands that started again although they had not failed, their lease was not over and their worker was not stopping."""
    for name, runs in of_commands(history).items():
        for one, other in pairwise(runs):
            if (
                one.how in ("failed", "cancelled", "shot", "put off", "halved", "")
                or one.ended is None
                or history.sent[name].replays
            ):
                continue
            together = (run.id for run in history.executions if run is one or run.is_with(one))
            if (
                history.was_aborted(one) or not history.follow_ups.keys().isdisjoint(together)
            ):  # its end was not what counted, or may not have been known yet: with a state, what one of a call sends holds up all
                continue
            if not _taken_over(history, one, other.began):
                yield one.entity, f"{name} {one.how} (attempt {one.attempt}), and was started again while its lease was held"


@rule
def attempts(history: History) -> Broken:
    """Attempts are counted by ones; only a lease that was taken over may have used one up that no handler saw."""
    for name, runs in of_commands(history).items():
        if history.sent[name].replays:
            continue
        known = most = 0
        for run in runs:
            if run.attempt <= known:
                yield run.entity, f"{name} started with attempt {run.attempt} after attempt {known}"
            missing = run.attempt - most - 1
            taken = sum(claim.entity == f"item:{run.entity}" and claim.at <= run.began for claim in history.claims)
            if missing > taken:
                yield run.entity, f"{name} started with attempt {run.attempt} after {known}, and {taken} leases were taken over"
            known = run.attempt - (run.how == "put off" or run.beside is not None)  # a run that is given back counts for none
            most = run.attempt if run.beside is not None else known


@rule
def letters(history: History) -> Broken:
    """Find dead letters whose reason is wrong: starts and lost leases must account for the attempts."""
    by_tag: dict[str, int] = {}
    runs_of = of_commands(history)
    for letter in history.letters:
        tag = (letter.payload or {}).get("tag", "")
        sent = history.sent.get(tag)
        if sent is None:
            yield "", f"a dead letter of an unknown command: {letter}"
            continue
        by_tag[tag] = by_tag.get(tag, 0) + 1
        if by_tag[tag] > 1 + sent.replays:
            yield sent.entity, f"{tag} has {by_tag[tag]} dead letters"
        runs = runs_of.get(tag, [])
        taken = sum(claim.entity == f"item:{sent.entity}" for claim in history.claims)
        counted = letter.reason in ("failed", "interrupted") and not sent.replays
        if counted and letter.attempts > len(runs) + taken:
            yield sent.entity, f"{tag} was given up after {letter.attempts} attempts, but only {len(runs)} started"
        if letter.reason == "failed" and not any(run.how in ("failed", "gave up") for run in runs):
            yield sent.entity, f"{tag} was given up as failed, and never failed"
        too_soon = letter.attempts < ATTEMPTS[sent.kind] and not any(run.how == "gave up" for run in runs)
        if letter.reason == "failed" and too_soon:
            yield sent.entity, f"{tag} was given up after {letter.attempts} of {ATTEMPTS[sent.kind]} attempts"
        is_cut_short = any(run.may_be_cut_short or history.was_aborted(run) for run in runs)
        if letter.reason == "interrupted" and not taken and not is_cut_short:
            yield sent.entity, f"{tag} was given up as interrupted, and nothing interrupted it"
        if letter.reason in ("undecodable", "invalid", "no_handler", "unsupported_version"):
            yield sent.entity, f"{tag} was given up as {letter.reason}"


@rule
def lost(history: History) -> Broken:
    """Find acknowledged commands that neither ran to an end nor have a dead letter."""
    runs_of = of_commands(history)
    buried = {(letter.payload or {}).get("tag", "") for letter in history.letters}
    for name, sent in history.sent.items():
        if not _accepted(sent) or sent.cancelled or sent.discarded or name in buried:
            continue
        if sent.how == "call" and sent.outcome == "expired":
            continue
        runs = runs_of.get(name, [])
        if any(run.how in ("returned", "rejected") for run in runs):
            continue
        if sent.how == "call" and not runs:
            continue  # not started within its caller's time: settled as expired
        yield sent.entity, f"{name} was acknowledged; {len(runs)} starts, none to an end, and no dead letter"


@rule
def removed(history: History) -> Broken:
    """Nothing starts that was taken out of its line."""
    for name, runs in of_commands(history).items():
        at = history.sent[name].removed
        if at is not None and any(run.began > at for run in runs):
            yield runs[0].entity, f"{name} was cancelled, and started after that"


@rule
def states(history: History) -> Broken:
    """After each script mailboxes and counters agree: what stands before a running command is settled, and a lone command is alone."""
    for at, entity, text in history.states:
        yield entity.removeprefix("item:"), f"{text} (at {at - 1000:.4f})"


@rule
def phantom(history: History) -> Broken:
    """Nothing runs that was certainly refused."""
    for name in of_commands(history):
        sent = history.sent[name]
        if sent.refused not in ("", "unknown", "transport_unavailable", "unavailable") and sent.acked is None:
            yield sent.entity, f"{name} was refused ({sent.refused}), and ran"


@rule
def refusals(history: History) -> Broken:
    """Nothing is refused for other reasons than a server that cannot be reached."""
    for sent in history.sent.values():
        if sent.refused not in ("", "unknown", "unavailable", "transport_unavailable"):
            yield sent.entity, f"{sent.id} was refused: {sent.refused}"


@rule
def admissions(history: History) -> Broken:
    """Find ids that were accepted twice; the second answer must be a duplicate, even if the producer does not know of the first."""
    runs_of = of_commands(history)
    buried = {(letter.payload or {}).get("tag", "") for letter in history.letters}
    for name, sent in history.sent.items():
        ends = [run.ended for run in runs_of.get(name, []) if run.ended is not None]
        settled = name in buried or (sent.acked is not None and bool(ends) and min(ends) <= sent.acked)
        if sent.tries == 1 and sent.admissions[:1] == ["duplicate"] and not settled and not sent.cancelled and not sent.expires:
            yield sent.entity, f"{name} was sent once, and called a duplicate"
        if sent.admissions.count("accepted") > 1 and not sent.cancelled and not sent.expires:
            yield sent.entity, f"{name} was accepted {sent.admissions.count('accepted')} times: {sent.admissions}"


@rule
def calls(history: History) -> Broken:
    """Find calls with another answer than the result of the last run, or without an answer although the command was settled in time."""
    runs_of = of_commands(history)
    for name, sent in history.sent.items():
        if sent.how != "call" or history.killed(sent.process):
            continue
        if not sent.outcome:
            yield sent.entity, f"the call {name} has no outcome"
            continue
        runs = runs_of.get(name, [])
        if sent.outcome in ("value", "rejected"):
            how = "returned" if sent.outcome == "value" else "rejected"
            if not runs or runs[-1].fence != sent.value or (runs[-1].how != how and not sent.replays):
                told = [(run.fence, run.how) for run in runs]
                yield sent.entity, f"the call {name} was answered {sent.outcome} of fence {sent.value}, but its runs were {told}"
        elif sent.outcome == "timeout":
            yield from _late(history, sent, runs)


def _late(history: History, sent: Sent, runs: list[Execution]) -> Broken:
    """Return whether a settled call was not answered in time: a lost reply must be replaced by the stored one."""
    last = runs[-1] if runs else None
    if last is None or last.how not in ("returned", "rejected") or last.ended is None or sent.replays:
        return
    # A run is settled as a whole.
    ended = max([last.ended, *(run.ended or sent.answered for run in history.executions if run.is_with(last))])
    if sent.answered - max(ended, history.calm_from()) > 12.0:
        yield sent.entity, f"the call {sent.id} timed out {sent.answered - last.ended:.1f} s after its command had {last.how}"


@rule
def paused(history: History) -> Broken:
    """Find starts of paused entities (the fence has the server's time of a start)."""
    if history.jumps:
        return
    for entity, begin, end in history.pauses:
        for run in history.executions:
            started = run.fence / 1e6 - 1_700_000_000.0
            if run.entity == entity and begin + 0.001 < started < end - 0.001:
                yield entity, f"{run.id} was started {started - begin:.3f} s after its entity was paused"


@rule
def drained(history: History) -> Broken:
    """Find what is left in the end: every command is settled, none stuck, and the server holds nothing of any entity."""
    if history.stuck:
        yield "", history.stuck
        return
    for name in ("depth", "in_flight", "entities"):
        if history.counters.get(name):
            yield "", f"{name} is {history.counters[name]} after the drain"
    for name in history.leftovers:
        yield "", f"left on the server: {name}"


RULES += [
    due,
    behind,
    durable,
    ends,
    follow_ups,
    put_off,
    given_up,
    entity_states,
    firings,
    removed_schedules,
    starved,
    standstill,
    after_the_last_trigger,
    shares,
    publication,
    several,
    told,
]
