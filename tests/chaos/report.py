"""Tells what a run found: figures and verdict as JSON, as a page with the timeline as a picture, and as text."""

from __future__ import annotations

import html
import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.chaos.facts import Violation
from tests.chaos.history import History
from tests.chaos.picture import drawn
from tests.chaos.plan import Plan
from tests.chaos.recovery import Recovery, measure
from tests.chaos.timeline import timeline

__all__ = ["Report"]

_SHOWN = 20
_BESIDES = {"gap", "silence", "block", "load", "scripted", "backlog"}
"""Kinds that are not counted as faults: troubles that no fault caused, handlers that block their event loop, loads, and the time in which a
backlog is worked off.
"""


@dataclass
class Report:
    """A run and its verdict.

    Attributes:
        missing: Faults that were asked for and could not be injected, with the reason.
    """

    plan: Plan
    history: History
    violations: list[Violation]
    missing: dict[str, str] = field(default_factory=dict[str, str])

    @cached_property
    def faults(self) -> Counter[str]:
        """Count the faults of each kind."""
        return Counter(fault.kind for fault in self.history.faults if fault.kind not in _BESIDES)

    @cached_property
    def recoveries(self) -> tuple[Recovery, ...]:
        """Return the recovery times."""
        return measure(self.history)

    @cached_property
    def figures(self) -> dict[str, Any]:
        """Return all figures."""
        final, history = self.history.final, self.history
        missing = {family: why for family, why in self.missing.items() if family in self.plan.faults}
        return {
            "verdict": "violated" if self.violations else "clean",
            "plan": {name: value for name, value in asdict(self.plan).items() if name not in ("folder", "ledger")},
            "commands": len(final.outcomes),
            "outcomes": dict(Counter(final.outcomes.values())),
            "starts": len(history.started),
            "effects": len(history.effects),
            "effects_fenced_off": len(history.refused),
            "requests": dict(Counter(request.answer for request in history.asked)),
            "calls": dict(Counter(call.outcome for call in history.called)),
            "faults": self.faults.total(),
            "faults_by_kind": dict(self.faults.most_common()),
            "not_injected": missing,
            "besides": dict(Counter(fault.kind for fault in history.faults if fault.kind in _BESIDES)),
            "recovery": {
                each.what: {"limit": each.limit, **each.figures(), "undisturbed": each.figures(undisturbed=True)}
                for each in self.recoveries
            },
            "violations": [asdict(found) for found in self.violations],
        }

    @property
    def shortest(self) -> Violation | None:
        """Return the violation with the shortest explanation; those that name an entity first."""
        return min(self.violations, key=lambda found: (not found.entity, len(found.text), found.at), default=None)

    def text(self) -> str:
        """Return the report for the terminal."""
        figures = self.figures
        lines = [
            f"chaos: {figures['commands']} commands, {figures['starts']} starts, {figures['faults']} faults: {figures['faults_by_kind']}",
            f"chaos: outcomes {figures['outcomes']}, calls {figures['calls']}, effects fenced off {figures['effects_fenced_off']}",
        ]
        lines += [f"chaos: not injected: {family} ({why})" for family, why in figures["not_injected"].items()]
        for each in self.recoveries:
            lines.append(
                f"chaos: {each.what} (limit {each.limit:g} s): {each.figures()}, undisturbed {each.figures(undisturbed=True)}"
            )
        shortest = self.shortest
        if shortest is None:
            return "\n".join([*lines, "chaos: clean, no promise was broken"])
        kinds = dict(Counter(found.rule for found in self.violations))
        lines += ["", f"chaos: seed {self.plan.seed}: {len(self.violations)} violations: {kinds}", f"  {shortest}", ""]
        lines += timeline(self.history, shortest)
        lines += ["", "others:", *(f"  {found}" for found in self.violations[:_SHOWN] if found is not shortest)]
        return "\n".join(lines)

    def write(self, folder: Path) -> None:
        """`report.json` and `report.html`."""
        (folder / "report.json").write_text(json.dumps(self.figures, indent=1))
        figures = {name: value for name, value in self.figures.items() if name != "violations"}
        page = _PAGE.format(
            verdict=self.figures["verdict"],
            name=html.escape(f"seed {self.plan.seed}, {self.plan.server}, {self.plan.durability}"),
            text=html.escape(self.text()),
            picture=drawn(self.history, self.recoveries),
            figures=html.escape(json.dumps(figures, indent=1)),
        )
        (folder / "report.html").write_text(page)


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>chaos: {verdict}</title>
<style>body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem }}
pre {{ background: #f4f4f2; overflow-x: auto; padding: 1rem }} svg {{ height: auto; width: 100% }} .clean {{ color: #1b7f4b }}
.violated {{ color: #b3261e }}</style>
<h1>Chaos: <span class="{verdict}">{verdict}</span></h1><p>{name}</p>
{picture}
<pre>{text}</pre>
<h2>Figures</h2><pre>{figures}</pre></html>
"""
