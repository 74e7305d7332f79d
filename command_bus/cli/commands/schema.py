"""`schema`: the schemas of an application's commands in a file, and what a change of them breaks. No worker and no server is needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from command_bus.cli.commands.inspect import announced_commands
from command_bus.cli.connection import bus_of_app, on_bus, run_command
from command_bus.cli.options import Answer, Target, command_group, with_target
from command_bus.cli.output import table, to_json
from command_bus.cli.terminal import ExitCode, echo, escape, print_error, usage_error
from command_bus.errors import InvalidSettings

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
    """Write the schemas of an application's commands, events and states, as its workers would announce them, with values that its classes take.

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


@schema.command("check", short_help="Tell what the changes since a file break.")
@with_target
def check_schemas(
    import_string: ImportString = None,
    *,
    against: Annotated[Path, Option(metavar="FILE", help="What `schema export` wrote of the release that runs.", dir_okay=False)],
    live: Annotated[bool, Option("--live", help="Check what the workers announce, in place of an application.")] = False,
    removed: Annotated[
        list[str] | None, Option(metavar="NAME", help="Accept that this command is gone; may be repeated.")
    ] = None,
    accept: Annotated[
        list[str] | None,
        Option(metavar="NAME.FIELD", help="Accept what is said of this field, as the table names it; may be repeated."),
    ] = None,
    include: Include = None,
    target: Target,
) -> Answer:
    """Compare an application's commands, fields and replies with those of a file, and tell what the changes break.

    Backward: new workers read what old senders sent and what waits. Forward: old workers read what new senders send. Replies: old callers
    read what new workers reply. Where shapes fit, and where a version has risen, the values in the file go through the upcasters and the
    new class. The states of entities are compared as well, but for --live, which asks the server. What signals carry is declared in no class.

    \b
    Exit codes: 0 fits, 1 breaks, or it cannot be told, 2 wrong usage, 3 fits if the workers are deployed before the senders,
    4 no server (--live).
    """  # noqa: D301
    from command_bus.cli.schemas.compare import FITS, WORKERS_FIRST, accepted, changes, worst
    from command_bus.cli.schemas.document import announced, described, read_document

    if live and import_string is not None:
        raise usage_error("--live checks what the workers announce: leave the application out")
    try:
        old = read_document(against.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, InvalidSettings) as error:
        raise usage_error(f"{against}: {error.message if isinstance(error, InvalidSettings) else error}") from None
    new = announced(old, on_bus(target, announced_commands)) if live else described(_application(import_string, include, target))
    found, stale = accepted(changes(old, new), {*(removed or ())}, {*(accept or ())})
    for each in stale:
        print_error(f"{each} is accepted, and nothing is said of it")
    verdict = worst(found)
    rows = [(each.verdict, each.command, each.field, each.compares, each.text) for each in found]
    text = table(["verdict", "command", "field", "compares", "change"], rows) if rows else ["no change"]
    code = ExitCode.WORKERS_FIRST if verdict == WORKERS_FIRST else ExitCode.FAILED
    return Answer({"verdict": verdict, "changes": found}, text, verdict == FITS, code)


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
