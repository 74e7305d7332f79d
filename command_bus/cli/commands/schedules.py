"""`command-bus schedules`: list, show, put, pause, resume, trigger, remove, export and import schedules."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from command_bus.cli.commands.send import (
    Fields,
    Headers,
    Name,
    announced_fields,
    fields_from,
    headers_from,
    message_from_class,
)
from command_bus.cli.completion import OnlyType, schedule_names
from command_bus.cli.connection import act_on_bus, on_bus
from command_bus.cli.options import Answer, Limit, Target, Yes, command_group, outcome, with_target
from command_bus.cli.output import format_fields, format_time, format_time_and_age, listing, pluralize
from command_bus.cli.terminal import confirm_or_exit, echo, usage_error
from command_bus.cli.times import parse_duration, parse_moment

if TYPE_CHECKING:
    from command_bus.bus import CommandBus
    from command_bus.messages.schedule_specs import Cron, Every
    from command_bus.scheduling.info import ScheduleInfo


@with_target
def export_schedules(
    *,
    stop: Annotated[bool, Option("--stop", help="Stop firing the schedules here, because they are being moved.")] = False,
    target: Target,
) -> None:
    """Write the schedules as lines of JSON, each with how far it has come, for `import`.

    With --stop, repeated, it writes the same. To take that back, import the lines here.

    \b
    Exit codes: 0 written, 1 one is of a later release, 2 wrong usage, 4 no server: repeat it.
    """  # noqa: D301

    async def work(bus: CommandBus) -> None:
        async for line in bus.schedules.export(stop=stop):
            echo(line)

    on_bus(target, work)


@with_target
def import_schedules(
    file: Annotated[typer.FileText, Argument(metavar="FILE", help="File that `export` wrote; - is standard input.")],
    *,
    replace: Annotated[bool, Option("--replace", help="Replace other schedules of the same names.")] = False,
    target: Target,
) -> Answer:
    """Put schedules that were exported. They go on where they were: ticks since then are due, by their rule `missed`.

    All lines are checked before the first is put. Repeated, it changes nothing. A namespace that was never opened is begun, with as many
    shards as COMMAND_BUS_SHARDS says.

    \b
    Exit codes: 0 all are put (or were), 1 another one of a name stays, 2 wrong usage or line, 4 no server: repeat it.
    """  # noqa: D301
    put, kept = on_bus(target, lambda bus: bus.schedules.import_(file.read().splitlines(), replace=replace), may_begin=True)
    lines = [f"{pluralize(len(put), 'schedule', 'schedules')} put", *(f"{name}: stays as it is here" for name in kept)]
    return Answer({"put": put, "kept": kept}, lines, not kept)


schedules = command_group("Schedules: list, show, next, put, pause, resume, trigger, remove, export, import.")
schedules.command("export", short_help="Write schedules as lines of JSON.")(export_schedules)
schedules.command("import", short_help="Put schedules that were exported.")(import_schedules)

ScheduleName = Annotated[
    str, Argument(metavar="NAME", autocompletion=schedule_names, help="The schedule's name, as in `schedules list`.")
]


class MissedTicks(StrEnum):
    """The treatment of ticks that no worker fired in time."""

    ONE = "one"
    ALL = "all"
    SKIP = "skip"


class Overlap(StrEnum):
    """The treatment of a tick whose predecessor is not settled."""

    QUEUE = "queue"
    SKIP = "skip"
    REPLACE = "replace"
    CANCEL = "cancel"


@schedules.command("list", short_help="List schedules, the next to fire first.")
@with_target
def list_schedules(
    entity_type: OnlyType = None,
    *,
    limit: Limit = 100,
    target: Target,
) -> Answer:
    """List the schedules of this namespace, the next to fire first. All are read, whatever the limit.

    \b
    Exit codes: 0 shown, 2 wrong usage, 4 no server.
    """  # noqa: D301

    async def read(bus: CommandBus) -> list[ScheduleInfo]:
        return [each async for each in bus.schedules.list(entity_type=entity_type)]

    found = sorted(on_bus(target, read), key=lambda each: (each.next_at_ms is None, each.next_at_ms, each.name))
    columns = ["name", "state", "times", "command", "next", "fired#", "late#"]
    return listing("schedules", found, limit, columns, _row, "there are no schedules")


@schedules.command("show", short_help="Show one schedule.")
@with_target
def show(name: ScheduleName, *, target: Target) -> Answer:
    """Show everything about one schedule.

    \b
    Exit codes: 0 shown, 1 there is none of this name, 2 wrong usage, 4 no server.
    """  # noqa: D301
    info: ScheduleInfo = on_bus(target, lambda bus: bus.schedules.get(name))
    runs = f" of {info.max_runs:,}" if info.max_runs is not None else ""
    outcome = f": {info.last_outcome}" if info.last_outcome else ""
    paused = f"since {format_time_and_age(info.paused_ms)}{': ' if info.reason else ''}{info.reason}"
    hand = ", changed by hand" if info.by_hand else ""
    return Answer(
        info,
        format_fields(
            [
                ("schedule", info.name),
                ("state", info.state),
                ("times", info.times),
                ("command", _command(info)),
                ("next", format_time_and_age(info.next_at_ms)),
                ("last", None if info.last_id is None else f"{info.last_id}{outcome}"),
                ("fired", f"{info.fired:,}, {info.late:,} late; {info.runs:,}{runs} by plan"),
                ("left out", f"{info.left_out:,} missed, {info.skipped:,} by overlap"),
                ("rules", f"missed {info.missed}, overlap {info.overlap}, jitter {info.jitter:g} s"),
                ("start", None if info.start_ms is None else format_time(info.start_ms)),
                ("end", None if info.end_ms is None else format_time(info.end_ms)),
                ("paused", paused if info.paused else None),
                ("declared", f"revision {info.revision}{hand}" if info.revision else None),
            ]
        ),
    )


@schedules.command("next", short_help="Show the next ticks of a schedule.")
@with_target
def next_ticks(
    name: ScheduleName,
    *,
    count: Annotated[int, Option("--count", "-c", min=1, max=1000, help="How many ticks to show.")] = 5,
    target: Target,
) -> Answer:
    """Show when a schedule fires next, in UTC. Also of a paused one: when it would.

    \b
    Exit codes: 0 shown, 1 there is none of this name, 2 wrong usage, 4 no server.
    """  # noqa: D301
    found = on_bus(target, lambda bus: bus.schedules.next(name, count))
    data = {"name": name, "next": [each.isoformat().replace("+00:00", "Z") for each in found]}
    return Answer(data, [each.strftime("%Y-%m-%d %H:%M:%SZ %a") for each in found] or f"{name}: no tick is to come")


@schedules.command("put", short_help="Put a schedule, or change one.")
@with_target
def put(
    name: Annotated[str, Argument(metavar="NAME", help="The schedule's name, unique in the namespace.")],
    command: Name,
    fields: Fields = None,
    *,
    cron: Annotated[str | None, Option("--cron", metavar="PATTERN", help='Cron pattern: "0 2 * * MON-FRI".')] = None,
    tz: Annotated[str, Option("--tz", help="Time zone of the pattern.")] = "UTC",
    every: Annotated[str | None, Option("--every", metavar="TIME", help="Time between two ticks: 30s, 5m, 2h.")] = None,
    missed: Annotated[MissedTicks, Option(help="What to do with ticks that no worker fired in time.")] = MissedTicks.ONE,
    overlap: Annotated[Overlap, Option(help="What to do with a tick whose predecessor is not settled.")] = Overlap.QUEUE,
    jitter: Annotated[float, Option(min=0.0, help="Spread firings over this many seconds.")] = 0.0,
    start: Annotated[str | None, Option(metavar="TIME", help="Fire no tick before this time: 2026-12-01T09:00.")] = None,
    end: Annotated[str | None, Option(metavar="TIME", help="Fire no tick after this time.")] = None,
    max_runs: Annotated[int | None, Option(min=1, help="How many ticks fire in all.")] = None,
    immediately: Annotated[bool, Option("--immediately", help="Fire once when the schedule is first put.")] = False,
    header: Headers = None,
    target: Target,
) -> Answer:
    """Put a schedule: each tick dispatches the command. Putting the same again changes nothing.

    \b
    Exit codes: 0 put (or was), 1 refused, 2 wrong usage or fields, 4 no server: repeat it.
    """  # noqa: D301  # fmt: skip
    values, headers, spec = fields_from(fields), headers_from(header), _times(cron, tz, every)
    options: Any = {
        "missed": missed.value,
        "overlap": overlap.value,
        "jitter": jitter,
        "start": None if start is None else parse_moment(start),
        "end": None if end is None else parse_moment(end),
        "max_runs": max_runs,
        "immediately": immediately,
        "headers": headers,
    }

    async def act(bus: CommandBus) -> ScheduleInfo:
        message = message_from_class(bus, command, values)
        if message is not None:
            return await bus.schedules.put(name, message, spec, **options)
        raw = await announced_fields(bus, command, values)
        if raw.others:
            raise usage_error(f"{command} is of several entities: let a handler of one entity dispatch it")
        return await bus.schedules.put_raw(
            name, raw.entity_type, raw.entity_id, command, raw.payload, spec, version=raw.version, **options
        )

    info: ScheduleInfo = act_on_bus(target, "Put schedule", f"schedule {name}", act)
    return Answer(info, f"{name}: {info.times}, next {format_time_and_age(info.next_at_ms)}")


@schedules.command("pause", short_help="Fire no tick until `resume`.")
@with_target
def pause(
    name: ScheduleName,
    *,
    reason: Annotated[str, Option("--reason", "-m", help="A note for `schedules show`.")] = "",
    target: Target,
) -> Answer:
    """Fire no tick of a schedule until `resume`; those of that time are left out. What was dispatched is not touched.

    \b
    Exit codes: 0 paused (or was), 1 there is none of this name, 2 wrong usage, 4 no server: repeat it.
    """  # noqa: D301
    changed = act_on_bus(target, "Pause schedule", f"schedule {name}", lambda bus: bus.schedules.pause(name, reason), why=reason)
    return outcome(name, "paused" if changed else "was paused already")


@schedules.command("resume", short_help="Fire again, from the next tick on.")
@with_target
def resume(name: ScheduleName, *, target: Target) -> Answer:
    """Let a paused schedule fire again, from its next tick on.

    \b
    Exit codes: 0 resumed, 1 it was not paused, or there is none of this name, 2 wrong usage, 4 no server: repeat it.
    """  # noqa: D301
    changed = act_on_bus(target, "Resume schedule", f"schedule {name}", lambda bus: bus.schedules.resume(name))
    return outcome(name, "resumed" if changed else "was not paused", done=changed)


@schedules.command("trigger", short_help="Fire once now.")
@with_target
def trigger(name: ScheduleName, *, target: Target) -> Answer:
    """Fire a schedule once now, beside its ticks; also if it is paused. A worker does it; the command id is printed.

    \b
    Exit codes: 0 asked for, 1 there is none of this name, 2 wrong usage, 4 no server.
    """  # noqa: D301
    command_id = act_on_bus(target, "Fire schedule now", f"schedule {name}", lambda bus: bus.schedules.trigger(name))
    return Answer({"name": name, "command_id": command_id}, command_id)


@schedules.command("remove", short_help="Remove a schedule.")
@with_target
def remove(name: ScheduleName, *, yes: Yes = False, target: Target) -> Answer:
    """Remove a schedule. What it has dispatched stays. One that code declares comes back with the next worker that starts: pause it.

    \b
    Exit codes: 0 removed, 1 there is none of this name, or not confirmed, 2 wrong usage, or no terminal to ask on, 4 no server.
    """  # noqa: D301
    info: ScheduleInfo = on_bus(target, lambda bus: bus.schedules.get(name))
    declared = " Code declares it: it comes back with the next worker that starts." if info.revision else ""
    confirm_or_exit(f"Remove {name} ({info.times}, {_command(info)})?{declared}", yes=yes)
    act_on_bus(target, "Remove schedule", f"schedule {name}", lambda bus: bus.schedules.remove(name))
    return outcome(name, "removed")


def _row(each: ScheduleInfo) -> tuple[str, ...]:
    next_time = format_time_and_age(each.next_at_ms)
    return each.name, each.state, each.times, _command(each), next_time, f"{each.fired:,}", f"{each.late:,}"


def _command(info: ScheduleInfo) -> str:
    return info.command if info.entity_type is None else f"{info.command} {info.entity_type}:{info.entity_id}"


def _times(cron: str | None, tz: str, every: str | None) -> Cron | Every:
    """Return the times that options name.

    Raises:
        typer.Exit: Neither or both were given, or they are wrong.
    """
    from command_bus.errors import CommandBusError
    from command_bus.messages import schedule_specs as specs

    if (cron is None) == (every is None):
        raise usage_error('give --cron "0 2 * * MON-FRI" or --every 30s')
    try:
        return specs.cron(cron, tz) if cron is not None else specs.every(parse_duration(every or ""))
    except CommandBusError as error:
        raise usage_error(error.message) from None
