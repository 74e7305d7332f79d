"""The program `command-bus` (extra `cli`), also `python -m command_bus`.

`--help` and `--version` wait for the imports of this module, so it imports neither a client of the server nor the application. The parts:
`app` lists the commands, `commands` has their modules, `connection` opens the bus that a command works on. `process` runs the worker
processes of `worker` and `dev`, and `codegen` writes the client classes of `generate`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import command_bus
from command_bus.cli.streams import take_any_text
from command_bus.errors import MissingExtra

__all__ = ["PROGRAM", "main"]

PROGRAM = "command-bus"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program and exit with its code.

    Args:
        arguments: The words after the program's name; by default those of this process.
    """
    take_any_text()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--version"]:  # needs no extra
        print(PROGRAM, command_bus.__version__)  # noqa: T201 - a program's answer
        sys.exit(0)
    try:
        app = _app()
    except MissingExtra as error:
        print(f"{PROGRAM}: {error.message}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    app(words, prog_name=PROGRAM)


def _app() -> Callable[..., Any]:
    """Import the typer application.

    Raises:
        MissingExtra: A package of the extra `cli` is not installed.
    """
    try:
        from command_bus.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("command_bus"):
            raise
        raise MissingExtra(f"the command line needs {error.name}: pip install 'command-bus[cli]'") from error
    return app
