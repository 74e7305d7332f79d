"""`command-bus history`: how commands ended that have a history."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from command_bus.admin.json_data import to_jsonable
from command_bus.cli.completion import command_names, entity_types
from command_bus.cli.connection import on_bus
from command_bus.cli.options import Answer, Limit, Target, command_group, with_target
from command_bus.cli.output import format_table, format_time, format_time_and_age
from command_bus.cli.terminal import ExitCode, format_value, print_error, usage_error
from command_bus.cli.times import parse_time

if TYPE_CHECKING:
    from command_bus.admin.history import HistoryEntry, HistoryPage
    from command_bus.serialization.story import StoryStep

history = command_group("Ends of commands with a history: show, search.")


class EndStatus(StrEnum):
    """The ends of a command."""

    COMPLETED = "completed"
    REJECTED = "rejected"
    EXPIRED = "expired"
    DEAD_LETTERED = "dead_lettered"
    PARKED = "parked"
    CANCELLED = "cancelled"
    DISCARDED = "discarded"
    FOLDED = "folded"
    SUPERSEDED = "superseded"


@history.command("show")
@with_target
def show(
    command_id: Annotated[str, Argument(metavar="ID", help="Command id.")],
    *,
    target: Target,
) -> Answer:
    """Show how a command ended.

    \b
    Exit codes: 0 shown, 2 wrong usage, 3 no end of it is kept, 4 no server.
    """  # noqa: D301
    entry = on_bus(target, lambda bus: bus.history.get(command_id))
    if entry is None:
        print_error(f"no end of {command_id} is kept: it is not settled, has no history, or its time is over")
        raise Exit(ExitCode.UNKNOWN)
    return Answer(_data(entry), (f"{name:<10}{value}" for name, value in _facts(entry)))


@history.command("search")
@with_target
def search(
    *,
    command: Annotated[
        str | None,
        Option("--command", autocompletion=command_names, help="Only commands with this name."),
    ] = None,
    entity_type: Annotated[
        str | None,
        Option("--type", autocompletion=entity_types, help="Only commands of this entity type; TYPE:ID is one entity."),
    ] = None,
    status: Annotated[
        EndStatus | None,
        Option(metavar="STATUS", help=f"Only commands that ended so: {', '.join(EndStatus)}."),
    ] = None,
    since: Annotated[
        str | None,
        Option(help="Only commands that ended since: 90s, 30m, 2h, 7d ago, or a time such as 2026-11-21T10:00."),
    ] = None,
    until: Annotated[str | None, Option(help="Only commands that ended before; a time as for --since.")] = None,
    limit: Limit = 50,
    scan: Annotated[int, Option(min=1, help="How many entries to look at.")] = 10_000,
    cursor: Annotated[str | None, Option(metavar="CURSOR", help="Continue an earlier search, which printed the cursor.")] = None,
    target: Target,
) -> Answer:
    """List the ends that match, newest first. There is no index: entries are looked at one after another.

    \b
    Exit codes: 0 shown, 2 wrong usage, 4 no server.
    """  # noqa: D301
    kind, _, entity_id = (entity_type or "").partition(":")
    if entity_id and not kind:
        raise usage_error("--type is TYPE or TYPE:ID")
    filters: dict[str, Any] = {"since": parse_time(since), "until": parse_time(until), "name": command, "status": status}
    filters |= {"entity": (kind, entity_id)} if entity_id else {"entity_type": kind or None}
    page = on_bus(target, lambda bus: bus.history.search(limit=limit, scan=scan, cursor=cursor, **filters))
    data = {"entries": [_data(each) for each in page.entries], "cut": page.cut, "cursor": page.cursor}
    return Answer(data, _page_lines(page))


def _page_lines(page: HistoryPage) -> Iterator[str]:
    if page.entries:
        yield format_table(["ended", "status", "command", "entity", "id", "error"], map(_row, page.entries))
    elif not page.cut:
        yield "nothing that matches is kept"
    if page.cut:
        yield f"looked at all that --scan allows; older ones: --cursor {page.cursor}"
    elif page.cursor is not None:
        yield f"there may be older ones: --cursor {page.cursor}"


def _entity(entry: HistoryEntry) -> str:
    entities = ((entry.entity_type, entry.entity_id), *entry.others)
    return ", ".join(f"{of}:{each}" for of, each in entities) if entry.entity_type else "-"


def _row(entry: HistoryEntry) -> tuple[str, ...]:
    error = "" if entry.error is None else str(entry.error)
    return format_time_and_age(entry.settled_ms), entry.status, entry.name, _entity(entry), entry.command_id, error


def _facts(entry: HistoryEntry) -> list[tuple[str, Any]]:
    """Return what is known of an end, line by line."""
    times = (("accepted", entry.accepted_ms), ("started", entry.started_ms), ("ended", entry.settled_ms))
    facts: list[tuple[str, Any]] = [("command", entry.name), ("entity", _entity(entry)), ("status", entry.status)]
    facts += [(name, format_time_and_age(ms)) for name, ms in times if ms]
    facts += [("attempts", entry.attempts), ("worker", entry.worker or "-")]
    facts.append(("reply", format_value(entry.reply)) if entry.error is None else ("error", entry.error))
    facts += [] if entry.payload is None else [("payload", format_value(entry.payload))]
    return [*facts, *((step.kind, _told(step)) for step in entry.steps or ())]


def _told(step: StoryStep) -> str:
    """Return what is known of a step, in a line."""
    until = f"until {format_time(step.until_ms)}" if step.until_ms else ""
    value = "encrypted" if step.encrypted else "(too large to be kept)" if step.cut else step.error
    if value is None:
        value = until if step.result is None and until else "not waited for" if step.is_open else format_value(step.result)
    return f"{step.name}  {value}"


def _data(entry: HistoryEntry) -> dict[str, Any]:
    """Return an end for JSON; its error as code and message."""
    data: dict[str, Any] = to_jsonable(replace(entry, error=None))
    if entry.error is not None:
        data["error"] = {"code": entry.error.code, "message": entry.error.message}
    return data
