"""`command-bus events`: what happens to commands, switched on for an entity type while everything runs."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from command_bus.cli.completion import entity_types
from command_bus.cli.connection import Json, Place, connected, execute, given_before, placed
from command_bus.cli.json_output import plainly, time_of
from command_bus.cli.terminal import say
from command_bus.cli.unknown_names import warn_of_unknown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from command_bus.admin.events import Event
    from command_bus.bus import CommandBus

__all__ = ["events"]

events = typer.Typer(
    callback=given_before,
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="What happens to commands: watch, unwatch, list, follow.",
)

Kind = StrEnum(
    "Kind",
    "accepted started completed rejected expired retried interrupted handed_back dead_lettered parked replayed discarded cancelled"
    " paused draining resumed",
)

Types = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TYPE",
        show_default=False,
        autocompletion=entity_types,
        help="Entity types, ~ is what has no entity; without any, all.",
    ),
]
Kinds = Annotated[
    list[Kind] | None,
    typer.Option("--kind", metavar="KIND", show_default=False, help="accepted, started, retried …; may be repeated."),
]
Id = Annotated[
    str | None, typer.Option("--id", show_default=False, help="Only of the entity with this id (with TYPE, or write TYPE:ID).")
]


@events.command(short_help="Tell of commands of a type from now on.")
@placed
def watch(
    types: Types = None,
    *,
    kept: Annotated[int, typer.Option(min=1, help="About how many events each shard keeps, of all types together.")] = 10_000,
    place: Place,
) -> None:
    """Tell of what happens to commands of these types, in all processes, from now on.

    The server then has about twice as much to do for each of them.

    \b
    Exit codes: 0 done, 1 no entity type, 2 wrong usage, 4 no server.
    """  # noqa: D301
    execute(lambda: _switch(place, types, kept))


@events.command(short_help="Tell of them no more.")
@placed
def unwatch(types: Types = None, *, place: Place) -> None:
    """Take back a `watch` of these types; without any, every one. What was told is kept for a day once nothing is watched.

    \b
    Exit codes: 0 done, 1 no entity type, 2 wrong usage, 4 no server.
    """  # noqa: D301
    execute(lambda: _switch(place, types, None))


@events.command("list", short_help="What is kept of what happened.")
@placed
def list_events(
    types: Types = None,
    *,
    entity_id: Id = None,
    kind: Kinds = None,
    last: Annotated[int, typer.Option(min=1, help="How many, the newest.")] = 50,
    place: Place,
    as_json: Json = False,
) -> None:
    """The newest events that are kept, oldest first.

    \b
    Exit codes: 0 shown, 1 no entity type, 2 wrong usage, 4 no server.
    """  # noqa: D301
    from collections import deque

    types, entity_id = _split(types, entity_id)

    async def work() -> list[Event]:
        found: deque[Event] = deque(maxlen=last)
        async with connected(place) as bus:
            async for event in _chosen(bus, types, entity_id, kind, after="", follow=False):
                found.append(event)
            await _warn_of_unwatched(bus, types)
        return sorted(found, key=lambda event: event.at_ms)

    shown = execute(work)
    if as_json:
        say(plainly({"events": shown}))
        return
    for event in shown:
        say(_line(event))


@events.command(short_help="Show events as they happen.")
@placed
def follow(
    types: Types = None,
    *,
    entity_id: Id = None,
    kind: Kinds = None,
    place: Place,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """What happens from now on, until Ctrl-C.

    \b
    Exit codes: 0 shown until Ctrl-C, 1 no entity type, 2 wrong usage, 4 no server.
    """  # noqa: D301
    types, entity_id = _split(types, entity_id)

    async def work() -> None:
        async with connected(place) as bus:
            await _warn_of_unwatched(bus, types)
            async for event in _chosen(bus, types, entity_id, kind, after=None, follow=True):
                say(plainly(event, indent=None) if as_json else _line(event))

    try:
        execute(work)
    except typer.Exit as ended:
        raise typer.Exit(0 if ended.exit_code == 130 else ended.exit_code) from None


async def _switch(place: Place, types: list[str] | None, kept: int | None) -> None:
    async with connected(place) as bus:
        if kept is None:
            await bus.events.unwatch(*_named(types))
        else:
            await bus.events.watch(*_named(types), kept=kept)
            for each in types or ():
                done = f"It is watched all the same: `{place.command('events', 'unwatch', each)}` takes that back"
                await warn_of_unknown(bus, entity_type=each, done=done)
        say(_watched(await bus.events.watched()))


async def _warn_of_unwatched(bus: CommandBus, types: list[str] | None) -> None:
    watched = await bus.events.watched()
    for each in types or ():
        await warn_of_unknown(bus, entity_type=each)
    missing = [name or "~" for name in _named(types) if name not in watched] if "*" not in watched else []
    if missing or not watched:
        say(
            f"{', '.join(missing)}{' is not watched; ' if missing else ''}{_watched(watched)}: see `command-bus events watch`",
            aside=True,
        )


def _watched(watched: Collection[str | None]) -> str:
    names = ", ".join({None: "what has no entity", "*": "all types"}.get(name, str(name)) for name in watched)
    return f"watched: {names}" if names else "nothing is watched"


def _named(types: list[str] | None) -> list[str | None]:
    return [None if each == "~" else each for each in types or ()]


def _split(types: list[str] | None, entity_id: str | None) -> tuple[list[str] | None, str | None]:
    """Types and an id; a single `TYPE:ID` is both."""
    if types and len(types) == 1 and entity_id is None and ":" in types[0]:
        name, _, entity_id = types[0].partition(":")
        return [name], entity_id
    return types, entity_id


async def _chosen(
    bus: CommandBus, types: list[str] | None, entity_id: str | None, kinds: list[Kind] | None, **how: Any
) -> AsyncIterator[Event]:
    wanted: Any = {kind.value for kind in kinds or ()}
    async for event in bus.events(*_named(types), kinds=wanted, **how):
        if entity_id is None or event.entity_id in (entity_id, None):
            yield event


def _line(event: Event) -> str:
    from command_bus.cli.output import duration, moment

    time = time_of(event.at_ms)
    at = moment(event.at_ms) if time is None else f"{time.strftime('%Y-%m-%d %H:%M:%S.%f')[:-3]}Z"
    command = f"{event.name} {event.command_id}".strip()
    facts = [f"attempt {event.attempt}"] if event.attempt else []
    facts += [f"worker {event.worker}"] if event.worker else []
    facts += [f"in {duration(event.delay)}"] if event.delay is not None else []
    facts += [each for each in (event.letter_id, event.reason) if each]
    return "  ".join(part for part in (at, event.entity, event.kind, command, ", ".join(facts)) if part)
