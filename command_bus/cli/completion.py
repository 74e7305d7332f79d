"""Shell completion of names that only the server knows: entity types, commands, dead letters.

The shell waits for it at each press of the key, so the server has one second to answer, and errors are not shown. With `--app`
nothing is completed, because the application's code would run. Names with characters that mean something to a shell or a terminal are left out.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context

from command_bus.cli.connection import open_bus
from command_bus.cli.lazy_commands import import_bus
from command_bus.cli.options import Action, PriorityName, Target

if TYPE_CHECKING:
    from command_bus.bus import CommandBus

_PATIENCE = 1.0  # seconds
_SHOWN = 50
_PLAIN = re.compile(r"[\w.:@%+=,/~-]+")  # a shell inserts a name unquoted, and other characters could be more than a name


def entity_types(ctx: Context, incomplete: str) -> list[str]:
    """Return the entity types with this prefix, of which a command was accepted or announced."""
    return _ask_server(ctx, incomplete, _types)


OnlyType = Annotated[
    str | None,
    Argument(metavar="TYPE", autocompletion=entity_types, help="Only this entity type."),
]


def command_names(ctx: Context, incomplete: str) -> list[str]:
    """Return the wire names of announced commands with this prefix."""
    return _ask_server(ctx, incomplete, _commands)


def event_names(ctx: Context, incomplete: str) -> list[str]:
    """Return the wire names of announced events with this prefix."""
    return _ask_server(ctx, incomplete, _events)


def letter_ids(ctx: Context, incomplete: str) -> list[str]:
    """Return the ids of the oldest fifty dead letters, if they have this prefix."""
    return _ask_server(ctx, incomplete, _letters)


def schedule_names(ctx: Context, incomplete: str) -> list[str]:
    """Return the names of schedules that begin like this."""
    return _ask_server(ctx, incomplete, _schedules)


def subscription_names(ctx: Context, incomplete: str) -> list[str]:
    """Return the names of subscriptions that begin like this."""
    return _ask_server(ctx, incomplete, _subscriptions)


def entity_words(ctx: Context, args: list[str], incomplete: str) -> list[str]:
    """Return the words that may follow `entity`: `TYPE:`, an entity that has work, an action.

    bash splits words at a colon, and expects only the part after it.
    """
    typed = [*(ctx.params.get("words") or ())] or [word for word in args if not word.startswith("-")]
    if incomplete == ":":
        typed, incomplete = [*typed, ":"], ""
    before = re.sub(r" ?: ?", ":", " ".join(typed)).split(" ") if typed else []
    if len(before) == 1 and before[0].endswith(":"):
        return _entities(ctx, before[0].removesuffix(":"), incomplete)
    if before[-1:] == [Action.PRIORITIZE]:
        return [each for each in PriorityName if each.startswith(incomplete)]
    if before and (":" in before[0] or len(before) > 1):
        return [action.value for action in Action if action.startswith(incomplete)]
    if before:
        return _entities(ctx, before[0], incomplete)
    entity_type, colon, begun = incomplete.partition(":")
    if not colon:
        return [f"{name}:" for name in entity_types(ctx, incomplete)]
    return [f"{entity_type}:{found}" for found in _entities(ctx, entity_type, begun)]


def _entities(ctx: Context, entity_type: str, incomplete: str) -> list[str]:
    """Return the ids of entities that have work."""

    async def busy(bus: CommandBus) -> list[str]:
        page = await bus.entities.of(entity_type).list(limit=_SHOWN, scan=1000)
        return [each.entity_id for each in page.entities if each.entity_id is not None]

    return _ask_server(ctx, incomplete, busy)


async def _types(bus: CommandBus) -> list[str]:
    announced = [each.entity for each in await bus.fleet.commands() if each.entity is not None]
    return sorted({*await bus.transport.operator.types.used(), *announced})


async def _commands(bus: CommandBus) -> list[str]:
    return [each.name for each in await bus.fleet.commands()]


async def _events(bus: CommandBus) -> list[str]:
    return [each.name for each in await bus.fleet.events()]


async def _subscriptions(bus: CommandBus) -> list[str]:
    return [*await bus.subscriptions.names()]


async def _schedules(bus: CommandBus) -> list[str]:
    return [each.name async for each in bus.schedules.list()]


async def _letters(bus: CommandBus) -> list[str]:
    found: list[str] = []
    async for letter in bus.dead_letters.list():
        found.append(letter.id)
        if len(found) >= _SHOWN:
            break
    return found


def _ask_server(ctx: Context, incomplete: str, ask: Callable[[CommandBus], Awaitable[list[str]]]) -> list[str]:
    target = Target.from_context(ctx)
    if target.app is not None:
        return []

    import asyncio

    async def work() -> list[str]:
        async with asyncio.timeout(_PATIENCE), open_bus(target) as bus:
            return await ask(bus)

    logging.disable()
    import_bus()  # before the clock starts: the second is for the server
    with contextlib.suppress(Exception):
        return [each for each in asyncio.run(work()) if each.startswith(incomplete) and _PLAIN.fullmatch(each)]
    return []
