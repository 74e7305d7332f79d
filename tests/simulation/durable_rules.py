"""Rules for durable commands: each step one result, each call one command and one outcome, compensations exactly for what was done."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from tests.simulation.history import Execution, History, Journey, JourneyRun, of_commands

__all__ = ["durable"]

Broken = Iterator[tuple[str, str]]


def durable(history: History) -> Broken:
    """Find broken promises to durable commands."""
    starts = of_commands(history)
    for journey in history.journeys.values():
        texts = [*_ended(history, journey, starts), *_one_result(journey), *_calls(journey, starts), *_undone(journey, starts)]
        texts += [*_undone_after(history, journey, starts), *_over(history, journey)]
        yield from ((journey.entity, f"{journey.tag}: {text}") for text in texts)
    if not history.jumps:
        yield from _in_line(history)


def _ended(history: History, journey: Journey, starts: dict[str, list[Execution]]) -> Iterator[str]:
    """It ends, and what it sends with its end is sent if and only if it returned."""
    if history.stuck or not journey.acked:
        return
    if not journey.outcome or journey.outcome == "timeout":
        yield f"it was accepted, and has no end: {journey.outcome}"
    is_sent = f"{journey.tag}.f" in starts
    if is_sent is not journey.outcome.startswith("value"):
        yield f"it ended as {journey.outcome}, and what it sends was {'sent' if is_sent else 'not sent'}"
    if journey.outcome.startswith("value") and journey.outcome != f"value {journey.tag}":
        yield f"it returned {journey.outcome}"
    if journey.outcome == "cancelled" and not journey.cancelled:
        yield "it was cancelled by nobody"


def _one_result(journey: Journey) -> Iterator[str]:
    """Yield runs that saw something else: all see the same; a step's result is that of one of its effects, and a signal is taken once."""
    seen: dict[str, str] = {}
    for run in sorted(journey.runs, key=lambda run: run.fence):
        for key, value in run.saw:
            if seen.setdefault(key, value) != value:
                yield f"{key} came to {seen[key]}, and in a later run to {value}"
    for key, effects in journey.effects.items():
        if seen.get(key) == "declined":
            yield f"{key} had failed, another step had taken its place, and it was done all the same"
        if key in seen and seen[key].startswith(f"{key} ") and seen[key] not in effects:
            yield f"{key} came to {seen[key]}, which is none of its effects"
    taken = [value for value in seen.values() if value in journey.signals]
    if len(taken) != len(set(taken)):
        yield f"a signal was taken twice: {taken}"


def _calls(journey: Journey, starts: dict[str, list[Execution]]) -> Iterator[str]:
    """Yield calls that were wrong: a call is one command, and its value is that of the command's end."""
    seen = {key: value for run in journey.runs for key, value in run.saw}
    for key in journey.calls:
        runs = starts.get(key, [])
        if len({run.command_id for run in runs}) > 1:
            yield f"the call {key} was sent {len({run.command_id for run in runs})} times"
        value = seen.get(key, "")
        if value.isdecimal() and (runs[-1].fence != int(value) or runs[-1].how != "returned"):
            yield f"the call {key} came to {value}, and its last run {runs[-1].how} under fence {runs[-1].fence}"


def _undone(journey: Journey, starts: dict[str, list[Execution]]) -> Iterator[str]:
    """Yield what was undone wrongly: what was done is undone, in reverse, if it did not return; each once."""
    order = list(dict.fromkeys(key for key, _ in journey.undone))
    if len({command_id for _, command_id in journey.undone}) != len(order):
        yield f"something was undone by two commands: {journey.undone}"
    if not journey.outcome:
        return
    if journey.outcome.startswith("value"):
        if order:
            yield f"it returned, and {order} was undone"
        return
    places = [journey.undos.index(key) for key in order]
    if places != sorted(places, reverse=True):
        yield f"it was undone in the order {order}, and done in the order {journey.undos}"
    for key in journey.undos:
        yield from _undone_as_done(journey, key, starts.get(key, []), is_undone=key in order)


def _undone_as_done(journey: Journey, key: str, runs: list[Execution], *, is_undone: bool) -> Iterator[str]:
    """Yield what was undone in vain, or not: what was done is undone, what was not is not. Of a call whose caller waited no more, either may be."""
    if key in journey.compensations:
        if not is_undone and journey.outcome != "interrupted":
            yield f"{key} was to be undone, and was not"
        return
    is_late = any(value == "late" and seen in (key, key.rpartition(".")[0]) for run in journey.runs for seen, value in run.saw)
    if runs and runs[-1].how != "rejected" and not is_undone:  # also one that was begun, and then ended by somebody
        yield f"{key} was done ({runs[-1].how}), and not undone"
    if is_undone and not is_late and (not runs or runs[-1].how == "rejected"):
        yield f"{key} was not done, and undone"


def _undone_after(history: History, journey: Journey, starts: dict[str, list[Execution]]) -> Iterator[str]:
    """Yield calls that ran, or began, once the first was undone: what undoes comes after all that the handler has called.

    The last run of a command may be lost with its lease: another worker gives it up, and the run ends when its worker wakes.
    """
    if (undone := journey.undone_at) is None:
        return
    for key in sorted(journey.calls):
        for run in starts.get(key, []):
            still_ran = run is starts[key][-1] and run.ended is not None and run.ended > undone
            if run.began > undone or (still_ran and not _was_taken(history, run, undone)):
                yield f"it was undone from {undone:.3f} on, and the call {key} ran from {run.began:.3f} to {run.ended}"


def _was_taken(history: History, run: Execution, until: float) -> bool:
    """Return whether another worker had taken the entity of a run by then."""
    mine = (f"item:{run.entity}", run.worker)
    return any((claim.entity, claim.old) == mine and run.began <= claim.at <= until for claim in history.claims)


def _over(history: History, journey: Journey) -> Iterator[str]:
    """Yield effects of a run that was over: a later run had begun, or what undoes it. Only a worker that lost its lease does not know that."""
    began = {run.fence: run.began for run in journey.runs}
    others = [run for each in history.journeys.values() if each.entity == journey.entity for run in each.runs]
    home = f"journey:{journey.entity}"
    for key, fence, at in journey.acts:
        over = [run.began for run in others if run.fence > fence and run.began < at]
        over += [undone for undone in (journey.undone_at,) if undone is not None and undone < at]
        is_lost = any(claim.entity == home and began[fence] <= claim.at <= at for claim in history.claims)
        if over and not is_lost:
            yield f"the run with fence {fence} was over at {min(over):.3f}, and did {key} at {at:.3f}"


def _in_line(history: History) -> Broken:
    """Runs of one journey are together: nothing of its entity runs before it has ended."""
    runs: dict[str, list[tuple[JourneyRun, str]]] = {}
    for journey in history.journeys.values():
        runs.setdefault(journey.entity, []).extend((run, journey.tag) for run in journey.runs)
    for entity, started in runs.items():
        line = [tag for tag, _ in groupby(sorted(started, key=lambda each: each[0].fence), key=lambda each: each[1])]
        if len(line) != len(set(line)):
            yield entity, f"journeys of one entity were mixed: {line}"
