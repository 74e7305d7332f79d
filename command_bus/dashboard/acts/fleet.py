"""Acts on entities, commands, schedules, subscriptions, and on what holds for the fleet: limits, shares of tenants, which events are recorded."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

from starlette.exceptions import HTTPException

from command_bus.admin.entities import Entities
from command_bus.admin.entity import EntityScope
from command_bus.dashboard.acts.act import Act, Input, Plan, Planning, changing, reason_of, signed
from command_bus.dashboard.visit import Fields, Visit
from command_bus.dashboard.words import when
from command_bus.errors import InvalidCommand, InvalidSettings
from command_bus.messages.limits import Rate
from command_bus.messages.policies import PRIORITIES, Priority
from command_bus.serialization.json_forms import read_json

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
_PRIORITY = Input("priority", "Priority", "choice", "high", tuple((each, each) for each in PRIORITIES))


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


_plan_of_priority = _planned(
    "All that waits in its line now, of {depth}, gets this priority. What runs goes on; order in the line stays, and what comes later "
    "has its own.",
    _PRIORITY,
)


async def _plan_priority(visit: Visit, fields: Fields) -> Plan:
    plan = await _plan_of_priority(visit, fields)
    return replace(plan, details=f"{plan.details}, {fields['priority'] or 'high'}")


def _prioritize(to: EntityScope, _: Visit, fields: Fields) -> Awaitable[bool]:
    return to.prioritize(cast("Priority", fields["priority"]))


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


async def _plan_signal(visit: Visit, fields: Fields) -> Plan:
    name = fields["name"]
    says = (
        f"The command gets the signal {name}, and goes on if it waits for that alone." if name else "The command gets a signal."
    )
    hint = 'JSON, as its handler waits for it: null, "yes", {"by": "ann"}'
    inputs = (Input("value", "Value", "json", "null", hint=hint),)
    plan = _plan_of_command(visit, fields, says)
    return replace(plan, keeps={**plan.keeps, "name": name}, inputs=inputs if name else (Input("name", "Signal"), *inputs))


async def _signal(visit: Visit, fields: Fields) -> str:
    command_id, label = _command(visit, fields)
    try:
        value: Any = read_json(fields["value"] or "null")
    except ValueError as error:
        raise InvalidCommand(f'the value is no JSON: {error}. Quote a text: "yes"') from None
    await visit.bus.commands.signal(command_id, fields["name"], value)
    return f"{label} has the signal {fields['name']}"


def _schedule(_: Visit, fields: Fields) -> tuple[str, str]:
    if not fields["name"]:
        raise HTTPException(404, "the form names no schedule")
    return fields["name"], f"schedule {fields['name']}"


def _planned_schedule(says: str, *, typed: bool = False) -> Planning:
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


def _subscription(_: Visit, fields: Fields) -> tuple[str, str]:
    if not fields["name"]:
        raise HTTPException(404, "the form names no subscription")
    return fields["name"], f"subscription {fields['name']}"


def _planned_subscription(says: str, *inputs: Input) -> Planning:
    async def plan(visit: Visit, fields: Fields) -> Plan:
        info = await visit.bus.subscriptions.get(_subscription(visit, fields)[0])
        held = f"{info.waiting:,} {'delivery' if info.waiting == 1 else 'deliveries'}"
        return Plan(
            f"subscription {info.name}",
            says.format(held=held),
            visit.url("/subscriptions"),
            {"name": info.name},
            inputs,
            details=f"{held} held{_length(fields)}",
        )

    return plan


async def _plan_limit(visit: Visit, fields: Fields) -> Plan:
    name, label = _limit(visit, fields)
    now = next((each for each in await visit.bus.limits.list() if each.name == name), None)
    rate, per, places = ("", "", "") if now is None else map(_text, (now.rate, now.per, now.concurrency))
    waiting = "It is new." if now is None else f"{now.waiting:,} entities wait for it now."
    before = "new" if now is None else f"before: {_allowed(rate, per, places)}"
    return Plan(
        label,
        f"1 limit holds for the whole fleet, at once. {waiting}",
        visit.url("/limits"),
        inputs=(
            Input("name", "Limit", value=name, hint="bus, type:…, entity:…, or the name of a named limit"),
            Input("rate", "Starts", "number", fields["rate"] or rate, hint="empty: any number"),
            Input("per", "in seconds", "number", fields["per"] or per or "1"),
            Input("concurrency", "At a time", "number", fields["concurrency"] or places, hint="empty: any number"),
        ),
        details=f"{_allowed(fields['rate'], fields['per'] or '1', fields['concurrency'])}; {before}",
    )


def _limit(_: Visit, fields: Fields) -> tuple[str, str]:
    return fields["name"], f"limit {fields['name'] or 'that you name'}"


def _allowed(rate: str, per: str, concurrency: str) -> str:
    """Return what a limit allows, for the audit log."""
    parts = [f"{rate.strip()} per {per.strip()} s"] if rate.strip() else []
    parts += [f"{concurrency.strip()} at a time"] if concurrency.strip() else []
    return ", ".join(parts) or "no number"


async def _put_limit(visit: Visit, fields: Fields) -> str:
    count, per, places = _number(fields, "rate"), _number(fields, "per") or 1.0, _number(fields, "concurrency")
    if count is None and places is None:
        raise InvalidSettings("give a rate, or how many at a time; to take a limit back, remove it")
    rate = None if count is None else Rate(count, per=per)
    changed = await visit.bus.limits.put(fields["name"], rate, concurrency=None if places is None else int(places))
    return f"limit {fields['name']} {'is put' if changed else 'was so already'}"


async def _plan_unlimit(visit: Visit, fields: Fields) -> Plan:
    says = "1 limit that was put by hand is taken back: what code declares holds again, or nothing."
    return Plan(f"limit {fields['name']}", says, visit.url("/limits"), {"name": fields["name"]})


async def _plan_weight(visit: Visit, fields: Fields) -> Plan:
    inputs = (
        Input("tenant", "Tenant", value=fields["tenant"]),
        Input("weight", "Weight", "number", fields["weight"] or "1", hint="0.001 to 1000; 1 is that of all others"),
    )
    return Plan(
        f"tenant {fields['tenant'] or 'that you name'}",
        "1 tenant gets another share of the starts, at once.",
        visit.url("/limits"),
        inputs=inputs,
        details=f"weight {fields['weight'].strip() or 1}",
    )


async def _weigh(visit: Visit, fields: Fields) -> str:
    weight = _number(fields, "weight")
    if weight is None:
        raise InvalidSettings("weight: a number from 0.001 to 1000")
    await visit.bus.fairness.put(fields["tenant"], weight=weight)
    return f"tenant {fields['tenant']} has the weight {weight:g}"


async def _plan_watch(visit: Visit, fields: Fields) -> Plan:
    says = "Events of 1 entity type are recorded from now on, about 10,000 per shard: 1.5 MB, and one more write in each step of a command."
    back = visit.url("/entity", type=fields["type"], id=fields["id"]) if fields["id"] else visit.url("/entities")
    return Plan(f"events of {fields['type']}", says, back, {"type": fields["type"], "id": fields["id"]})


async def _watch(visit: Visit, fields: Fields) -> str:
    await visit.bus.events.watch(fields["type"])
    return f"events of {fields['type']} are recorded"


async def _plan_unwatch(visit: Visit, fields: Fields) -> Plan:
    says = "Events of 1 entity type are recorded no more. Those that are there stay for a day."
    return Plan(f"events of {fields['type']}", says, visit.url("/entities"), {"type": fields["type"]})


async def _unwatch(visit: Visit, fields: Fields) -> str:
    await visit.bus.events.unwatch(fields["type"])
    return f"events of {fields['type']} are recorded no more"


def _number(fields: Fields, name: str) -> float | None:
    if not fields[name].strip():
        return None
    try:
        return float(fields[name])
    except ValueError:
        raise InvalidSettings(f"{name}={fields[name]!r}: a number") from None


def _text(number: float | None) -> str:
    return "" if not number else f"{number:g}"


FLEET_ACTS = {
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
    "entity.prioritize": Act(
        "Change priority",
        "operator",
        _plan_priority,
        changing(_entity, _prioritize, ": what waits has its new priority", ": nothing waits, nothing is changed"),
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
    "command.signal": Act("Send signal", "operator", _plan_signal, _signal),
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
    "schedule.pause": Act(
        "Pause schedule",
        "operator",
        _planned_schedule("it fires no tick until it is resumed. Ticks of that time are skipped."),
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
        _planned_schedule("it fires again, from its next tick on."),
        changing(_schedule, lambda name, visit, _: visit.bus.schedules.resume(name), " fires again", " was not paused"),
    ),
    "schedule.trigger": Act("Fire schedule now", "operator", _planned_schedule("it fires once now, beside its ticks."), _trigger),
    "schedule.remove": Act(
        "Remove schedule",
        "admin",
        _planned_schedule(
            "it is removed. What it has dispatched stays. A worker whose code declares it puts it again when it starts.",
            typed=True,
        ),
        _remove,
        is_grave=True,
    ),
    "subscription.pause": Act(
        "Pause subscription",
        "operator",
        _planned_subscription(
            "None of its {held} starts any more until it is resumed; what is published meanwhile waits.", _UNTIL
        ),
        changing(
            _subscription,
            lambda name, visit, fields: visit.bus.subscriptions.pause(name, signed(visit, fields), until=_minutes(fields)),
            " is paused",
            " was paused already; its reason and end are the new ones",
        ),
    ),
    "subscription.resume": Act(
        "Resume subscription",
        "operator",
        _planned_subscription("It goes on with the {held} that wait, each line in its order."),
        changing(_subscription, lambda name, visit, _: visit.bus.subscriptions.resume(name), " goes on", " was not paused"),
    ),
    "limit.put": Act("New limit", "admin", _plan_limit, _put_limit),
    "limit.remove": Act(
        "Take limit back",
        "admin",
        _plan_unlimit,
        changing(
            lambda _, fields: (fields["name"], f"limit {fields['name']}"),
            lambda name, visit, _: visit.bus.limits.remove(name),
            " is taken back",
            " was not put by hand",
        ),
    ),
    "share.put": Act("Set weight", "admin", _plan_weight, _weigh),
    "events.watch": Act("Record events", "admin", _plan_watch, _watch),
    "events.unwatch": Act("Stop recording events", "admin", _plan_unwatch, _unwatch),
}
"""These acts, by their names."""
