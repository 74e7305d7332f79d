"""`schema`: the schemas of an application's commands in a file, and what a change of them breaks. No worker and no server is needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from command_bus.cli.connection import bus_of_app, run_command
from command_bus.cli.options import Target, command_group, with_target
from command_bus.cli.output import to_json
from command_bus.cli.terminal import echo, escape, usage_error

if TYPE_CHECKING:
    from command_bus.bus import CommandBus

schema = command_group("Schemas of commands: export, check.")
ImportString = Annotated[
    str | None, Argument(metavar="[MODULE[:ATTRIBUTE]]", help="The application's bus, as for `worker` [default: that of --app].")
]
Include = Annotated[list[str] | None, Option(metavar="MODULE", help="Import the handlers of this module, too; may be repeated.")]


@schema.command("export", short_help="Write the schemas of an application.")
@with_target
def export_schemas(
    import_string: ImportString = None,
    *,
    include: Include = None,
    out: Annotated[Path | None, Option("--out", "-o", help="Write to this file instead of standard output.")] = None,
    target: Target,
) -> None:
    """Write the schemas of an application's commands and events, as its workers would announce them, with values that its classes take.

    The same classes give the same text: commit it with the code of a release, for `schema check`. No server is asked.

    \b
    Exit codes: 0 written, 2 wrong usage, or the application cannot be loaded.
    """  # noqa: D301
    from command_bus.cli.schemas.document import exported

    document = exported(_application(import_string, include, target))
    text = to_json(document) + "\n"
    if out is None:
        echo(escape(text, kept="\n\t"), newline=False)
    else:
        out.write_text(text, encoding="utf-8")
        echo(f"{out}: {len(document['commands'])} commands")


def _application(import_string: str | None, include: list[str] | None, target: Target) -> CommandBus:
    """Return the bus of the application, not open.

    Raises:
        typer.Exit: None is named, or it cannot be loaded.
    """
    from command_bus.cli.loading import include_modules

    named = Target(target.url, target.namespace, import_string or target.app)
    if named.app is None:
        raise usage_error("name the application's bus, as in `schema export shop.app:bus`")

    async def loaded() -> CommandBus:
        bus = await bus_of_app(named)
        include_modules(bus.registry, include or ())
        return bus

    return run_command(loaded)
