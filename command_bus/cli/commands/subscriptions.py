"""`command-bus subscriptions`: who gets the events that are published; list, show, pause, resume, remove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from command_bus.cli.completion import subscription_names
from command_bus.cli.connection import act_on_bus, on_bus
from command_bus.cli.options import Answer, Limit, PauseFor, PauseUntil, Target, Yes, command_group, outcome, with_target
from command_bus.cli.output import format_fields, format_time, format_time_and_age, listing, pluralize
from command_bus.cli.terminal import confirm_or_exit
from command_bus.cli.times import parse_end

if TYPE_CHECKING:
    from command_bus.admin.subscriptions import SubscriptionInfo

subscriptions = command_group("Subscriptions: list, show, pause, resume, remove.")
Name = Annotated[
    str, Argument(metavar="NAME", autocompletion=subscription_names, help="The subscription's name, as in `subscriptions list`.")
]


@subscriptions.command("list", short_help="List subscriptions, and what waits for them.")
@with_target
def list_subscriptions(*, limit: Limit = 100, target: Target) -> Answer:
    """List subscriptions by name: the events that they get, the deliveries that wait, and the number of workers that handle them.

    \b
    Exit codes: 0 shown, 2 wrong usage, 4 no server.
    """  # noqa: D301
    found = on_bus(target, lambda bus: bus.subscriptions.list())
    columns = ["subscription", "events", "waiting#", "entities#", "parked#", "oldest", "workers#", "paused"]
    return listing("subscriptions", found, limit, columns, _row, "there are no subscriptions")


@subscriptions.command("show", short_help="Show one subscription.")
@with_target
def show(name: Name, *, target: Target) -> Answer:
    """Show everything about one subscription. `entities TYPE@NAME` lists its lines, for entities of a type.

    \b
    Exit codes: 0 shown, 1 there is none of this name, 2 wrong usage, 4 no server.
    """  # noqa: D301
    info: SubscriptionInfo = on_bus(target, lambda bus: bus.subscriptions.get(name))
    return Answer(
        info,
        format_fields(
            [
                ("subscription", info.name),
                ("events", ", ".join(info.events)),
                ("delivery", info.delivery),
                ("waiting", f"{_waiting(info)}, {info.parked:,} of them parked"),
                ("oldest", None if info.oldest_ms is None else format_time_and_age(info.oldest_ms)),
                ("workers", ", ".join(info.workers) or "none"),
                ("paused", _paused(info) or None),
                ("put", f"{format_time(info.since_ms)}, revision {info.revision}"),
            ]
        ),
    )


@subscriptions.command("pause", short_help="Start no delivery until `resume`.")
@with_target
def pause(
    name: Name,
    *,
    reason: Annotated[str, Option("--reason", "-m", help="A note for `subscriptions list`.")] = "",
    until: PauseUntil = None,
    duration: PauseFor = None,
    target: Target,
) -> Answer:
    """Start no delivery of a subscription until `resume`: they wait, each in its line. What runs is not touched.

    \b
    Exit codes: 0 paused (or was), 1 there is none of this name, 2 wrong usage, 4 no server: repeat it.
    """  # noqa: D301
    end = parse_end(until, duration)
    changed = act_on_bus(
        target,
        "Pause subscription",
        f"subscription {name}",
        lambda bus: bus.subscriptions.pause(name, reason, until=end),
        why=reason,
    )
    return outcome(name, "paused" if changed else "was paused already")


@subscriptions.command("resume", short_help="Start deliveries again.")
@with_target
def resume(name: Name, *, target: Target) -> Answer:
    """Undo `pause`: what waits goes on, each line in its order.

    \b
    Exit codes: 0 resumed, 1 it was not paused, or there is none of this name, 2 wrong usage, 4 no server: repeat it.
    """  # noqa: D301
    changed = act_on_bus(target, "Resume subscription", f"subscription {name}", lambda bus: bus.subscriptions.resume(name))
    return outcome(name, "resumed" if changed else "was not paused", done=changed)


@subscriptions.command("remove", short_help="Remove a subscription, and what waits for it.")
@with_target
def remove(name: Name, *, yes: Yes = False, target: Target) -> Answer:
    """Remove a subscription, all that waits in its lines, and its dead letters. What runs ends.

    One that code declares comes back with the next worker that starts: pause it.

    \b
    Exit codes: 0 removed, 1 there is none of this name, or not confirmed, 2 wrong usage, or no terminal to ask on, 4 no server: repeat it.
    """  # noqa: D301
    found = {each.name: each for each in on_bus(target, lambda bus: bus.subscriptions.list())}
    if (info := found.get(name)) is not None:  # else it is not there, or was removed and something of it is left
        declared = " A worker whose code declares it puts it again when it starts." if info.workers else ""
        confirm_or_exit(f"Remove {name} with {_waiting(info)} and its dead letters?{declared} It cannot be undone.", yes=yes)
    removed = act_on_bus(target, "Remove subscription", f"subscription {name}", lambda bus: bus.subscriptions.remove(name))
    told = f"{name}: removed, with {pluralize(removed, 'delivery or dead letter', 'deliveries and dead letters')}"
    return Answer({"name": name, "result": "removed", "removed": removed}, told)


def _row(each: SubscriptionInfo) -> tuple[str, str, int, int, int, str, int, str]:
    oldest = format_time_and_age(each.oldest_ms)
    events = ", ".join(each.events)
    return each.name, events, each.waiting, each.entities, each.parked, oldest, len(each.workers), _paused(each)


def _waiting(info: SubscriptionInfo) -> str:
    deliveries = pluralize(info.waiting, "delivery", "deliveries")
    return f"{deliveries} for {pluralize(info.entities, 'entity', 'entities')}"


def _paused(info: SubscriptionInfo) -> str:
    """Return why it is paused; empty if it is not."""
    return "" if info.paused is None else info.paused or "without a reason"
