"""`command-bus state`: what entities are, as their last settled commands left it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from command_bus.admin.json_data import to_jsonable
from command_bus.cli.commands.entity import parse_entity_words
from command_bus.cli.completion import entity_types, entity_words
from command_bus.cli.connection import act_on_bus, on_bus
from command_bus.cli.options import Answer, Limit, Target, command_group, with_target
from command_bus.cli.output import format_table, format_time_and_age
from command_bus.cli.terminal import ExitCode, echo, escape, failure, format_value, print_error

if TYPE_CHECKING:
    from command_bus.admin.states import StateEntry
    from command_bus.bus import CommandBus

state = command_group("States of entities: show, list, export, delete.")
_Type = Annotated[str, Argument(metavar="TYPE", help="Entity type.", autocompletion=entity_types)]
_Entity = Annotated[list[str], Argument(metavar="TYPE:ID", autocompletion=entity_words, help="The entity, also as TYPE ID.")]


@state.command("show")
@with_target
def show(words: _Entity, *, target: Target) -> Answer:
    """Show the state of an entity.

    \b
    Exit codes: 0 shown, 2 wrong usage, 3 it has none, 4 no server.
    """  # noqa: D301
    entity_type, entity_id, _ = parse_entity_words(words)
    entry = on_bus(target, lambda bus: bus.states.find(entity_type, entity_id))
    if entry is None:
        print_error(f"{escape(entity_type)}:{escape(entity_id)} has no state")
        raise Exit(ExitCode.UNKNOWN)
    facts = [("changed", format_time_and_age(entry.changed_ms)), ("revision", entry.revision), ("version", entry.version)]
    facts += [("size", f"{entry.size:,} bytes"), *((name, format_value(value)) for name, value in entry.value.items())]
    return Answer(entry, (f"{escape(name):<12}{value}" for name, value in facts))


@state.command("list", short_help="List the states of the entities of a type.")
@with_target
def list_states(
    entity_type: _Type,
    *,
    limit: Limit = 50,
    target: Target,
) -> Answer:
    """List states of the entities of a type, in no order: `state export` writes all.

    \b
    Exit codes: 0 shown, 2 wrong usage, 4 no server.
    """  # noqa: D301
    found = on_bus(target, lambda bus: _some(bus, entity_type, limit + 1))
    shown, complete = found[:limit], len(found) <= limit

    def text() -> Iterator[str]:
        yield format_table(["entity", "changed", "bytes", "state"], map(_row, shown)) if shown else "no entity has one"
        if not complete:
            yield f"{limit:,} of them; there are more"

    return Answer({"states": shown, "complete": complete}, text())


@state.command("export", short_help="Write the states of a type as lines of JSON.")
@with_target
def export(entity_type: _Type, *, target: Target) -> None:
    """Write the states of the entities of a type to standard output, a line of JSON each: `state export account > accounts.jsonl`.

    Each is whole, but they are not all of one moment.

    \b
    Exit codes: 0 written, 2 wrong usage, 4 no server.
    """  # noqa: D301

    async def write(bus: CommandBus) -> None:
        async for entry in bus.states.list(entity_type):
            echo(json.dumps(to_jsonable(entry), ensure_ascii=False))

    on_bus(target, write)


@state.command("delete", short_help="Delete the state of an entity.")
@with_target
def delete(
    words: _Entity,
    *,
    reason: Annotated[str, Option(help="Why, for the audit log.")] = "",
    target: Target,
) -> Answer:
    """Delete the state of an entity: its next command begins with the defaults. Pause the entity before, if it has work.

    \b
    Exit codes: 0 deleted, 1 it has none or a command of it runs, 2 wrong usage, 4 no server.
    """  # noqa: D301
    entity_type, entity_id, _ = parse_entity_words(words)
    entity = f"{entity_type}:{entity_id}"
    if not act_on_bus(target, "Delete state", entity, lambda bus: bus.states.delete(entity_type, entity_id), why=reason):
        raise failure(f"{escape(entity)} has no state")
    return Answer({"entity": entity, "deleted": True}, f"{escape(entity)}: its state is deleted")


async def _some(bus: CommandBus, entity_type: str, most: int) -> list[StateEntry[dict[str, Any]]]:
    found: list[StateEntry[dict[str, Any]]] = []
    async for entry in bus.states.list(entity_type):
        found.append(entry)
        if len(found) == most:
            break
    return found


def _row(entry: StateEntry[dict[str, Any]]) -> tuple[str, str, int, str]:
    return entry.entity_id, format_time_and_age(entry.changed_ms), entry.size, format_value(entry.value)
