"""Rules for workflows: they end as their nodes did, stage by stage, and undo in reverse.

That a node is one command, and that nothing is undone before all that was sent has ended, the rules for calls say.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.chaos.facts import Facts, Violation
from tests.chaos.flows import FLOW, Flow, flow_of, told

__all__ = ["flow_ended", "flow_undone"]

_DID_SOMETHING = ("completed", "failed", "interrupted")


@dataclass(frozen=True, slots=True)
class _Node:
    """The fate of a node: when its first run began, when the run that counts ended, and what it came to."""

    id: str
    outcome: str
    value: Any
    began: float
    ended: float


def _node(facts: Facts, flow: str, key: str, *, undoes: bool = False) -> _Node | None:
    """Return what became of a node, or of what undoes it; None if it never ran."""
    command = next(iter(facts.called.get((flow, key, undoes), ())), None)
    if command is None or not (starts := facts.by_id.get(command)):
        return None
    value = facts.final.values.get(command)
    counts = next((start for start in starts if start.fence == value), starts[-1])
    end = facts.end_of(counts)
    outcome = facts.final.outcomes.get(command, "")
    return _Node(command, outcome, value, min(start.at for start in starts), counts.at if end is None else end.at)


def _ended(facts: Facts) -> Iterator[tuple[str, Flow, str, bool]]:
    """Yield the workflows that have ended: id, plan, outcome, and whether a server was replaced since it was sent by one that may know less."""
    for flow, requests in facts.asked.items():
        outcome = facts.final.outcomes.get(flow, "waiting")
        if requests and requests[0].kind == FLOW and outcome != "waiting":  # of others `nothing_lost` decides
            plan = flow_of(facts.history.seed, flow)
            nodes = [node for key in plan.keys for undoes in (False, True) if (node := _node(facts, flow, key, undoes=undoes))]
            until = max((node.ended for node in nodes), default=requests[0].at)
            yield flow, plan, outcome, facts.failed_over(requests[0].at, until)


def flow_ended(facts: Facts) -> Iterator[Violation]:
    """I22: each stage runs once the one before has ended, all of it and with its results; none behind a failure. The end is that of the last."""
    for flow, plan, outcome, is_replaced in _ended(facts):
        expected: tuple[str, Any] = ("completed", None)
        since = 0.0
        for stage in plan.stages:
            nodes = [_node(facts, flow, key) for key in stage]
            texts = [*_of_stage(facts, flow, dict(zip(stage, nodes, strict=True)), since, expected)]
            yield from (Violation("flow", flow, text) for text in texts if not is_replaced)
            if expected[0] == "rejected" or None in nodes:
                continue
            ran = [node for node in nodes if node is not None]
            since = max(node.ended for node in ran)
            results = [told(node.value) if node.outcome == "completed" else node.id for node in ran]
            is_group = plan.is_group and stage is plan.stages[0]
            if any(node.outcome != "completed" for node in ran) and not (is_group and plan.ignores):
                expected = ("rejected", None)
            else:
                expected = ("completed", results if is_group else results[0])
        found = (outcome, told(facts.final.values.get(flow)))
        if found != expected and not (is_replaced and outcome in ("completed", "rejected")):
            yield Violation("flow", flow, f"it ended as {found}, and its nodes as {expected}")


def _of_stage(facts: Facts, flow: str, nodes: dict[str, _Node | None], since: float, before: tuple[str, Any]) -> Iterator[str]:
    for key, node in nodes.items():
        if before[0] == "rejected":
            if node is not None:
                yield f"{key} ran behind a failure"
            continue
        if node is None:
            yield f"{key} never ran"
            continue
        if node.began < since:
            yield f"{key} began {since - node.began:.3f} s before the end of what comes before it"
        got = {str(seen.value) for seen in facts.seen.get((flow, f"{key}<"), ())}
        if got != ({json.dumps(before[1])} if before[1] is not None else set()):
            yield f"{key} got {sorted(got)}, and {before[1]} came to be before it"


def flow_undone(facts: Facts) -> Iterator[Violation]:
    """I23: of a workflow that is rejected, what did something is undone, one after another in reverse; of others nothing is."""
    for flow, plan, outcome, is_replaced in _ended(facts):
        undone = {key: node for key in plan.keys if (node := _node(facts, flow, key, undoes=True)) is not None}
        done = [
            key
            for key in plan.keys
            if key in plan.undone and (node := _node(facts, flow, key)) and node.outcome in _DID_SOMETHING
        ]
        if outcome == "completed":
            done = []
        if {*undone} != {*done} and not is_replaced:
            yield Violation("flow undone", flow, f"it is {outcome}, {done} was done, and {[*undone]} undone")
        for (earlier, first), (later, second) in pairwise(undone.items()):
            if first.began < second.ended and not is_replaced:
                yield Violation("flow undone", flow, f"{earlier} was undone before {later} was", first.began)
