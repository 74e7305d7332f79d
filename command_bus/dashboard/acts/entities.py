"""Acts on one entity, on a command of it, and on all entities of a type or of the bus."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import timedelta

from starlette.exceptions import HTTPException

from command_bus.admin.entities import Entities
from command_bus.admin.entity import EntityScope
from command_bus.dashboard.acts.act import Act, Input, Plan, Planning, changing, reason_of, signed
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


def _entity(visit: Visit, fields: Fields) -> tuple[EntityScope, str]:
    if not fields["type"] or not fields["id"]:
        raise HTTPException(404, "the form names no entity")
    return visit.bus.entity(fields["type"], fields["id"]), f"{fields['type']}:{fields['id']}"


def _many(visit: Visit, fields: Fields) -> tuple[Entities, str]:
    """Return the entities of the type that the fields name, or all."""
    kind = fields["type"]
    return (visit.bus.entities.of(kind), f"all {kind}") if kind else (visit.bus.entities, "everything")


def _command(_: Visit, fields: Fields) -> tuple[str, str]:
    if not fields["id"]:
        raise HTTPException(404, "the form names no command")
    return fields["id"], f"command {fields['id']}"


def _minutes(fields: Fields) -> float | None:
    text = fields["minutes"]
    if not text:
        return None
    if text not in dict(_FOR):
        raise InvalidSettings(f"minutes={text!r}: one of those on the page")
    return timedelta(minutes=int(text)).total_seconds()


def _length(fields: Fields) -> str:
    """Return for how long a pause was asked, for the audit log; empty if it was not, or for no end."""
    return f", {dict(_FOR)[fields['minutes']]}" if fields["minutes"] in dict(_FOR) and fields["minutes"] else ""


def _planned(says: str, *inputs: Input, typed: bool = False) -> Planning:
    """Return the planning of an act on one entity; `{depth}` in the sentence is how many commands it holds."""

    async def plan(visit: Visit, fields: Fields) -> Plan:
        entity, label = _entity(visit, fields)
        depth = await entity.depth()
        return Plan(
            label,
            says.format(depth=f"{depth:,} command{'' if depth == 1 else 's'}"),
            visit.url("/entity", type=fields["type"], id=fields["id"]),
            {"type": fields["type"], "id": fields["id"]},
            inputs,
            str(depth) if typed and depth else "",
            details=f"{depth:,} held{_length(fields)}",
        )

    return plan


def _planned_many(says: str, *inputs: Input) -> Planning:
    """Return the planning of an act on all entities, of a type or of the bus."""

    async def plan(visit: Visit, fields: Fields) -> Plan:
        _, label = _many(visit, fields)
        stats = await visit.bus.stats()
        whole = f"The bus holds {stats.depth:,} commands of {stats.entities:,} entities"
        return Plan(
            label,
            f"{says} {whole}{', of all types together' if fields['type'] else ''}.",
            visit.url("/"),
            {"type": fields["type"]},
            inputs,
            fields["type"] or visit.bus.settings.namespace,
            details=f"{stats.depth:,} held in all{_length(fields)}",
        )

    return plan


def _pause(to: EntityScope | Entities, visit: Visit, fields: Fields) -> Awaitable[bool]:
    return to.pause(signed(visit, fields), until=_minutes(fields))


def _drain(to: EntityScope | Entities, visit: Visit, fields: Fields) -> Awaitable[bool]:
    return to.drain(signed(visit, fields))


def _resume(to: EntityScope | Entities, _: Visit, __: Fields) -> Awaitable[bool]:
    return to.resume()


async def _purge(visit: Visit, fields: Fields) -> str:
    entity, label = _entity(visit, fields)
    return f"{await entity.purge():,} commands removed from {label}"


async def _abort(visit: Visit, fields: Fields) -> str:
    report = await _entity(visit, fields)[0].abort(reason_of(fields), by=visit.user.name, wait=5.0)
    again = {True: "; another attempt follows", False: "; it is a dead letter", None: ""}[report.again]
    where = f" on {report.host}, process {report.pid}" if report.host else ""
    return f"{report.entity}: {report.result.replace('_', ' ')}{where}{again}"


def _plan_of_command(visit: Visit, fields: Fields, says: str, nothing: str = "") -> Plan:
    command_id, label = _command(visit, fields)
    return Plan(label, says, visit.url("/command", id=command_id), {"id": command_id}, nothing=nothing)


async def _plan_cancel(visit: Visit, fields: Fields) -> Plan:
    command_id, _ = _command(visit, fields)
    status = await visit.bus.commands.status(command_id)
    says = f"1 command ({status.name or command_id}, {status.state}) is taken out of line, or ended if it runs. Its caller gets CommandCancelled."
    return _plan_of_command(visit, fields, says, _DECIDED.get(status.state, ""))


def _cancel(command_id: str, visit: Visit, fields: Fields) -> Awaitable[bool]:
    return visit.bus.commands.cancel(command_id, running=True, reason=reason_of(fields), wait=5.0)


async def _plan_promote(visit: Visit, fields: Fields) -> Plan:
    return _plan_of_command(visit, fields, "1 delayed command takes its place at the end of its line now.")


def _promote(command_id: str, visit: Visit, _: Fields) -> Awaitable[bool]:
    return visit.bus.commands.reschedule(command_id, delay=0)


ENTITY_ACTS = {
    "entity.pause": Act(
        "Pause",
        "operator",
        _planned("None of its {depth} starts any more until it is resumed. What runs now is not touched.", _UNTIL),
        changing(_entity, _pause, " is paused", " was paused already; its reason and end are the new ones"),
    ),
    "entity.drain": Act(
        "Drain",
        "operator",
        _planned("New commands for it are refused. The {depth} that it holds run to their end."),
        changing(_entity, _drain, " is drained", " was drained already"),
    ),
    "entity.resume": Act(
        "Resume",
        "operator",
        _planned("It goes on with the {depth} that it holds, unless its type or the bus is paused, or it is parked."),
        changing(_entity, _resume, " goes on", " was neither paused nor drained"),
    ),
    "entity.purge": Act(
        "Purge",
        "admin",
        _planned(
            "Of its {depth} all that wait are removed, delayed ones too. Their callers get CommandCancelled. What runs goes on. "
            "It cannot be undone.",
            typed=True,
        ),
        _purge,
        is_grave=True,
    ),
    "entity.abort": Act(
        "Abort attempt",
        "operator",
        _planned(
            "The attempt that runs is ended, and its command settled as interrupted: the next attempt follows, or it is a dead letter. "
            "It holds {depth}. Pause the entity before if the command is not to be started again."
        ),
        _abort,
        is_grave=True,
    ),
    "command.cancel": Act(
        "Cancel command",
        "operator",
        _plan_cancel,
        changing(_command, _cancel, " is cancelled", ": its end was decided before"),
        is_grave=True,
    ),
    "command.promote": Act(
        "Run delayed command now",
        "operator",
        _plan_promote,
        changing(_command, _promote, " is in line", " was not delayed any more"),
    ),
    "many.pause": Act(
        "Pause all",
        "admin",
        _planned_many("None of their commands starts any more until they are resumed. What runs is not touched.", _UNTIL),
        changing(_many, _pause, ": paused", ": was paused already"),
        is_grave=True,
    ),
    "many.drain": Act(
        "Drain all",
        "admin",
        _planned_many("New commands are refused. What was accepted runs to its end."),
        changing(_many, _drain, ": drained", ": was drained already"),
        is_grave=True,
    ),
    "many.resume": Act(
        "Resume all",
        "admin",
        _planned_many("They go on; what is paused more narrowly or widely stays so."),
        changing(_many, _resume, ": resumed", ": was neither paused nor drained"),
    ),
}
"""These acts, by their names."""
