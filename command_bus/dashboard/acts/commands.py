"""Acts on many commands that are not settled: cancel those that filters choose, or that were picked one by one."""

from __future__ import annotations

from urllib.parse import parse_qsl

from command_bus.admin.selection import BulkStep
from command_bus.clock import mono
from command_bus.dashboard.acts.act import Act, Part, Plan, done_before, reason_of
from command_bus.dashboard.pages.selection import FILTERS, selection_of
from command_bus.dashboard.visit import PICKED, Fields, Visit

_LOOK_AT = 200_000
"""Commands that are looked at for one part: about four seconds."""
_SECONDS = 1.0
"""The time that a part takes, once it has changed something."""


async def _plan(visit: Visit, fields: Fields) -> Plan:
    asked = {name: fields[name] for name in FILTERS}
    filters = ", ".join(f"{name} {value}" for name, value in asked.items() if value) or "no filter"
    ends = "Those that have started are ended, too. " if fields["running"] else ""
    says = f"are taken out of line, and their callers get CommandCancelled. {ends}It cannot be undone."
    back = visit.url("/commands", **asked)
    if fields[PICKED]:
        number = len(fields[PICKED].split("\n"))
        keeps = {PICKED: fields[PICKED], "running": fields["running"]}
        return Plan(f"{number:,} commands", f"{number:,} commands {says}", back, keeps, details="picked one by one", total=number)
    selection = selection_of(visit, fields, _LOOK_AT)
    counts = await selection.count()
    number = counts.total()
    cut = "" if selection.complete else f" {selection.looked:,} commands were looked at; there may be more: ask again."
    return Plan(
        f"{number:,} commands ({filters})",
        f"{number:,} commands {says}{cut}",
        back,
        asked | {"running": fields["running"]},
        typed=str(number),
        counts=tuple((f"{name or 'unreadable'}, {state}", count) for (name, state), count in counts.most_common(20)),
        details=filters,
        nothing="" if number else f"No command matches, of {selection.looked:,} that were looked at.",
        total=number,
    )


async def _cancel(visit: Visit, fields: Fields) -> str | Part:
    why = f"{reason_of(fields)} ({visit.user.name})"
    if fields[PICKED]:
        return await _cancel_picked(visit, fields, why)
    before, until, step = done_before(fields), mono() + _SECONDS, BulkStep()
    async for step in selection_of(visit, fields, _LOOK_AT).cancel(why, running=bool(fields["running"])):
        if step.done and not step.complete and mono() >= until:
            return Part(f"{before + step.done:,} commands are cancelled", before + step.done, {})
    left = f"; {step.left:,} are not: they have started or ended meanwhile" if step.left else ""
    return f"{before + step.done:,} commands are cancelled{left}"


async def _cancel_picked(visit: Visit, fields: Fields, why: str) -> str:
    done = left = 0
    for each in fields[PICKED].split("\n"):
        named = dict(parse_qsl(each))
        command_id, kind, entity_id = named.get("id", ""), named.get("type", ""), named.get("entity", "")
        is_cancelled = bool(kind and entity_id) and await visit.bus.entity(kind, entity_id).cancel(command_id)
        if not is_cancelled and (fields["running"] or not kind):
            is_cancelled = await visit.bus.cancel(command_id, running=bool(fields["running"]), reason=why)
        done, left = done + is_cancelled, left + (not is_cancelled)
    return f"{done:,} commands are cancelled" + (f"; {left:,} are not: they have started or ended meanwhile" if left else "")


COMMAND_ACTS = {"commands.cancel": Act("Cancel commands", "operator", _plan, _cancel, is_grave=True)}
"""These acts, by their names."""
