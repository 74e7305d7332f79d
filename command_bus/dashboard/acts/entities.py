"""Acts on one entity, on a command of it, and on all entities of a type or of the bus."""

from __future__ import annotations

from datetime import timedelta

from starlette.exceptions import HTTPException

from command_bus.admin.entities import Entities
from command_bus.admin.entity import EntityScope
from command_bus.dashboard.acts.act import Act, Input, Plan, reason_of
from command_bus.dashboard.forms import Fields
from command_bus.dashboard.visit import Visit
from command_bus.errors import InvalidSettings

_FOR = (
    ("", "until somebody resumes it"),
    ("15", "for 15 minutes"),
    ("60", "for an hour"),
    ("480", "for 8 hours"),
    ("1440", "for a day"),
)
_DECIDED = {"settled": "It has ended already.", "compensating": "Its end is decided, and what it did is being undone."}
"""Why there is nothing to cancel, by the state of a command."""
_UNTIL = Input("minutes", "How long", "choice", choices=_FOR)


def _entity(visit: Visit, fields: Fields) -> EntityScope:
    if not fields["type"] or not fields["id"]:
        raise HTTPException(404, "the form names no entity")
    return visit.bus.entity(fields["type"], fields["id"])


def _label(fields: Fields) -> str:
    return f"{fields['type']}:{fields['id']}"


def _keeps(fields: Fields) -> dict[str, str]:
    return {"type": fields["type"], "id": fields["id"]}


def _minutes(fields: Fields) -> float | None:
    text = fields["minutes"]
    if not text:
        return None
    if text not in {value for value, _ in _FOR}:
        raise InvalidSettings(f"minutes={text!r}: one of those on the page")
    return timedelta(minutes=int(text)).total_seconds()


def _length(fields: Fields) -> str:
    """Return for how long a pause was asked, for the audit log; empty if it was not, or for no end."""
    return f", {dict(_FOR)[fields['minutes']]}" if fields["minutes"] in dict(_FOR) and fields["minutes"] else ""


def _back(visit: Visit, fields: Fields) -> str:
    return visit.url("/entity", type=fields["type"], id=fields["id"])


async def _plan(visit: Visit, fields: Fields, says: str, *inputs: Input, typed: bool = False) -> Plan:
    """Return the plan for one entity; `{depth}` in the sentence is how many commands it holds."""
    depth = await _entity(visit, fields).depth()
    return Plan(
        _label(fields),
        says.format(depth=f"{depth:,} command{'' if depth == 1 else 's'}"),
        _back(visit, fields),
        _keeps(fields),
        inputs,
        str(depth) if typed and depth else "",
        details=f"{depth:,} held{_length(fields)}",
    )


async def _plan_pause(visit: Visit, fields: Fields) -> Plan:
    return await _plan(
        visit, fields, "None of its {depth} starts any more until it is resumed. What runs now is not touched.", _UNTIL
    )


async def _pause(visit: Visit, fields: Fields) -> str:
    changed = await _entity(visit, fields).pause(_signed(visit, fields), until=_minutes(fields))
    return (
        f"{_label(fields)} is paused" if changed else f"{_label(fields)} was paused already; its reason and end are the new ones"
    )


async def _plan_drain(visit: Visit, fields: Fields) -> Plan:
    return await _plan(visit, fields, "New commands for it are refused. The {depth} that it holds run to their end.")


async def _drain(visit: Visit, fields: Fields) -> str:
    changed = await _entity(visit, fields).drain(_signed(visit, fields))
    return f"{_label(fields)} is drained" if changed else f"{_label(fields)} was drained already"


async def _plan_resume(visit: Visit, fields: Fields) -> Plan:
    return await _plan(
        visit, fields, "It goes on with the {depth} that it holds, unless its type or the bus is paused, or it is parked."
    )


async def _resume(visit: Visit, fields: Fields) -> str:
    return (
        f"{_label(fields)} goes on"
        if await _entity(visit, fields).resume()
        else f"{_label(fields)} was neither paused nor drained"
    )


async def _plan_purge(visit: Visit, fields: Fields) -> Plan:
    says = "Of its {depth} all that wait are removed, delayed ones too. Their callers get CommandCancelled. What runs goes on. It cannot be undone."
    return await _plan(visit, fields, says, typed=True)


async def _purge(visit: Visit, fields: Fields) -> str:
    return f"{await _entity(visit, fields).purge():,} commands removed from {_label(fields)}"


async def _plan_abort(visit: Visit, fields: Fields) -> Plan:
    says = (
        "The attempt that runs is ended, and its command settled as interrupted: the next attempt follows, or it is a dead letter. "
        "It holds {depth}. Pause the entity before if the command is not to be started again."
    )
    return await _plan(visit, fields, says)


