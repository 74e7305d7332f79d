"""`command-bus obliterate`: delete a namespace with all that is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from command_bus.cli.connection import on_bus, open_bus, run_command
from command_bus.cli.json_output import to_json
from command_bus.cli.options import Json, Target, Yes, with_target
from command_bus.cli.terminal import confirm_or_exit, echo

if TYPE_CHECKING:
    from command_bus.admin.info import Stats


@with_target
def obliterate(
    confirm: Annotated[
        str, typer.Argument(metavar="NAMESPACE", show_default=False, help="Its name, so that no other one is deleted.")
    ],
    *,
    force: Annotated[bool, typer.Option("--force", help="Also while workers live. They can settle nothing any more.")] = False,
    yes: Yes = False,
    target: Target,
    as_json: Json = False,
) -> None:
    """Delete a namespace: all commands, dead letters, schedules, command ids and outcomes, and what its clients agreed on.

    Refused while workers live, unless --force. Stop what sends to it, too: the next command of a process that still has it open begins a new
    one. If it breaks off, the namespace is drained: repeat it.

    \b
    Exit codes: 0 deleted, 1 refused, or not confirmed, 2 wrong usage or name, or no terminal to ask on, 4 no server: repeat it.
    """  # noqa: D301
    from command_bus.cli.output import pluralize

    async def waiting() -> tuple[str, Stats]:
        async with open_bus(target) as bus:
            return bus.settings.namespace, await bus.stats()

    namespace, stats = run_command(waiting)
    if confirm == namespace:
        held = (
            f"{pluralize(stats.depth, 'command', 'commands')} and {pluralize(stats.dead_letters, 'dead letter', 'dead letters')}"
        )
        if stats.schedules_stored:
            held += f" and {pluralize(stats.schedules_stored, 'schedule', 'schedules')}"
        confirm_or_exit(f"Delete namespace {namespace} with {held}? It cannot be undone.", yes=yes)
    deleted = on_bus(target, lambda bus: bus.entities.obliterate(confirm=confirm, force=force))
    echo(
        to_json({"namespace": namespace, "keys": deleted})
        if as_json
        else f"{namespace}: {pluralize(deleted, 'key', 'keys')} deleted"
    )
