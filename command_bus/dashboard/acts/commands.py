"""Acts on many commands that are not settled: cancel those that filters choose, or that were picked one by one."""

from __future__ import annotations

import re
from collections import Counter
from urllib.parse import parse_qsl

from command_bus.admin.selection import BulkStep, SelectableState, Selection, unless_refused
from command_bus.clock import mono
from command_bus.dashboard.acts.act import Act, Part, Plan, number_in, signed
from command_bus.dashboard.pages.selection import FILTERS, selection_of
from command_bus.dashboard.visit import PICKED, Fields, Visit
from command_bus.errors import TransportUnavailable

_LOOK_AT = 200_000
"""Commands that are looked at for one part: about four seconds."""
_ASKED = re.compile(r"([0-9]{1,16})-([0-9]{1,15})")
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
    ids = ", ".join(_named(each).get("id", "") for each in fields[PICKED].split("\n"))
    return Plan(f"{number:,} commands", _says(number, fields), visit.url("/commands"), keeps, details=ids, nothing=nothing)


def _named(box: str) -> dict[str, str]:
    """Return id, and type and id of the entity, of the command that a check box names."""
    return dict(parse_qsl(box))


async def _cancel_picked(visit: Visit, fields: Fields) -> str:
    done, picked = 0, fields[PICKED].split("\n")
    for each in picked:
        one = _cancel_one(visit, _named(each), signed(visit, fields), running=bool(fields["running"]))
        try:
            done += await unless_refused(one)
        except TransportUnavailable as error:
            error.message = f"after {done:,} were cancelled: {error.message}"
            raise
    return _told(done, len(picked) - done)


async def _cancel_one(visit: Visit, named: dict[str, str], why: str, *, running: bool) -> bool:
    command_id, kind, entity_id = named.get("id", ""), named.get("type", ""), named.get("entity", "")
    if not command_id:
        return False
    if kind and entity_id and await visit.bus.entity(kind, entity_id).cancel(command_id, why):
        return True
    return (running or not kind) and await visit.bus.cancel(command_id, running=running, reason=why)


async def _plan_all(visit: Visit, fields: Fields) -> Plan:
    asked = {name: fields[name] for name in FILTERS}
    filters = ", ".join(f"{name} {value}" for name, value in asked.items() if value and name != "value") or "no filter"
    selection, number = _counted(visit, fields)
    is_asked, counts = selection.until_ms is None, Counter[tuple[str, SelectableState]]()
    if is_asked:
        counts = await selection.count()
        number = counts.total()
    cut = (
        ""
        if selection.complete or not is_asked
        else f" {selection.looked:,} were looked at; `command-bus commands` looks at more."
    )
    value = f"The field {fields['field']} has the value {fields['value']}. " if fields["field"] else ""
    return Plan(
        f"{number:,} commands ({filters})",
        f"{value}{_says(number, fields)}{cut}",
        visit.url("/commands", **asked),
        asked | {"running": fields["running"], "asked": f"{selection.until_ms or selection.began_ms}-{number}"},
        typed=str(number),
        counts=tuple((f"{name or 'unreadable'}, {state}", count) for (name, state), count in counts.most_common(20)),
        details=filters,
        nothing="" if number else f"No command matches.{cut}",
        total=number,
    )


def _counted(visit: Visit, fields: Fields) -> tuple[Selection, int]:
    """Return the commands that filters choose, and how many were counted; of a form that does it those alone that were there then."""
    selection = selection_of(visit, fields, _LOOK_AT)
    found = _ASKED.fullmatch(fields["asked"])
    if found is None or visit.request.method == "GET" or fields["asks"]:  # an address may come from anybody
        return selection, 0
    selection.until_ms = int(found[1])
    return selection, int(found[2])


async def _cancel_all(visit: Visit, fields: Fields) -> str | Part:
    why = signed(visit, fields)
    before, until, step = number_in(fields, "done"), mono() + _SECONDS, BulkStep()
    selection, number = _counted(visit, fields)
    if number > before:  # no more than were counted: what is delayed has no time of its acceptance
        async for step in selection.cancel(why, running=bool(fields["running"]), limit=number - before):
            if step.done and not step.complete and mono() >= until:
                return Part(_told(before + step.done, 0), before + step.done, {})
    cut = "" if selection.complete or not step.looked else f"; only {step.looked:,} were looked at"
    return f"{_told(before + step.done, step.left)}{cut}"


COMMAND_ACTS = {
    "commands.pick": Act("Cancel picked commands", "operator", _plan_picked, _cancel_picked, is_grave=True),
    "commands.cancel": Act("Cancel commands", "admin", _plan_all, _cancel_all, is_grave=True),
}
"""These acts, by their names."""