async def _abort(visit: Visit, fields: Fields) -> str:
    report = await _entity(visit, fields).abort(reason_of(fields), by=visit.user.name, wait=5.0)
    again = {True: "; another attempt follows", False: "; it is a dead letter", None: ""}[report.again]
    where = f" on {report.host}, process {report.pid}" if report.host else ""
    return f"{report.entity}: {report.result.replace('_', ' ')}{where}{again}"


async def _plan_cancel(visit: Visit, fields: Fields) -> Plan:
    command_id = _command_id(fields)
    status = await visit.bus.commands.status(command_id)
    says = f"1 command ({status.name or command_id}, {status.state}) is taken out of line, or ended if it runs. Its caller gets CommandCancelled."
    nothing = _DECIDED.get(status.state, "")
    back = visit.url("/command", id=command_id)
    return Plan(f"command {command_id}", says, back, {"id": command_id}, nothing=nothing)


async def _cancel(visit: Visit, fields: Fields) -> str:
    done = await visit.bus.commands.cancel(_command_id(fields), running=True, reason=reason_of(fields), wait=5.0)
    return f"command {fields['id']} is cancelled" if done else f"command {fields['id']}: its end was decided before"


async def _plan_promote(visit: Visit, fields: Fields) -> Plan:
    command_id = _command_id(fields)
    says = "1 delayed command takes its place at the end of its line now."
    return Plan(f"command {command_id}", says, visit.url("/command", id=command_id), {"id": command_id})


async def _promote(visit: Visit, fields: Fields) -> str:
    done = await visit.bus.commands.reschedule(_command_id(fields), delay=0)
    return f"command {fields['id']} is in line" if done else f"command {fields['id']} was not delayed any more"


def _command_id(fields: Fields) -> str:
    if not fields["id"]:
        raise HTTPException(404, "the form names no command")
    return fields["id"]


def _many(visit: Visit, fields: Fields) -> tuple[Entities, str]:
    """Return the entities of the type that the fields name, or all, and their name for people."""
    kind = fields["type"]
    return (visit.bus.entities.of(kind), f"all {kind}") if kind else (visit.bus.entities, "everything")


async def _plan_many(visit: Visit, fields: Fields, says: str, *inputs: Input) -> Plan:
    _, label = _many(visit, fields)
    stats = await visit.bus.stats()
    whole = f"The bus holds {stats.depth:,} commands of {stats.entities:,} entities"
    typed = fields["type"] or visit.bus.settings.namespace
    text = f"{says} {whole}{', of all types together' if fields['type'] else ''}."
    return Plan(
        label,
        text,
        visit.url("/"),
        {"type": fields["type"]},
        inputs,
        typed,
        details=f"{stats.depth:,} held in all{_length(fields)}",
    )


async def _plan_pause_many(visit: Visit, fields: Fields) -> Plan:
    return await _plan_many(
        visit, fields, "None of their commands starts any more until they are resumed. What runs is not touched.", _UNTIL
    )


async def _pause_many(visit: Visit, fields: Fields) -> str:
    entities, label = _many(visit, fields)
    return (
        f"{label}: paused"
        if await entities.pause(_signed(visit, fields), until=_minutes(fields))
        else f"{label}: was paused already"
    )


async def _plan_drain_many(visit: Visit, fields: Fields) -> Plan:
    return await _plan_many(visit, fields, "New commands are refused. What was accepted runs to its end.")


async def _drain_many(visit: Visit, fields: Fields) -> str:
    entities, label = _many(visit, fields)
    return f"{label}: drained" if await entities.drain(_signed(visit, fields)) else f"{label}: was drained already"


async def _plan_resume_many(visit: Visit, fields: Fields) -> Plan:
    return await _plan_many(visit, fields, "They go on; what is paused more narrowly or widely stays so.")


async def _resume_many(visit: Visit, fields: Fields) -> str:
    entities, label = _many(visit, fields)
    return f"{label}: resumed" if await entities.resume() else f"{label}: was neither paused nor drained"


def _signed(visit: Visit, fields: Fields) -> str:
    return f"{reason_of(fields)} ({visit.user.name})"


ENTITY_ACTS = {
    "entity.pause": Act("Pause", "operator", _plan_pause, _pause),
    "entity.drain": Act("Drain", "operator", _plan_drain, _drain),
    "entity.resume": Act("Resume", "operator", _plan_resume, _resume),
    "entity.purge": Act("Purge", "admin", _plan_purge, _purge, is_grave=True),
    "entity.abort": Act("Abort attempt", "operator", _plan_abort, _abort, is_grave=True),
    "command.cancel": Act("Cancel command", "operator", _plan_cancel, _cancel, is_grave=True),
    "command.promote": Act("Run delayed command now", "operator", _plan_promote, _promote),
    "many.pause": Act("Pause all", "admin", _plan_pause_many, _pause_many, is_grave=True),
    "many.drain": Act("Drain all", "admin", _plan_drain_many, _drain_many, is_grave=True),
    "many.resume": Act("Resume all", "admin", _plan_resume_many, _resume_many),
}
"""These acts, by their names."""
