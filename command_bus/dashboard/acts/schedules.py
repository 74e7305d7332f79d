"""Acts on schedules."""

from __future__ import annotations

from starlette.exceptions import HTTPException

from command_bus.dashboard.acts.act import Act, Plan, Planning, changing, signed
from command_bus.dashboard.forms import Fields
from command_bus.dashboard.visit import Visit
from command_bus.dashboard.words import when


def _schedule(_: Visit, fields: Fields) -> tuple[str, str]:
    if not fields["name"]:
        raise HTTPException(404, "the form names no schedule")
    return fields["name"], f"schedule {fields['name']}"


def _planned(says: str, *, typed: bool = False) -> Planning:
    async def plan(visit: Visit, fields: Fields) -> Plan:
        info = await visit.bus.schedules.get(_schedule(visit, fields)[0])
        following = f" Its next tick would be {when(info.next_at_ms)} (UTC)." if info.next_at_ms else ""
        return Plan(
            f"schedule {info.name}",
            f"1 schedule ({info.command}, {info.times}): {says}{following}",
            visit.url("/schedules") if typed else visit.url("/schedules", name=info.name),
            {"name": info.name},
            typed=info.name if typed else "",
        )

    return plan


async def _trigger(visit: Visit, fields: Fields) -> str:
    name, label = _schedule(visit, fields)
    return f"{label} fires; the command is {await visit.bus.schedules.trigger(name)}"


async def _remove(visit: Visit, fields: Fields) -> str:
    name, label = _schedule(visit, fields)
    await visit.bus.schedules.remove(name)
    return f"{label} is removed"


SCHEDULE_ACTS = {
    "schedule.pause": Act(
        "Pause schedule",
        "operator",
        _planned("it fires no tick until it is resumed. Ticks of that time are left out."),
        changing(
            _schedule,
            lambda name, visit, fields: visit.bus.schedules.pause(name, signed(visit, fields)),
            " is paused",
            " was paused already",
        ),
    ),
    "schedule.resume": Act(
        "Resume schedule",
        "operator",
        _planned("it fires again, from its next tick on."),
        changing(_schedule, lambda name, visit, _: visit.bus.schedules.resume(name), " fires again", " was not paused"),
    ),
    "schedule.trigger": Act("Fire schedule now", "operator", _planned("it fires once now, beside its ticks."), _trigger),
    "schedule.remove": Act(
        "Remove schedule",
        "admin",
        _planned(
            "it is removed. What it has dispatched stays. A worker whose code declares it puts it again when it starts.",
            typed=True,
        ),
        _remove,
        is_grave=True,
    ),
}
"""These acts, by their names."""
