"""The commands and their options. Everything heavy is imported by the command that needs it.

`worker` and `dev` are here; the others are in modules of their own, which are imported when the command is called. The table below names
them in the order of `--help`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import command_bus
from command_bus.cli import PROGRAM
from command_bus.cli.connection import App, Namespace, Place, Url
from command_bus.cli.lazy_commands import Listed, program_class
from command_bus.cli.process.options import ExitCode, LogFormat, LogLevel, WorkerOptions
from command_bus.cli.terminal import print_error, say

__all__ = ["app"]

COMMANDS = (
    Listed("send", "commands.send", "Dispatch a command from JSON."),
    Listed("call", "commands.send", "Send a command or query, print its reply."),
    Listed("stats", "commands.inspect", "Figures of the whole namespace."),
    Listed("top", "commands.top", "The same with the hottest entities, live."),
    Listed("entities", "commands.inspect", "Entities that have work, hottest first."),
    Listed("entity", "commands.control", "One entity: look, pause, drain, purge, abort."),
    Listed("pause", "commands.control", "Start nothing of a type, or of the bus."),
    Listed("drain", "commands.control", "Accept nothing more, work off what is there."),
    Listed("resume", "commands.control", "Take back pause or drain."),
    Listed("purge", "commands.control", "Remove all waiting commands."),
    Listed("cancel", "commands.control", "Take commands out of line."),
    Listed("dlq", "commands.dlq", "Dead letters: look, replay, discard, purge."),
    Listed("types", "commands.types", "Entity types: list them, take one back."),
    Listed("events", "commands.events", "What happens to commands, as it happens."),
    Listed("workers", "commands.inspect", "Who works here, and who was lost."),
    Listed("introspect", "commands.inspect", "Commands as the workers announce them."),
    Listed("generate", "commands.generate", "Client classes from that, as Python."),
    Listed("doctor", "commands.doctor", "What is wrong here, and what to change."),
    Listed("forget", "process.dev", "Delete what the development server has kept."),
)

# Plain help: it starts faster than rich's panels, and keeps the tables below as they are written.
app = typer.Typer(cls=program_class(COMMANDS), rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)


def _print_version(asked: bool) -> None:
    if asked:
        say(f"{PROGRAM} {command_bus.__version__}")
        raise typer.Exit


@app.callback()
def _program(
    *,
    url: Url = None,
    namespace: Namespace = None,
    app: App = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Commands and queries, strictly in order per entity, on Redis Streams.

    \b
    Exit codes of all commands but `worker` and `dev`, which have their own:
      0    done, or shown
      1    not done: refused, failed, not there, not wanted; or what was looked at is not well
      2    wrong usage, a setting that cannot be, or a package is missing
      3    unknown whether it was done: no answer in time (`send`, `call`)
      4    no server
      130  Ctrl-C (`top` and `events follow`: 0)
    """  # noqa: D301 - \b is typer's mark for lines to be kept


