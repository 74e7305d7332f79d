"""`command-bus events`: what happens to commands, switched on for an entity type while everything runs."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from command_bus.cli.places import App, Json, Namespace, Place, Url, connected, execute, plainly

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from command_bus.bus import CommandBus
    from command_bus.events import Event

__all__ = ["events"]

events = typer.Typer(
    name="events", rich_markup_mode=None, no_args_is_help=True, help="What happens to commands: watch, unwatch, list, follow."
)

Kind = StrEnum(
    "Kind",
    "accepted started completed rejected expired retried interrupted handed_back dead_lettered parked replayed discarded cancelled"
    " paused draining resumed",
)

Types = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TYPE]...", show_default=False, help="Entity types, ~ is what has no entity; without any, all."),
]
Type = Annotated[str | None, typer.Argument(metavar="[TYPE]", show_default=False, help="Only of this entity type.")]
Kinds = Annotated[
    list[Kind] | None,
    typer.Option("--kind", metavar="KIND", show_default=False, help="accepted, started, retried …; may be repeated."),
]
Id = Annotated[str | None, typer.Option("--id", show_default=False, help="Only of the entity with this id (with TYPE).")]


@events.command(short_help="Tell of commands of a type from now on.")
def watch(
    types: Types = None,
    *,
    kept: Annotated[int, typer.Option(min=1, help="About how many events each shard keeps, of all types together.")] = 10_000,
    url: Url = None,
    namespace: Namespace = None,
    app: App = None,
) -> None:
    """Tell of what happens to commands of these types, in all processes, from now on.

    The server then has more than twice as much to do for each of them.

    \b
    Exit codes: 0 done, 1 no entity type, 2 wrong usage, 4 no server.
    """  # noqa: D301
    execute(lambda: _switch(Place(url, namespace, app), types, kept))


@events.command(short_help="Tell of them no more.")
def unwatch(types: Types = None, *, url: Url = None, namespace: Namespace = None, app: App = None) -> None:
    """Take back a `watch` of these types; without any, that of all. What was told is kept for a day once nothing is watched.

    \b
    Exit codes: 0 done, 1 no entity type, 2 wrong usage, 4 no server.
    """  # noqa: D301
    execute(lambda: _switch(Place(url, namespace, app), types, None))


@events.command("list", short_help="What is kept of what happened.")
def list_events(
    entity_type: Type = None,
    *,
    entity_id: Id = None,
    kind: Kinds = None,
    last: Annotated[int, typer.Option(min=1, help="How many, the newest.")] = 50,
    url: Url = None,
    namespace: Namespace = None,
    app: App = None,
    as_json: Json = False,
) -> None:
    """The newest events that are kept, oldest first.

    \b
    Exit codes: 0 shown, 1 no entity type, 2 wrong usage, 4 no server.
    """  # noqa: D301
    from collections import deque

    async def work() -> list[Event]:
        found: deque[Event] = deque(maxlen=last)
        async with connected(Place(url, namespace, app)) as bus:
            async for event in _chosen(bus, entity_type, entity_id, kind, after="", follow=False):
                found.append(event)
            if not found and not await bus.events.watched():
                typer.echo("no type is watched: `command-bus events watch TYPE` begins", err=True)
        return sorted(found, key=lambda event: event.at_ms)

    shown = execute(work)
    if as_json:
        typer.echo(plainly(shown))
        return
    for event in shown:
        typer.echo(_line(event))


@events.command(short_help="Show events as they happen.")
def follow(
    entity_type: Type = None,
    *,
    entity_id: Id = None,
    kind: Kinds = None,
    url: Url = None,
    namespace: Namespace = None,
    app: App = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """What happens from now on, until Ctrl-C.

    \b
    Exit codes: 0 shown until Ctrl-C, 1 no entity type, 2 wrong usage, 4 no server.
    """  # noqa: D301

    async def work() -> None:
        import json

        from command_bus.facts import as_plain

        async with connected(Place(url, namespace, app)) as bus:
            if not await bus.events.watched():
                typer.echo("no type is watched yet: `command-bus events watch TYPE` begins", err=True)
            async for event in _chosen(bus, entity_type, entity_id, kind, after=None, follow=True):
                typer.echo(json.dumps(as_plain(event), ensure_ascii=False) if as_json else _line(event))

    try:
        execute(work)
    except typer.Exit as ended:
        raise typer.Exit(0 if ended.exit_code == 130 else ended.exit_code) from None


async def _switch(place: Place, types: list[str] | None, kept: int | None) -> None:
    named = [None if each == "~" else each for each in types or ()]
    async with connected(place) as bus:
        if kept is None:
            await bus.events.unwatch(*named)
        else:
            await bus.events.watch(*named, kept=kept)
        now = await bus.events.watched()
        watched = ", ".join({None: "what has no entity", "*": "all types"}.get(name, str(name)) for name in now)
    typer.echo(f"watched: {watched}" if watched else "nothing is watched")


async def _chosen(
    bus: CommandBus, entity_type: str | None, entity_id: str | None, kinds: list[Kind] | None, **how: Any
) -> AsyncIterator[Event]:
    wanted: Any = {kind.value for kind in kinds or ()}
    async for event in bus.events(entity_type, kinds=wanted, **how):
        if entity_id is None or event.entity_id in (entity_id, None):
            yield event


def _line(event: Event) -> str:
    from command_bus.cli.tables import shown

    at = datetime.fromtimestamp(event.at_ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
    command = f"{event.name} {event.command_id}".strip()
    facts = [f"attempt {event.attempt}"] if event.attempt else []
    facts += [f"worker {event.worker}"] if event.worker else []
    if event.detail:
        facts.append(f"in {event.detail} ms" if event.kind in ("accepted", "retried", "handed_back") else event.detail)
    return "  ".join(shown(part) for part in (f"{at}Z", event.entity, event.kind, command, ", ".join(facts)) if part)
