"""`command-bus commands`: list the commands that match, or cancel, promote or prioritize all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from command_bus.cli.completion import command_names, entity_types
from command_bus.cli.connection import act_on_bus, on_bus
from command_bus.cli.options import (
    Answer,
    DryRun,
    Limit,
    PriorityName,
    Reason,
    Target,
    Yes,
    command_group,
    with_options,
    with_target,
)
from command_bus.cli.output import format_table, format_time_and_age, to_json
from command_bus.cli.terminal import ExitCode, confirm_or_exit, echo, print_error, show_progress, usage_error, warn_if_unknown
from command_bus.cli.times import parse_duration, parse_moment

if TYPE_CHECKING:
    from command_bus.admin.selection import BulkStep, CommandFilters, SelectedCommand, Selection
    from command_bus.bus import CommandBus

commands = command_group("Commands that are not settled: list, cancel, promote or prioritize all that match.")


class _Filters:
    """Filters of the command line, and how many commands are looked at."""

    def __init__(self, filters: CommandFilters, scan: int) -> None:
        self._filters, self._scan = filters, scan

    def __str__(self) -> str:
        # Of the payload the names of fields alone: the audit log has no value of it, which may be encrypted, or masked where the log is shown.
        values = {**self._filters, "where": " ".join(self._filters.get("where") or ())}
        chosen = [f"{name}={value}" for name, value in values.items() if value not in (None, "")]
        return ", ".join(chosen) or "all commands"

    @property
    def are_none(self) -> bool:
        """True if all commands fit."""
        return not any(self._filters.values())

    def on(self, bus: CommandBus) -> Selection:
        """Return the commands of a bus that fit."""
        return bus.commands.select(scan=self._scan, **self._filters)

    def of_delayed(self) -> _Filters:
        """Return these filters for delayed commands alone.

        Raises:
            typer.Exit: They choose commands in another state.
        """
        if self._filters.get("state") not in (None, "delayed"):
            raise usage_error("only delayed commands can be promoted: leave out --state")
        return _Filters({**self._filters, "state": "delayed"}, self._scan)

    async def warn(self, bus: CommandBus) -> None:
        """Warn of names that nothing here knows."""
        await warn_if_unknown(bus, entity_type=self._filters.get("entity_type"), command=self._filters.get("name"))


def _filters(
    *,
    state: Annotated[
        str | None,
        Option("--state", help="waiting, delayed, limited, paused, running, retrying, snoozed or suspended."),
    ] = None,
    entity_type: Annotated[
        str | None, Option("--type", metavar="TYPE", help="Only of this entity type.", autocompletion=entity_types)
    ] = None,
    name: Annotated[str | None, Option("--command", help="Only of this wire name.", autocompletion=command_names)] = None,
    where: Annotated[
        list[str] | None,
        Option("--where", metavar="FIELD=VALUE", help="Only with this value in a field of the payload; one for each field."),
    ] = None,
    older_than: Annotated[
        str | None, Option("--older-than", metavar="TIME", help="Only accepted so long ago: 90s, 30m, 2h.")
    ] = None,
    scan: Annotated[int, Option("--scan", min=1, help="Look at about so many commands at most.")] = 1_000_000,
) -> _Filters:
    fields = dict[str, object]()
    for each in where or ():
        field, equals, value = each.partition("=")
        if not (field and equals) or field in fields:
            twice = " once for a field" if field in fields else ""
            raise usage_error(f"--where {each}: FIELD=VALUE, as carrier=acme{twice}")
        fields[field] = value
    chosen: Any = {
        "state": state,
        "entity_type": entity_type,
        "name": name,
        "where": fields or None,
        "older_than": None if older_than is None else parse_duration(older_than),
    }
    return _Filters(chosen, scan)


@commands.command("list", short_help="List the commands that match.")
@with_target
@with_options("filters", _filters)
def list_commands(*, filters: _Filters, limit: Limit = 50, target: Target) -> Answer:
    """List the commands that match all filters, in no order but that of each entity. Dead letters are listed by `dlq list`.

    \b
    Exit codes: 0 shown, 2 wrong usage, 4 no server.
    """  # noqa: D301

    async def read(bus: CommandBus) -> tuple[list[SelectedCommand], bool, int]:
        selection = filters.on(bus)
        found = await selection.first(limit)
        if not found:
            await filters.warn(bus)
        return found, not selection.complete, selection.unread

    found, more, unread = on_bus(target, read)
    lines = [
        format_table(["command", "entity", "state", "since or due", "id", "payload"], map(_row, found))
        if found
        else "no command matches"
    ]
    if more:
        lines.append(
            f"the first {len(found):,}; there may be more: --limit, --scan" if found else "not all were looked at: --scan"
        )
    if unread:
        lines.append(f"the payload of {unread:,} cannot be read here (encrypted, or damaged): they match no --where")
    return Answer({"commands": found, "complete": not more}, lines)


def _row(each: SelectedCommand) -> tuple[object, ...]:
    entity = f"{each.entity_type}:{each.entity_id}" if each.entity_type else None
    payload = None if each.payload is None else to_json(each.payload, indent=None)
    return each.name, entity, each.state, format_time_and_age(each.accepted_ms or each.due_ms), each.command_id, payload


@commands.command(short_help="Cancel the commands that match.")
@with_target
@with_options("filters", _filters)
def cancel(
    *,
    filters: _Filters,
    everything: Annotated[bool, Option("--all", help="Without a filter: cancel all commands.")] = False,
    running: Annotated[bool, Option("--running", help="End those that have started, too.")] = False,
    limit: Annotated[int | None, Option("--limit", min=1, help="Stop after so many that match.")] = None,
    reason: Reason = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    target: Target,
) -> Answer:
    """Cancel the commands that match all filters. Counts them first, and asks. Ctrl-C stops after the page; to ask again is harmless.

    \b
    Exit codes: 0 all that matched were cancelled, or counted, 1 some were not, or not confirmed, 2 wrong usage, or no terminal to ask on, 4 no
    server.
    """  # noqa: D301
    if filters.are_none != everything:
        raise usage_error("give filters, or --all")

    def act(selection: Selection, *, dry_run: bool) -> AsyncIterator[BulkStep]:
        return selection.cancel(reason, running=running, dry_run=dry_run, limit=limit)

    return _applied(target, filters, ("Cancel", "cancelled"), act, reason=reason, dry_run=dry_run, yes=yes)


@commands.command(short_help="Let the delayed commands that match take their place now.")
@with_target
@with_options("filters", _filters)
def promote(
    *,
    filters: _Filters,
    at: Annotated[str | None, Option("--at", metavar="TIME", help="Start at this time instead of now: 2026-12-01T09:00.")] = None,
    limit: Annotated[int | None, Option("--limit", min=1, help="Stop after so many that match.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    target: Target,
) -> Answer:
    """Let the delayed commands that match take their place in line now, or at another time. Each joins the end of its line.

    \b
    Exit codes: 0 all that matched have another time, or were counted, 1 some have not, or not confirmed, 2 wrong usage, or no terminal to ask
    on, 4 no server.
    """  # noqa: D301
    moment = None if at is None else parse_moment(at)

    def act(selection: Selection, *, dry_run: bool) -> AsyncIterator[BulkStep]:
        return selection.reschedule(delay=0.0 if moment is None else None, at=moment, dry_run=dry_run, limit=limit)

    return _applied(target, filters.of_delayed(), ("Promote", "promoted"), act, reason="", dry_run=dry_run, yes=yes)


@commands.command(short_help="Give what matches another priority.")
@with_target
@with_options("filters", _filters)
def prioritize(
    priority: Annotated[PriorityName, Argument(help="high, normal or low.")],
    *,
    filters: _Filters,
    everything: Annotated[bool, Option("--all", help="Without a filter: all commands.")] = False,
    limit: Annotated[int | None, Option("--limit", min=1, help="Stop after so many that match.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    target: Target,
) -> Answer:
    """Give the lines in which commands that match wait another priority, and delayed commands that match. Order in a line stays.

    All that waits in such a line now has this priority, also what does not match. What comes later counts by its own.

    \b
    Exit codes: 0 all that matched have this priority, or were counted, 1 some have not, or not confirmed, 2 wrong usage, or no terminal to ask
    on, 4 no server.
    """  # noqa: D301
    if filters.are_none != everything:
        raise usage_error("give filters, or --all")

    def act(selection: Selection, *, dry_run: bool) -> AsyncIterator[BulkStep]:
        return selection.prioritize(priority.value, dry_run=dry_run, limit=limit)

    words = ("Prioritize", f"of {priority} priority")
    return _applied(target, filters, words, act, reason="", dry_run=dry_run, yes=yes)


def _applied(
    target: Target,
    filters: _Filters,
    words: tuple[str, str],
    act: Callable[..., AsyncIterator[BulkStep]],
    *,
    reason: str,
    dry_run: bool,
    yes: bool,
) -> Answer:
    """Count what matches, ask, and act on it.

    Args:
        target: The bus.
        filters: They choose the commands.
        words: The act as a question begins, and as it is when it was done.
        act: Acts on a selection, or counts it.
        reason: Stands in the audit log.
        dry_run: Whether it is only counted.
        yes: Whether `--yes` was given.
    """
    from command_bus.admin.selection import BulkStep

    verb, done = words

    async def count(bus: CommandBus) -> BulkStep:
        step = BulkStep()
        async for step in act(filters.on(bus), dry_run=True):
            show_progress(f"{step.matched:,} match of {step.looked:,} looked at")
        show_progress()
        if not step.matched:
            await filters.warn(bus)
        return step

    found = on_bus(target, count)
    counted = f"{found.matched:,} of {found.looked:,} commands match{'' if found.complete else '; not all were looked at'}"
    if dry_run or not found.matched:
        return Answer(found, counted)
    print_error(counted)
    confirm_or_exit(f"{verb} them?", yes=yes)
    stopped = False

    async def change(bus: CommandBus) -> BulkStep:
        nonlocal stopped
        step = BulkStep()
        async for step, is_stopped in until_stopped(act(filters.on(bus), dry_run=False)):
            stopped = is_stopped
            show_progress(f"{step.done:,} {done} of {found.matched:,}")
        show_progress()
        return step

    step = act_on_bus(target, f"{verb} commands", str(filters), change, why=reason)
    if stopped:
        echo(f"stopped: {step.done:,} {done}")
        raise Exit(ExitCode.INTERRUPTED)
    left = f"; {step.left:,} were not: they have started or ended meanwhile" if step.left else ""
    return Answer(step, f"{step.done:,} {done}{left}", not step.left)


async def until_stopped(steps: AsyncIterator[BulkStep]) -> AsyncIterator[tuple[BulkStep, bool]]:
    """Yield the steps of an act, and whether Ctrl-C stopped it: what is under way then is done, and counted."""
    from asyncio import CancelledError, ensure_future, shield

    stopped = False
    while not stopped:
        following = ensure_future(anext(steps, None))
        try:
            await shield(following)
        except CancelledError:
            stopped = True
        if (step := await following) is None:
            return
        yield step, stopped
