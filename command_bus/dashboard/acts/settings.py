"""Acts on what holds for the whole fleet: limits, shares of tenants, and which events are recorded."""

from __future__ import annotations

from command_bus.dashboard.acts.act import Act, Input, Plan, changing
from command_bus.dashboard.forms import Fields
from command_bus.dashboard.visit import Visit
from command_bus.errors import InvalidSettings
from command_bus.messages.limits import Rate


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


SETTING_ACTS = {
    "limit.put": Act("Put limit", "admin", _plan_limit, _put_limit),
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
    "share.put": Act("Give weight", "admin", _plan_weight, _weigh),
    "events.watch": Act("Record events", "admin", _plan_watch, _watch),
    "events.unwatch": Act("Record events no more", "admin", _plan_unwatch, _unwatch),
}
"""These acts, by their names."""
