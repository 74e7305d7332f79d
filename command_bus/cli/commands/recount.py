"""`recount`: compare the counters of a namespace with what is there, and set them right."""

from __future__ import annotations

import typer

from command_bus.cli.connection import on_bus
from command_bus.cli.exit_codes import ExitCode
from command_bus.cli.json_output import to_json
from command_bus.cli.options import DryRun, Json, Target, with_target
from command_bus.cli.terminal import echo


@with_target
def recount(*, dry_run: DryRun = False, target: Target, as_json: Json = False) -> None:
    """Count the commands that wait or run, and the delayed ones of each entity, and set wrong counters right.

    Each shard is one step, so it is exact while commands come and go. Counters are wrong after keys were deleted by hand, say.

    \b
    Exit codes: 0 the counters are right (now), 1 there was too much to count, 2 wrong usage, 4 no server.
    """  # noqa: D301
    found = on_bus(target, lambda bus: bus.entities.recount(correct=not dry_run))
    if as_json:
        echo(to_json(found))
    else:
        echo(f"depth: {found.stored:,} stored, {found.counted:,} counted")
        echo(f"delayed commands: the number of {found.delayed:,} entities was wrong")
        if not found.complete:
            echo("not all was counted: a shard has more than 20,000 entities with work, or that many or large delayed commands")
    raise typer.Exit(ExitCode.DONE if found.complete else ExitCode.FAILED)
