"""Acts on schedules."""

from __future__ import annotations

from starlette.exceptions import HTTPException

from command_bus.dashboard.acts.act import Act, Plan, reason_of
from command_bus.dashboard.forms import Fields
from command_bus.dashboard.visit import Visit
from command_bus.dashboard.words import when


def _name(fields: Fields) -> str:
    if not fields["name"]:
        raise HTTPException(404, "the form names no schedule")
    return fields["name"]


async def _plan(visit: Visit, fields: Fields, says: str, *, typed: bool = False) -> Plan:
    info = await visit.bus.schedules.get(_name(fields))
    following = f" Its next tick would be {when(info.next_at_ms)} (UTC)." if info.next_at_ms else ""
    return Plan(
        f"schedule {info.name}",
        f"1 schedule ({info.command}, {info.times}): {says}{following}",
        visit.url("/schedules") if typed else visit.url("/schedules", name=info.name),
        {"name": info.name},
        typed=info.name if typed else "",
    )


async def _plan_pause(visit: Visit, fields: Fields) -> Plan:
    return await _plan(visit, fields, "it fires no tick until it is resumed. Ticks of that time are left out.")


async def _pause(visit: Visit, fields: Fields) -> str:
    changed = await visit.bus.schedules.pause(_name(fields), f"{reason_of(fields)} ({visit.user.name})")
    return f"schedule {fields['name']} is paused" if changed else f"schedule {fields['name']} was paused already"


async def _plan_resume(visit: Visit, fields: Fields) -> Plan:
    return await _plan(visit, fields, "it fires again, from its next tick on.")


async def _resume(visit: Visit, fields: Fields) -> str:
    changed = await visit.bus.schedules.resume(_name(fields))
    return f"schedule {fields['name']} fires again" if changed else f"schedule {fields['name']} was not paused"


async def _plan_trigger(visit: Visit, fields: Fields) -> Plan:
    return await _plan(visit, fields, "it fires once now, beside its ticks.")


async def _trigger(visit: Visit, fields: Fields) -> str:
    return f"schedule {fields['name']} fires; the command is {await visit.bus.schedules.trigger(_name(fields))}"


async def _plan_remove(visit: Visit, fields: Fields) -> Plan:
    says = "it is removed. What it has dispatched stays. A worker whose code declares it puts it again when it starts."
    return await _plan(visit, fields, says, typed=True)


async def _remove(visit: Visit, fields: Fields) -> str:
    await visit.bus.schedules.remove(_name(fields))
    return f"schedule {fields['name']} is removed"


SCHEDULE_ACTS = {
    "schedule.pause": Act("Pause schedule", "operator", _plan_pause, _pause),
    "schedule.resume": Act("Resume schedule", "operator", _plan_resume, _resume),
    "schedule.trigger": Act("Fire schedule now", "operator", _plan_trigger, _trigger),
    "schedule.remove": Act("Remove schedule", "admin", _plan_remove, _remove, is_grave=True),
}
"""These acts, by their names."""
