"""`command-bus events`: record what happens to commands, per entity type and in running processes, and show it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from command_bus.admin.json_data import utc_time
from command_bus.cli.completion import entity_types
from command_bus.cli.connection import on_bus, run_until_interrupted
from command_bus.cli.options import Answer, Target, command_group, entity_type_named, with_options, with_target
from command_bus.cli.output import format_time, to_json
from command_bus.cli.terminal import echo, undo_hint, warn_if_unknown
from command_bus.clock import format_duration

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from command_bus.admin.events import CommandEvent
    from command_bus.bus import CommandBus

events = command_group("Events of commands: watch, unwatch, list, follow.")

EventKind = StrEnum(
    "EventKind",
    "accepted started completed rejected expired retried snoozed interrupted handed_back limited suspended dead_lettered parked replayed discarded"
    " cancelled superseded"
    " paused draining resumed"
    " fired late missed skipped refused put removed triggered exported imported",
)

Types = Annotated[
    list[str] | None,
    Argument(
        metavar="TYPE",
        autocompletion=entity_types,
        help="Entity types; ~ is for commands without an entity, @schedules for schedules. By default all.",
    ),
]


class _EventFilter:
    """The events to show: of these types, this entity and these kinds; None is any."""

    def __init__(self, types: list[str] | None, entity_id: str | None, kinds: list[EventKind] | None) -> None:
        if types and len(types) == 1 and entity_id is None and ":" in types[0]:
            name, _, entity_id = types[0].partition(":")
            types = [name]
        self.types = types
        self._entity_id = entity_id
        self._kinds: Any = {kind.value for kind in kinds or ()}

    async def read(self, bus: CommandBus, *, after: str | None, follow: bool) -> AsyncIterator[CommandEvent]:
        """Read the events, as `bus.events` does."""
        async for event in bus.events(*_entity_types(self.types), kinds=self._kinds, after=after, follow=follow):
            if self._entity_id is None or (event.schedule or event.entity_id) in (self._entity_id, None):
                yield event


def _chosen_events(
    types: Types = None,
    *,
    entity_id: Annotated[
        str | None,
        Option("--id", help="Only of the entity (or schedule) with this id (with TYPE, or write TYPE:ID)."),
    ] = None,
    kind: Annotated[
        list[EventKind] | None,
        Option("--kind", metavar="KIND", help="Only this kind: accepted, started, retried …; may be repeated."),
    ] = None,
) -> _EventFilter:
    return _EventFilter(types, entity_id, kind)


@events.command(short_help="Record events of entity types from now on.")
@with_target
def watch(
    types: Types = None,
    *,
    kept: Annotated[int, Option(min=1, help="About how many events each shard keeps, of all types together.")] = 10_000,
    target: Target,
) -> None:
    """Record what happens to commands of these types, in all processes, from now on.

    The server then has about twice as much to do for each of them.

    \b
    Exit codes: 0 done, 1 no entity type, 2 wrong usage, 4 no server.
    """  # noqa: D301

    async def switch_on(bus: CommandBus) -> None:
        await bus.events.watch(*_entity_types(types), kept=kept)
        for each in types or ():
            await warn_if_unknown(bus, entity_type=each, done=undo_hint("watched", target.command("events", "unwatch", each)))
        echo(_watched_line(await bus.events.watched()))

    on_bus(target, switch_on)


@events.command(short_help="Stop recording events.")
@with_target
def unwatch(types: Types = None, *, target: Target) -> None:
    """Undo `watch` for these types, by default for all. Once no type is watched, recorded events are kept for a day.

    \b
    Exit codes: 0 done, 1 no entity type, 2 wrong usage, 4 no server.
    """  # noqa: D301

    async def switch_off(bus: CommandBus) -> None:
        await bus.events.unwatch(*_entity_types(types))
        echo(_watched_line(await bus.events.watched()))

    on_bus(target, switch_off)


@events.command("list", short_help="List recorded events.")
@with_target
@with_options("chosen", _chosen_events)
def list_events(
    chosen: _EventFilter,
    *,
    last: Annotated[int, Option(min=1, help="How many of the newest to show.")] = 50,
    target: Target,
) -> Answer:
    """List the newest recorded events, oldest first.

    \b
    Exit codes: 0 shown, 1 no entity type, 2 wrong usage, 4 no server.
    """  # noqa: D301
    from collections import deque

    async def read(bus: CommandBus) -> list[CommandEvent]:
        found: deque[CommandEvent] = deque(maxlen=last)
        async for event in chosen.read(bus, after="", follow=False):
            found.append(event)
        await _warn_if_unwatched(bus, chosen.types)
        return sorted(found, key=lambda event: event.at_ms)

    found = on_bus(target, read)
    return Answer({"events": found}, map(_event_line, found))


@events.command(short_help="Show events as they happen.")
@with_target
@with_options("chosen", _chosen_events)
def follow(
    chosen: _EventFilter,
    *,
    target: Target,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Show events as they happen, until Ctrl-C.

    \b
    Exit codes: 0 shown until Ctrl-C, 1 no entity type, 2 wrong usage, 4 no server.
    """  # noqa: D301

    async def show(bus: CommandBus) -> None:
        await _warn_if_unwatched(bus, chosen.types)
        async for event in chosen.read(bus, after=None, follow=True):
            echo(to_json(event, indent=None) if as_json else _event_line(event))

    run_until_interrupted(target, show)


async def _warn_if_unwatched(bus: CommandBus, types: list[str] | None) -> None:
    watched = await bus.events.watched()
    for each in types or ():
        await warn_if_unknown(bus, entity_type=each)
    missing = [name or "~" for name in _entity_types(types) if name not in watched] if "*" not in watched else []
    if missing or not watched:
        unwatched = f"{', '.join(missing)} is not watched; " if missing else ""
        echo(f"{unwatched}{_watched_line(watched)}: see `command-bus events watch`", err=True)


def _watched_line(watched: Collection[str | None]) -> str:
    names = ", ".join({None: "what has no entity", "*": "all types"}.get(name, str(name)) for name in watched)
    return f"watched: {names}" if names else "nothing is watched"


def _entity_types(types: list[str] | None) -> list[str | None]:
    return [entity_type_named(each) for each in types or ()]


def _event_line(event: CommandEvent) -> str:
    time = utc_time(event.at_ms)
    at = format_time(event.at_ms) if time is None else f"{time.strftime('%Y-%m-%d %H:%M:%S.%f')[:-3]}Z"
    command = f"{event.name} {event.command_id}".strip()
    facts = [f"attempt {event.attempt}"] if event.attempt else []
    facts += [f"worker {event.worker}"] if event.worker else []
    facts += [f"{'by' if event.kind == 'late' else 'in'} {format_duration(event.delay)}"] if event.delay is not None else []
    facts += [f"{event.count:,} ticks"] if event.count else []
    facts += [each for each in (event.letter_id, event.reason) if each]
    return "  ".join(part for part in (at, event.entity, event.kind, command, ", ".join(facts)) if part)
