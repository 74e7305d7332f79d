"""`command-bus limits`: how often, and how many at a time, commands may start."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from command_bus.cli.connection import act_on_bus, on_bus
from command_bus.cli.options import Answer, Target, command_group, outcome, with_target
from command_bus.cli.output import table
from command_bus.cli.terminal import failure, usage_error
from command_bus.clock import format_duration

if TYPE_CHECKING:
    from command_bus.admin.limits import LimitInfo
    from command_bus.bus import CommandBus
    from command_bus.messages.limits import Rate

limits = command_group("Limits of starts: list, put, remove, release.")
_RATE = re.compile(r"([0-9.]+)(?:/([0-9.]*)(s|m|h)?)?")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}

Name = Annotated[str, Argument(metavar="LIMIT", help="bus, type:TYPE, entity:TYPE, or the name of a named limit.")]


@limits.command("list", short_help="List limits, or the buckets of one.")
@with_target
def list_limits(
    name: Annotated[str | None, Argument(metavar="LIMIT", help="Show the used buckets of this limit.")] = None,
    *,
    target: Target,
) -> Answer:
    """List what limits allow, what of it is taken, and how many entities wait.

    \b
    Exit codes: 0 shown, 1 there is no such limit, 2 wrong usage, 4 no server.
    """  # noqa: D301
    found = on_bus(target, lambda bus: bus.limits.list(name))
    heads = ["limit", "allows", "said by", "running#", "free#", "waiting#", "next start"]
    return Answer({"limits": found}, table(heads, map(_row, found)))


@limits.command("put", short_help="Set a limit for the whole fleet, at once.")
@with_target
def put_limit(
    name: Name,
    *,
    rate: Annotated[str | None, Option(metavar="N/TIME", help="How many starts in a time: 50/s, 1000/m, 5/10s.")] = None,
    burst: Annotated[int | None, Option(min=1, help="How many starts at once after a pause.")] = None,
    concurrency: Annotated[int | None, Option(min=1, help="How many entities run at a time.")] = None,
    target: Target,
) -> Answer:
    """Set what a limit allows. It stands above what code declares, until `limits remove`.

    \b
    Exit codes: 0 set (or was so), 2 wrong usage, 4 no server: repeat it.
    """  # noqa: D301
    given = None if rate is None else _rate(rate, burst)
    if given is None and (concurrency is None or burst is not None):
        raise usage_error("give --rate, --concurrency or both; --burst belongs to a rate. `limits remove` takes a limit back")

    async def put(bus: CommandBus) -> tuple[bool, LimitInfo]:
        changed = await bus.limits.put(name, given, concurrency=concurrency)
        return changed, next(each for each in await bus.limits.list() if each.name == rule_name(name).removeprefix("name:"))

    from command_bus.messages.limits import rule_name

    changed, found = act_on_bus(target, "New limit", f"limit {name}", put)
    result = "set" if changed else "was so already"
    if found.declared and None in (found.rate, found.concurrency):
        result += f"; of what code declares ({found.declared}), what was not given does not hold"
    return outcome(name, result)


@limits.command("remove", short_help="Take back what was put.")
@with_target
def remove_limit(name: Name, *, target: Target) -> Answer:
    """Take back what `limits put` set. What code declares holds again, or nothing.

    \b
    Exit codes: 0 taken back, 1 nothing was put, 2 wrong usage, 4 no server: repeat it.
    """  # noqa: D301
    if not act_on_bus(target, "Remove limit", f"limit {name}", lambda bus: bus.limits.remove(name)):
        raise failure(f"{name}: nothing was put; what code declares is changed there, or put something above it")
    return outcome(name, "taken back")


@limits.command("release", short_help="End the hold that a handler set.")
@with_target
def release_limit(
    name: Name,
    *,
    key: Annotated[str | None, Option(metavar="KEY", help="Key of a named limit that counts by key.")] = None,
    target: Target,
) -> Answer:
    """End the hold that a handler set by Snooze(hold=…), after a 429 say. What waits starts as the limit allows.

    \b
    Exit codes: 0 nothing is held, 2 wrong usage, 4 no server: repeat it.
    """  # noqa: D301
    act_on_bus(target, "Release limit", f"limit {name}", lambda bus: bus.limits.release(name, key=key))
    return outcome(name, "not held")


def _rate(text: str, burst: int | None) -> Rate:
    from command_bus.messages.limits import Rate

    found = _RATE.fullmatch(text.strip())
    try:
        if found is None:
            raise ValueError(text)
        per = (float(found[2]) if found[2] else 1.0) * _SECONDS[found[3] or "s"]
        return Rate(float(found[1]), per=per, burst=burst)
    except ValueError as error:
        raise usage_error(f"--rate {text}: {error if found else 'starts and a time, as in 50/s, 1000/m or 5/10s'}") from None


def _row(each: LimitInfo) -> tuple[str, str, str, int, str, int, str]:
    name = each.name if each.key is None else f"{each.name}[{each.key}]"
    allows = [] if each.rate is None else [f"{each.rate:g} per {each.per:g} s, burst {each.burst}"]
    allows += [] if each.concurrency is None else [f"{each.concurrency} at a time"]
    said = each.source + (f" (code: {each.declared})" if each.declared else "")
    free = "" if each.tokens is None else f"{each.tokens:,.0f}"
    soon = (
        f"held for {format_duration(each.held_for)}"
        if each.held_for
        else ""
        if not each.waiting
        else "when one ends"
        if each.free_in is None
        else f"in {format_duration(each.free_in)}"
    )
    return name, ", ".join(allows), said, each.used, free, each.waiting, soon
