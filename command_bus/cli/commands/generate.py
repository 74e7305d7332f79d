"""`generate`: client classes, a TypeScript client or JSON Schema from the commands that workers announce."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from command_bus.cli.completion import command_names
from command_bus.cli.connection import on_bus
from command_bus.cli.options import Target, with_target
from command_bus.cli.output import to_json
from command_bus.cli.terminal import ExitCode, echo, escape, failure, print_error, usage_error
from command_bus.spelling import did_you_mean

if TYPE_CHECKING:
    from command_bus.bus import CommandBus
    from command_bus.serialization.announcements import CommandInfo


@with_target
def generate(
    commands: Annotated[
        list[str] | None,
        Argument(
            metavar="COMMAND",
            autocompletion=command_names,
            help="Only these commands [default: all].",
        ),
    ] = None,
    *,
    json_schema: Annotated[bool, Option("--json-schema", help="Write JSON Schema instead of Python.")] = False,
    typescript: Annotated[bool, Option("--ts", help="Write TypeScript for the gateway: types, and a client on fetch.")] = False,
    out: Annotated[Path | None, Option("--out", "-o", help="Write to this file instead of standard output.")] = None,
    check: Annotated[bool, Option("--check", help="Change nothing; exit with 1 if the file (--out) is not up to date.")] = False,
    target: Target,
) -> None:
    """Generate typed client classes as Python source, or a TypeScript client (--ts), from the commands that workers announce.

    The server's code is not needed.

    The same commands give the same text, so it can be committed, and compared in CI with --check. A command that cannot be written as a
    class is reported and left out; if it was asked for by name, nothing is written.

    \b
    Exit codes: 0 written, 1 unknown command, nothing announced, or not up to date, 2 wrong usage, 4 no server.
    """  # noqa: D301
    if json_schema and typescript:
        raise usage_error("--json-schema and --ts: one of them")
    if check and out is None:
        raise usage_error("--check compares with a file: name it with --out")

    async def read(bus: CommandBus) -> tuple[list[CommandInfo], str]:
        return await bus.fleet.commands(), bus.settings.namespace

    found, name = on_bus(target, read)
    chosen = _select(found, commands)
    if json_schema:
        text, count = _json_schema(chosen, name)
    elif typescript:
        text, count = _typescript(chosen, name)
    else:
        text, count = _python_source(chosen, name, whole=not commands)
    if out is None:
        echo(escape(text, kept="\n\t"), newline=False)
    elif check:
        if not out.exists() or out.read_text(encoding="utf-8") != text:
            raise failure(f"{out} is not what the workers announce: write it again without --check")
        echo(f"{out}: up to date")
    else:
        out.write_text(text, encoding="utf-8")
        echo(f"{out}: {count} commands")


def _select(found: list[CommandInfo], names: list[str] | None) -> list[CommandInfo]:
    """Return the commands with these names, by default all.

    Raises:
        typer.Exit: One of them is not announced, or no command is.
    """
    unknown = sorted({*(names or ())} - {each.name for each in found})
    if unknown or not found:
        known = [each.name for each in found]
        for each in unknown or ["any command"]:
            print_error(f"no worker has announced {each}{did_you_mean(each, known)}")
        raise Exit(ExitCode.FAILED)
    return [each for each in found if not names or each.name in names]


def _json_schema(chosen: list[CommandInfo], namespace: str) -> tuple[str, int]:
    from command_bus.cli.codegen.clients import schema_document

    return to_json(schema_document(chosen, namespace)) + "\n", len(chosen)


def _typescript(chosen: list[CommandInfo], namespace: str) -> tuple[str, int]:
    from command_bus.cli.codegen.typescript_types import typescript_source

    return typescript_source(chosen, namespace), len(chosen)


def _python_source(chosen: list[CommandInfo], namespace: str, *, whole: bool) -> tuple[str, int]:
    """Return the Python source and its number of commands, and report commands that are left out.

    Args:
        chosen: The commands.
        namespace: Their namespace.
        whole: Whether all commands were asked for. Then those that cannot be written as a class are left out.

    Raises:
        typer.Exit: A command that was asked for by name cannot be written, or none can.
    """
    from command_bus.cli.codegen.clients import generate_clients

    clients = generate_clients(chosen, namespace)
    for each, reason in clients.refused.items():
        print_error(f"{each} is left out, as what was announced of it can be no class: {reason}")
    count = len(chosen) - len(clients.refused)
    if not count or (clients.refused and not whole):
        raise Exit(ExitCode.FAILED)
    return clients.source, count
