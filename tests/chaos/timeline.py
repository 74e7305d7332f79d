"""The story of one entity around a violation, as text: who asked, who ran, what befell whom."""

from __future__ import annotations

from tests.chaos.excuses import EVERYBODY
from tests.chaos.facts import Violation
from tests.chaos.history import History

__all__ = ["timeline"]

_AROUND = 4.0
_LINES = 40


def timeline(history: History, violation: Violation) -> list[str]:
    """Return the events of the violation's entity around its time, and those of the processes that took part."""
    entity = violation.entity
    starts = [start for start in history.started if start.entity == entity]
    named = [start for start in starts if start.id in violation.text.split()]
    at = violation.at or max((start.at for start in named or starts), default=0.0)
    began = min((fault.start for fault in history.faults), default=at)
    fences = {start.fence for start in starts}
    events: list[tuple[float, str]] = []
    for request in history.asked:
        if request.entity == entity:
            events.append((request.at, f"{request.who:6} asks    {request.id} ({request.way})"))
            events.append((request.answered, f"{request.who:6} hears   {request.id} {request.answer}"))
    events += [(s.at, f"{s.who:6} starts  {s.id} attempt {s.attempt} fence {s.fence}") for s in starts]
    events += [(e.at, f"{e.who:6} ends    {e.id} {e.how} fence {e.fence}") for e in history.ended if e.fence in fences]
    journeys = {start.id for start in starts}
    events += [(s.at, f"{s.who:6} sees    {s.id} {s.key}: {s.value}") for s in history.seen if s.id in journeys and not s.begins]
    events += [(e.at, f"{e.who:6} runs    {e.id} {e.key} for {e.journey}") for e in history.errands if e.journey in journeys]
    events += [(t.at, f"{t.who:6} tells   {t.journey} {t.told} {t.answer}") for t in history.told if t.journey in journeys]
    events += [(r.at, f"{r.who:6} refused {r.id} fence {r.fence}") for r in history.refused if r.entity == entity]
    events += [(c.at, f"{c.who:6} call    {c.id} {c.outcome}") for c in history.called if c.id in violation.text.split()]
    near = [(when, text) for when, text in events if abs(when - at) <= _AROUND]
    present = {text.split()[0] for _, text in near} | {EVERYBODY, "server"}
    near += [
        (fault.start, f"{fault.victim:6} FAULT   {fault.kind} {fault.detail} for {fault.end - fault.start:.2f} s")
        for fault in history.faults
        if fault.victim in present and fault.start - _AROUND <= at <= fault.end + _AROUND
    ]
    shown = sorted(near, key=lambda event: abs(event[0] - at))[:_LINES]
    lines = [f"  {when - began:9.3f}  {text}" for when, text in sorted(shown)]
    return [f"  timeline of {entity or 'the run'}, in seconds since the first fault:", *lines]
