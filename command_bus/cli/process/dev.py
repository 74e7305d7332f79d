"""`dev`: the development server and a supervisor in one process, so that both end together."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

import typer

from command_bus.cli.connection import Place, Yes, confirm_or_exit
from command_bus.cli.process.options import ExitCode, Outcome, WorkerOptions
from command_bus.cli.process.supervisor import run_supervisor
from command_bus.cli.terminal import print_error, say
from command_bus.embedded import forget_shared_server, shared_server
from command_bus.errors import CommandBusError

__all__ = ["forget", "run_development"]

_log = logging.getLogger("command_bus.cli")


def run_development(options: WorkerOptions, data: Path | None) -> int:
    """Start or join this project's server, then keep workers on it until asked to stop; the exit code."""
    os.environ.pop("REDIS_URL", None)
    try:
        url = shared_server(persistence=data)
    except CommandBusError as error:
        _log.error("%s", error.message)
        return ExitCode.NOT_STARTED
    _log.info("development server: %s", url)
    return run_supervisor(replace(options, url=url))


def forget(context: typer.Context, *, yes: Yes = False) -> None:
    """Delete what the development server of this project has left behind: commands that are not settled, and dead letters.

    \b
    Exit codes: 0 deleted, or there was nothing, 1 the server runs, or not wanted, 2 wrong usage, or nobody to ask.
    """  # noqa: D301
    if Place.named(context) != Place():
        print_error(
            "forget concerns the development server of this folder, which no --url, --namespace or --app names: leave them out"
        )
        raise typer.Exit(Outcome.USAGE)
    confirm_or_exit("Delete the commands and dead letters that this project's development server has kept?", yes=yes)
    try:
        folder = forget_shared_server()
    except CommandBusError as error:
        print_error(error.message)
        raise typer.Exit(Outcome.FAILED) from None
    say("there was nothing to delete" if folder is None else f"deleted {folder}")
