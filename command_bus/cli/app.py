"""The commands and their options. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import command_bus
from command_bus.cli import PROGRAM
from command_bus.cli.options import LogFormat, LogLevel, WorkerOptions

__all__ = ["app"]

# Plain help: it starts faster than rich's panels, and keeps the tables below as they are written.
app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"{PROGRAM} {command_bus.__version__}")
        raise typer.Exit


@app.callback()
def _program(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Commands and queries, strictly in order per entity, on Redis Streams."""


@app.command()
def worker(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE[:ATTRIBUTE]",
            help="Where the bus is: a CommandBus, or a function without arguments that gives one. "
            "The attribute is `bus` if none is named, and may have dots (`app:container.bus`).",
        ),
    ],
    *,
    processes: Annotated[int, typer.Option(min=1, max=1024, help="Worker processes; a process that dies is started again.")] = 1,
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, show_default=False, help="Entities a process runs at a time [default: the bus's]."),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(min=0.0, show_default=False, help="Seconds that running handlers get at the end [default: the bus's]."),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(show_default=False, help="As COMMAND_BUS_NAMESPACE in the environment; refused if the bus has another."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            show_default=False,
            help="As COMMAND_BUS_URL in the environment, a better place for passwords; refused if the bus has another.",
        ),
    ] = None,
    production: Annotated[
        bool,
        typer.Option(
            "--production",
            help="Never use the development server, and refuse at_most_once handlers on a server without append-only file.",
        ),
    ] = False,
    burst: Annotated[
        bool, typer.Option("--burst", help="Exit when nothing is left to do, not even delayed commands and retries.")
    ] = False,
    log_level: Annotated[LogLevel, typer.Option(help="What is logged, to standard error.")] = LogLevel.INFO,
    log_format: Annotated[LogFormat, typer.Option(help="Lines for people, or one JSON object per line.")] = LogFormat.TEXT,
    channel: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the handlers of an application.

    The current folder is importable. SIGTERM and SIGINT (Ctrl-C): take no new work, finish within the grace time, cancel what is
    left, hand everything else back. A second one ends at once. With several processes, signal the first, which started them.

    \b
    Exit codes:
      0      all handlers finished
      1      it could not start, or not close what it had opened; the log says why
      2      wrong usage, or a package is missing
      3      handlers were cut short: cancelled after the grace time, or lost with their process
      128+n  ended at once by a second signal n (130 for SIGINT, 143 for SIGTERM)
    """  # noqa: D301 - \b is typer's mark for lines to be kept
    options = WorkerOptions(
        target=target,
        processes=processes,
        concurrency=concurrency,
        grace=grace,
        namespace=namespace,
        url=url,
        production=production,
        burst=burst,
        log_level=log_level,
        log_format=log_format,
        channel=channel,
    )
    from command_bus.cli.logs import configure

    configure(options.log_level, options.log_format)
    if options.processes > 1:
        from command_bus.cli.supervisor import run_supervisor

        sys.exit(run_supervisor(options))
    from command_bus.cli.worker import run_worker

    sys.exit(run_worker(options))
