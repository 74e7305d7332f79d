"""`command-bus types`: the entity types that a namespace knows, and taking one back that was a mistake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from command_bus.cli.completion import entity_types
from command_bus.cli.connection import Json, Place, Yes, confirm_or_exit, connected, execute, given_before, placed
from command_bus.cli.json_output import plainly
from command_bus.cli.process.options import Outcome
from command_bus.cli.terminal import escaped, print_error, say

if TYPE_CHECKING:
    from command_bus.admin.info import EntityTypeInfo

__all__ = ["types"]

types = typer.Typer(
    callback=given_before,
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Entity types: list, forget.",
)


@types.command("list", short_help="The entity types that are known.")
@placed
def list_types(
    *,
    limit: Annotated[int, typer.Option(min=1, help="How many to show.")] = 100,
    place: Place,
    as_json: Json = False,
) -> None:
    """The entity types of which a command was ever accepted, or that were paused or drained, and what their mailboxes are.

    \b
    Exit codes: 0 shown, 2 wrong usage, 4 no server.
    """  # noqa: D301

    async def work() -> list[EntityTypeInfo]:
        async with connected(place) as bus:
            return await bus.entities.types()

    found = execute(work)
    if as_json:
        say(plainly({"types": found[:limit], "count": len(found)}))
        return
    from command_bus.cli.output import table

    say(table(["entity type", "mailboxes"], [(each.name, each.mailboxes or "not agreed on yet") for each in found[:limit]]))
    if len(found) > limit:
        say(f"the first {limit:,} of {len(found):,}")


@types.command("forget", short_help="Take a type back of which nothing is stored.")
@placed
def forget_type(
    entity_type: Annotated[
        str,
        typer.Argument(metavar="TYPE", show_default=False, autocompletion=entity_types, help="As `types list` shows it."),
    ],
    *,
    yes: Yes = False,
    place: Place,
) -> None:
    """Take back what is recorded of a type: one that was a mistake, or that somebody recorded with other mailboxes than its clients have.

    Refused while anything of the type is stored. The next sender records it anew. Restart what has used it with the old mailboxes.

    \b
    Exit codes: 0 taken back, 1 there is no such type, it is in use, or not wanted, 2 wrong usage, or nobody to ask, 4 no server.
    """  # noqa: D301

    async def look() -> EntityTypeInfo | None:
        async with connected(place) as bus:
            return next((each for each in await bus.entities.types() if entity_type in (each.name, escaped(each.name))), None)

    found = execute(look)
    if found is None:
        print_error(f"there is no entity type {entity_type!r} on record: `types list` shows them")
        raise typer.Exit(Outcome.FAILED)
    confirm_or_exit(f"Forget that {found.name} has mailboxes {found.mailboxes or 'not agreed on yet'}?", yes=yes)

    async def work() -> bool:
        async with connected(place) as bus:
            return await bus.entities.forget_type(found.name)

    execute(work)
    say(f"{found.name}: taken back")
