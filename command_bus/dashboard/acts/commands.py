"""Acts on many commands that are not settled: cancel those that filters choose, or that were picked one by one."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import parse_qsl

from command_bus.admin.selection import BulkStep
from command_bus.clock import mono
from command_bus.dashboard.acts.act import Act, Part, Plan, number_in, signed
from command_bus.dashboard.pages.selection import FILTERS, selection_of
from command_bus.dashboard.visit import PICKED, Fields, Visit
from command_bus.errors import BadStep, CommandTimeout, NewerState

_LOOK_AT = 200_000
"""Commands that are looked at for one part: about four seconds."""
_SECONDS = 1.0
"""The time that a part takes, once it has changed something."""


def _says(number: int, fields: Fields) -> str:
    ends = "Those that have started are ended, too. " if fields["running"] else ""
    return f"{number:,} commands are taken out of line, and their callers get CommandCancelled. {ends}It cannot be undone."


def _told(done: int, left: int) -> str:
    rest = f"; {left:,} are not: they have started or ended meanwhile" if left else ""
    return f"{done:,} commands are cancelled{rest}"


async def _plan_picked(visit: Visit, fields: Fields) -> Plan:
    number = len(fields[PICKED].split("\n")) if fields[PICKED] else 0
    nothing = "" if number else "No command was picked."
    keeps = {PICKED: fields[PICKED], "running": fields["running"]}
    return Plan(f"{number:,} commands", _says(number, fields), visit.url("/commands"), keeps, nothing=nothing)


async def _cancel_picked(visit: Visit, fields: Fields) -> str:
    done = left = 0
    for each in fields[PICKED].split("\n"):
        is_cancelled = False
        with suppress(CommandTimeout, BadStep, NewerState):  # one that is refused holds up no other
            is_cancelled = await _cancel_one(visit, dict(parse_qsl(each)), signed(visit, fields), running=bool(fields["running"]))
        done, left = done + is_cancelled, left + (not is_cancelled)
    return _told(done, left)


async def _cancel_one(visit: Visit, named: dict[str, str], why: str, *, running: bool) -> bool:
    command_id, kind, entity_id = named.get("id", ""), named.get("type", ""), named.get("entity", "")
    if not command_id:
        return False
    if kind and entity_id and await visit.bus.entity(kind, entity_id).cancel(command_id):
        return True
    return (running or not kind) and await visit.bus.cancel(command_id, running=running, reason=why)


async def _plan_all(visit: Visit, fields: Fields) -> Plan:
    asked = {name: fields[name] for name in FILTERS}
    filters = ", ".join(f"{name} {value}" for name, value in asked.items() if value) or "no filter"
    selection = selection_of(visit, fields, _LOOK_AT)
    counts = await selection.count()
    number = counts.total()
    cut = "" if selection.complete else f" {selection.looked:,} commands were looked at; there may be more: ask again."
    return Plan(
        f"{number:,} commands ({filters})",
        f"{_says(number, fields)}{cut}",
        visit.url("/commands", **asked),
        asked | {"running": fields["running"]},
        typed=str(number),
        counts=tuple((f"{name or 'unreadable'}, {state}", count) for (name, state), count in counts.most_common(20)),
        details=filters,
        nothing="" if number else f"No command matches, of {selection.looked:,} that were looked at.",
        total=number,
    )


async def _cancel_all(visit: Visit, fields: Fields) -> str | Part:
    why = signed(visit, fields)
    before, until, step = number_in(fields, "done"), mono() + _SECONDS, BulkStep()
    async for step in selection_of(visit, fields, _LOOK_AT).cancel(why, running=bool(fields["running"])):
        if step.done and not step.complete and mono() >= until:
            return Part(_told(before + step.done, 0), before + step.done, {})
    return _told(before + step.done, step.left)


COMMAND_ACTS = {
    "commands.pick": Act("Cancel picked commands", "operator", _plan_picked, _cancel_picked, is_grave=True),
    "commands.cancel": Act("Cancel commands", "admin", _plan_all, _cancel_all, is_grave=True),
}
"""These acts, by their names."""