@app.command()
def worker(
    context: typer.Context,
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
    namespace: Annotated[  # noqa: ARG001 - of the place: see `Place.named`
        str | None,
        typer.Option(show_default=False, help="As COMMAND_BUS_NAMESPACE in the environment; refused if the bus has another."),
    ] = None,
    url: Annotated[  # noqa: ARG001
        str | None,
        typer.Option(
            show_default=False,
            help="As COMMAND_BUS_URL in the environment; refused if the bus has another, or if it has a password, which all users of this machine "
            "could read: set COMMAND_BUS_URL, or COMMAND_BUS_PASSWORD.",
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
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE", show_default=False, help="Import the handlers of this module, too; as often as needed."),
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="What is logged, to standard error.")] = LogLevel.INFO,
    log_format: Annotated[LogFormat, typer.Option(help="Lines for people, or one JSON object per line.")] = LogFormat.TEXT,
    reload: Annotated[
        bool, typer.Option("--reload", help="For development: start anew when a Python file below the current folder changes.")
    ] = False,
    health_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, show_default=False, help="Answer /healthz, /readyz and /metrics on this port; 0 takes any free one."
        ),
    ] = None,
    health_host: Annotated[str, typer.Option(help="Address to answer them on.")] = "0.0.0.0",  # noqa: S104 - probes come from outside the container
    stuck_after: Annotated[
        float | None,
        typer.Option(
            min=0.5, show_default=False, help="Seconds for which the event loop may not run until /healthz fails [default: 10]."
        ),
    ] = None,
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
    place = _without_app(Place.named(context), "worker")
    _refuse_open_password(place)
    options = WorkerOptions(
        target=target,
        processes=processes,
        concurrency=concurrency,
        grace=grace,
        namespace=place.namespace,
        url=place.url,
        production=production,
        burst=burst,
        log_level=log_level,
        log_format=log_format,
        channel=channel,
        reload=reload,
        health_port=health_port,
        health_host=health_host,
        stuck_after=stuck_after,
        include=tuple(include or ()),
    )
    from command_bus.cli.process.logs import configure

    configure(options.log_level, options.log_format)
    if options.processes > 1 or options.reload:
        from command_bus.cli.process.supervisor import run_supervisor

        sys.exit(run_supervisor(options))
    from command_bus.cli.process.worker import run_worker

    sys.exit(run_worker(options))


@app.command(short_help="Embedded server and reloading worker in one.")
def dev(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="MODULE[:ATTRIBUTE]", help="Where the bus is, as for `worker`.")],
    *,
    processes: Annotated[int, typer.Option(min=1, max=64, help="Worker processes.")] = 1,
    data: Annotated[
        Path | None, typer.Option(show_default=False, help="Keep all the server's data in this folder for good.")
    ] = None,
    namespace: Annotated[  # noqa: ARG001
        str | None, typer.Option("--namespace", "-n", show_default=False, help="As COMMAND_BUS_NAMESPACE.")
    ] = None,
    include: Annotated[
        list[str] | None, typer.Option(metavar="MODULE", show_default=False, help="Modules with handlers, as for `worker`.")
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="What is logged, to standard error.")] = LogLevel.INFO,
) -> None:
    """All in one for development: the embedded server, and a worker that starts anew when files change.

    The server is this project's: without any URL, the other commands of this program (`stats`, `send` …) and the application's own
    programs find it from within the project's folder. COMMAND_BUS_URL and REDIS_URL are not used. Ctrl-C ends both; what is not settled
    by then stays in the project's folder `.command_bus`, until it is handled, or deleted with `forget`.

    \b
    Exit codes: as for `worker`.
    """  # noqa: D301
    from command_bus.cli.process.dev import run_development
    from command_bus.cli.process.logs import configure

    place = _without_app(Place.named(context), "dev")
    if place.url is not None:
        print_error("dev starts a server of its own: leave --url out, or run `worker --reload` on that server")
        raise typer.Exit(ExitCode.USAGE)
    configure(log_level, LogFormat.TEXT)
    options = WorkerOptions(
        target=target,
        processes=processes,
        namespace=place.namespace,
        log_level=log_level,
        reload=True,
        include=tuple(include or ()),
    )
    sys.exit(run_development(options, data))


def _refuse_open_password(place: Place) -> None:
    """Refuse a password among the arguments of a process that lives long: they are shown to everybody (`ps`).

    Raises:
        typer.Exit: There is one.
    """
    from command_bus.server_urls import has_password, url_fault

    if place.url is None:
        return
    fault = url_fault(place.url)
    if fault is None and has_password(place.url):
        fault = (
            "its password could be read by all users of this machine as long as the worker runs (ps); put the URL into COMMAND_BUS_URL, or the "
            "password into COMMAND_BUS_PASSWORD, which is used where the URL has none"
        )
    if fault is not None:
        print_error(f"--url: {fault}")
        raise typer.Exit(ExitCode.USAGE)


def _without_app(place: Place, command: str) -> Place:
    """The place, for a command whose argument names the application."""
    if place.app is not None:
        print_error(f"--app is for the other commands: name the application as the argument, `{command} {place.app}`")
        raise typer.Exit(ExitCode.USAGE)
    return place
