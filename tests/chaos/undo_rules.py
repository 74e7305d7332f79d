"""Rules for the ends of durable commands: exactly what was done is undone, behind it and in reverse, and a run that is over does nothing more."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.facts import Facts, Violation
from tests.chaos.journeys import Stage, route_of

__all__ = ["nothing_when_it_is_over", "undone_as_done"]

_ENDED = ("rejected", "failed", "cancelled")
_DID_SOMETHING = ("completed", "failed", "interrupted")


def undone_as_done(facts: Facts) -> Iterator[Violation]:
    """I20: what a command that fails for good has done is undone, the last first; of one that completes, or did nothing, nothing is."""
    for journey in facts.journeys:
        outcome, entity = facts.final.outcomes.get(journey, ""), facts.entity_of(journey)
        stages = [stage for stage in route_of(facts.history.seed, journey).stages if stage.undone is not None]
        undone = {stage.undone: at for stage in stages if (at := _undone_at(facts, journey, str(stage.undone))) is not None}
        if outcome == "completed" and undone:
            yield Violation("undo", entity, f"{journey} completed, and {[*undone]} was undone", min(undone.values()))
        if outcome not in _ENDED:
            continue
        for stage in stages:
            if problem := _wrong(facts, journey, stage, is_undone=stage.undone in undone):
                yield Violation("undo", entity, f"{stage.undone} of {journey} {problem}", undone.get(stage.undone, 0.0))
        times = [undone[stage.undone] for stage in stages if stage.undone in undone]
        if times != sorted(times, reverse=True) and not facts.failed_over(min(times), max(times)):
            yield Violation("undo", entity, f"{journey} was undone in another order than {[*reversed(undone)]}", max(times))


def _undone_at(facts: Facts, journey: str, key: str) -> float | None:
    """Return when the first run of what undoes a stage began."""
    commands = facts.called.get((journey, key, True), ())
    return min((start.at for command in commands for start in facts.by_id.get(command, ())), default=None)


def _wrong(facts: Facts, journey: str, stage: Stage, *, is_undone: bool) -> str | None:
    key = str(stage.undone)
    if is_undone and (journey, stage.key) not in facts.reached_by:
        return "was never begun, and undone"
    if stage.undone == stage.key:  # named by itself
        seen = facts.seen.get((journey, key))
        lost = seen is not None and facts.failed_over(facts.reached_by[journey, stage.key], facts.history.until)
        return "was done, and not undone" if seen and not is_undone and not lost else None
    commands = facts.called.get((journey, key, False), set[str]())
    outcomes = {facts.final.outcomes.get(command, "") for command in commands}
    if not is_undone and outcomes & {*_DID_SOMETHING}:
        return f"was done ({', '.join(sorted(outcomes))}), and not undone"
    if is_undone and not outcomes & {*_DID_SOMETHING} and not _is_late(facts, journey, stage):
        return "did nothing, and was undone"
    return None


def _is_late(facts: Facts, journey: str, stage: Stage) -> bool:
    """Return whether a caller did not wait for the end of a call: it does not know that it did nothing."""
    keys = (str(stage.undone), f"{stage.key}.all")
    return any(seen.value == "late" for key in keys for seen in facts.seen.get((journey, key), ()))


def nothing_when_it_is_over(facts: Facts) -> Iterator[Violation]:
    """I21: no step acts once a later run has begun or its journey is being undone, and what undoes comes behind the end of all that was called."""
    undone: dict[str, float] = {}
    for (journey, _, undoes), commands in facts.called.items():
        times = [start.at for command in commands for start in facts.by_id.get(command, ())] if undoes else []
        undone[journey] = min([undone.get(journey, float("inf")), *times])
    for acted in facts.history.acted:
        later = [start.at for start in facts.by_id.get(acted.id, ()) if start.fence > acted.fence]
        over, began = min([undone.get(acted.id, float("inf")), *later]), facts.started_at(acted.id, acted.fence)
        if over < acted.at and not _lost(facts, acted.who, began, acted.at):
            text = f"{acted.key} of {acted.id} was done under {acted.fence} {acted.at - over:.3f} s after that run was over"
            yield Violation("over", facts.entity_of(acted.id), text, acted.at)
    for (journey, key, undoes), commands in facts.called.items():
        for start in (each for command in commands if not undoes for each in facts.by_id.get(command, ())):
            ended = facts.end_of(start)
            at = max(start.at, ended.at if ended is not None else start.at)
            if at > undone.get(journey, float("inf")) and not _lost(facts, start.who, start.at, at):
                yield Violation("over", facts.entity_of(journey), f"{journey} was undone while its call {key} waited or ran", at)


def _lost(facts: Facts, who: str, since: float, until: float) -> bool:
    """Return whether this process may have lost its leases, or the server what it knew."""
    return facts.excuses.explains(who, since, until) or facts.failed_over(since, until)
