"""Rules for commands of several entities: in each of their lines as if it were their only one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations, pairwise

from tests.simulation.history import History
from tests.simulation.standing import LineRun, Stander, Standing

__all__ = ["several"]

Broken = Iterator[tuple[str, str]]


def several(history: History) -> Broken:
    """Find what overtook in a line, ran beside another or in between, was lost, or stands in some of its lines alone."""
    standing = history.standing
    for at, entity, text in standing.broken:
        yield entity, f"{text} (at {at - 1000:.4f})"
    lines: dict[str, list[LineRun]] = defaultdict(list)
    for run in standing.runs:
        for line in standing.standers[run.tag].lines:
            lines[line].append(run)
    for line, runs in lines.items():
        for text in (
            *_out_of_order(standing, line, runs),
            *_in_between(standing, line, runs),
            *_beside(history, runs),
            *_fences(history, runs),
        ):
            yield line, text
    yield from _started_while_paused(history)
    for stander in standing.standers.values():
        yield from ((stander.lines[0], text) for text in _wrong_end(history, stander))


def _out_of_order(standing: Standing, line: str, runs: list[LineRun]) -> Iterator[str]:
    """Yield first starts in another order than that of acceptance. Into the lines of a later shard a command comes once it heads those before."""
    tags = dict.fromkeys(run.tag for run in sorted(runs, key=lambda run: run.fence))
    accepted = [stander for tag in tags if line in (stander := standing.standers[tag]).first]
    for later, sooner in combinations(accepted, 2):
        if _precedes(sooner, later):
            yield f"{later.tag} started before {sooner.tag}, which was accepted first"


def _precedes(one: Stander, other: Stander) -> bool:
    if "delayed" in (one.kind, other.kind) or one.rejoined:
        return False
    if (
        one.kind == other.kind == "batch"
        and (one.process, one.batch) == (other.process, other.batch)
        and one.tries == other.tries == 1
    ):
        return one.position < other.position and one.acked is not None
    return one.acked is not None and one.acked < other.invoked


def _in_between(standing: Standing, line: str, runs: list[LineRun]) -> Iterator[str]:
    """Yield what started in a line between the first start of a command and its last; fences are of the server."""
    seen, last = set[str](), ""
    for run in sorted(runs, key=lambda run: run.fence):
        if run.tag != last and run.tag in seen and not standing.standers[run.tag].rejoined:
            yield f"{last} started in {line} before {run.tag} had ended, whose attempt {run.attempt} came after it"
        seen.add(run.tag)
        last = run.tag


def _beside(history: History, runs: list[LineRun]) -> Iterator[str]:
    """Yield runs at the same time; only a lease that was taken over excuses them."""
    for one, other in combinations(sorted(runs, key=lambda run: run.fence), 2):
        killed = next((begin for kind, begin, _ in one.process.troubles if kind == "kill"), None)
        end = one.ended if one.ended is not None else killed
        if end is not None and other.began >= end:
            continue
        home = history.standing.standers[one.tag].last[0]
        if end is None or not any(claim.entity == home and one.began <= claim.at <= other.began for claim in history.claims):
            yield f"{one.tag} (fence {one.fence}) and {other.tag} (fence {other.fence}) ran at the same time"


def _fences(history: History, runs: list[LineRun]) -> Iterator[str]:
    for one, other in pairwise(runs):
        if one.fence == other.fence:
            yield f"{one.tag} and {other.tag} started under the same fence {one.fence}"
        if other.fence < one.fence and not any(at <= other.began for at, _ in history.jumps):
            yield f"{other.tag} started under fence {other.fence} after {one.tag} had {one.fence}"


def _started_while_paused(history: History) -> Broken:
    for scope, begin, end in history.standing.pauses if not history.jumps else ():
        for run in history.standing.runs:
            started = run.fence / 1e6 - 1_700_000_000.0  # by the server
            lines = history.standing.standers[run.tag].last  # what holds the lines of shards before has begun
            if begin + 0.001 < started < end - 0.001 and any(line == scope or line.startswith(scope + ":") for line in lines):
                yield scope, f"{run.tag} was started {started - begin:.3f} s after {scope} was paused"


def _wrong_end(history: History, stander: Stander) -> Iterator[str]:
    """Yield what is wrong with the end of a command: it is run to an end once, buried, or removed."""
    tag, standing = stander.tag, history.standing
    runs = [run for run in standing.runs if run.tag == tag]
    ended = [run for run in runs if run.how in ("returned", "rejected")]
    if stander.removed is not None and any(run.began > stander.removed for run in runs):
        yield f"{tag} was removed from its lines, and started after that"
    if runs and stander.acked is None and stander.refused not in ("", "unknown", "unavailable"):
        yield f"{tag} was refused ({stander.refused}), and ran"
    if any(run.attempt > stander.most for run in runs):
        yield f"{tag} started with attempt {max(run.attempt for run in runs)}, allowed are {stander.most}"
    if len(ended) > 1 and not stander.replays and not history.claims and not standing.aborts:
        yield f"{tag} ran to its end {len(ended)} times, and nothing interrupted it"
    if history.stuck or stander.acked is None or stander.removable or tag in standing.letters:
        return
    if not ended:
        yield f"{tag} was accepted; {len(runs)} starts, none to an end, and no dead letter"
