"""`command-bus schedules export` and `import`: take schedules along to another namespace, or to another number of shards."""

from __future__ import annotations

from typing import Annotated

import typer

from command_bus.cli.connection import on_bus, open_bus, run_command
from command_bus.cli.exit_codes import ExitCode
from command_bus.cli.json_output import to_json
from command_bus.cli.options import Json, Target, with_target
from command_bus.cli.terminal import echo


@with_target
def export_schedules(
    *,
    stop: Annotated[bool, typer.Option("--stop", help="They fire nothing here any more, because they are being moved.")] = False,
    target: Target,
) -> None:
    """Write the schedules as lines of JSON, each with how far it has come, for `import`.

    With --stop, repeated, it writes the same. To take that back, import the lines here.

    \b
    Exit codes: 0 written, 1 one is of a later release, 2 wrong usage, 4 no server: repeat it.
    """  # noqa: D301

    async def work() -> None:
        async with open_bus(target) as bus:
            async for line in bus.schedules.export(stop=stop):
                echo(line)

    run_command(work)


@with_target
def import_schedules(
    file: Annotated[
        typer.FileText, typer.Argument(metavar="FILE", show_default=False, help="What `export` wrote; - is standard input.")
    ],
    *,
    replace: Annotated[bool, typer.Option("--replace", help="Replace other schedules of the same names.")] = False,
    target: Target,
    as_json: Json = False,
) -> None:
    """Put schedules that were exported. They go on where they were: ticks since then are due, by their rule `missed`.

    All lines are checked before the first is put. Repeated, it changes nothing. A namespace that was never opened is begun, with as many
    shards as COMMAND_BUS_SHARDS says.

    \b
    Exit codes: 0 all are put (or were), 1 another one of a name stays, 2 wrong usage or line, 4 no server: repeat it.
    """  # noqa: D301
    from command_bus.cli.output import pluralize

    put, kept = on_bus(target, lambda bus: bus.schedules.import_(file.read().splitlines(), replace=replace), may_begin=True)
    if as_json:
        echo(to_json({"put": put, "kept": kept}))
    else:
        echo(f"{pluralize(len(put), 'schedule', 'schedules')} put")
        for name in kept:
            echo(f"{name}: stays as it is here")
    raise typer.Exit(ExitCode.FAILED if kept else ExitCode.DONE)
