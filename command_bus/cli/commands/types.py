"""`command-bus types`: the entity types that a namespace knows, and how to remove one that was a mistake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument

from command_bus.cli.completion import entity_types
from command_bus.cli.connection import on_bus
from command_bus.cli.options import Answer, Limit, Target, Yes, command_group, with_target
from command_bus.cli.output import listing
from command_bus.cli.terminal import confirm_or_exit, echo, escape, failure

if TYPE_CHECKING:
    from command_bus.admin.info import EntityTypeInfo

types = command_group("Entity types: list, forget.")


@types.command("list", short_help="List the entity types of this namespace.")
@with_target
def list_types(
    *,
    limit: Limit = 100,
    target: Target,
) -> Answer:
    """List the entity types that ever had a command accepted, or were paused or drained, and their kind of mailboxes.

    \b
    Exit codes: 0 shown, 2 wrong usage, 4 no server.
    """  # noqa: D301
    found = on_bus(target, lambda bus: bus.entities.types())
    columns = ["entity type", "mailboxes"]
    return listing("types", found, limit, columns, lambda each: (each.name, _mailboxes(each)))


@types.command("forget", short_help="Remove a type of which nothing is stored.")
@with_target
def forget_type(
    entity_type: Annotated[
        str,
        Argument(metavar="TYPE", autocompletion=entity_types, help="The entity type, as in `types list`."),
    ],
    *,
    yes: Yes = False,
    target: Target,
) -> None:
    """Remove the record of a type: one that was a mistake, or that was recorded with other mailboxes than its clients use.

    Refused while anything of the type is stored. The next sender records it again. Restart processes that used it with the old mailboxes.

    \b
    Exit codes: 0 removed, 1 there is no such type, it is in use, or not confirmed, 2 wrong usage, or no terminal to ask on, 4 no server.
    """  # noqa: D301
    known = on_bus(target, lambda bus: bus.entities.types())
    found = next((each for each in known if entity_type in (each.name, escape(each.name))), None)
    if found is None:
        raise failure(f"there is no entity type {entity_type!r} on record: `types list` shows them")
    confirm_or_exit(f"Forget that {found.name} has mailboxes {_mailboxes(found)}?", yes=yes)

    on_bus(target, lambda bus: bus.entities.forget_type(found.name))
    echo(f"{found.name}: forgotten")


def _mailboxes(found: EntityTypeInfo) -> str:
    return found.mailboxes or "not agreed on yet"
