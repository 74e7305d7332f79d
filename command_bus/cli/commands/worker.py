"""`worker` and `dev`, which run an application's handlers, and `forget`, which deletes what `dev` left behind."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Exit, Option

from command_bus.cli.options import Format, HealthHost, HealthPort, Level, LogFormat, StuckAfter, Target, Yes
from command_bus.cli.process.worker_options import WorkerOptions
from command_bus.cli.terminal import ExitCode, WorkerExitCode, confirm_or_exit, echo, failure, print_error

ImportString = Annotated[
    str,
    Argument(
        metavar="MODULE[:ATTRIBUTE]",
        help="The bus: a CommandBus, or a function without arguments that returns one. "
        "The attribute defaults to `bus`, and may have dots (`app:container.bus`).",
    ),
]
Processes = Annotated[int, Option(min=1, max=1024, help="Worker processes; a process that dies is restarted.")]
Concurrency = Annotated[
    int | None,
    Option(min=1, max=100_000, help="Entities that a process runs at a time [default: the bus's]."),
]
Grace = Annotated[
    float | None,
    Option(min=0.0, help="Seconds that running handlers get to finish [default: the bus's]."),
]
WorkerNamespace = Annotated[
    str | None,
    Option(help="Set COMMAND_BUS_NAMESPACE; refused if the bus has another."),
]
WorkerUrl = Annotated[
    str | None,
    Option(
        help="Set COMMAND_BUS_URL; refused if the bus has another, or if it has a password, which all users of this "
        "machine could read: set COMMAND_BUS_URL, or COMMAND_BUS_PASSWORD.",
    ),
]
Production = Annotated[
    bool,
    Option(
        "--production",
        help="Never use the development server, and refuse at_most_once handlers on a server without append-only file.",
    ),
]
Burst = Annotated[bool, Option("--burst", help="Exit when no work is left, not even delayed commands and retries.")]
Include = Annotated[
    list[str] | None,
    Option(metavar="MODULE", help="Import the handlers of this module, too; may be repeated."),
]
Reload = Annotated[bool, Option("--reload", help="For development: restart when a Python file below the current folder changes.")]
CommandLogFolder = Annotated[
    str | None,
    Option(
        metavar="DIR",
        help="Write a line of JSON for each settled command into files of this folder, one a day.",
    ),
]


def worker(
    context: Context,
    import_string: ImportString,
    *,
    processes: Processes = 1,
    concurrency: Concurrency = None,
    grace: Grace = None,
    namespace: WorkerNamespace = None,  # noqa: ARG001 - read by `Target.from_context`
    url: WorkerUrl = None,  # noqa: ARG001
    production: Production = False,
    burst: Burst = False,
    include: Include = None,
    log_level: Level = None,
    log_format: Format = LogFormat.TEXT,
    reload: Reload = False,
    health_port: HealthPort = None,
    health_host: HealthHost = "0.0.0.0",  # noqa: S104 - probes come from outside the container
    stuck_after: StuckAfter = 10.0,
    command_log: CommandLogFolder = None,
    channel: Annotated[int | None, Option(hidden=True)] = None,
) -> None:
    """Run the handlers of an application.

    Modules in the current folder can be imported. On SIGTERM, SIGINT (Ctrl-C) and SIGHUP (its terminal closes) it takes no new work, lets
    handlers finish within the grace time, cancels the rest, and hands all other work back. A second SIGTERM or SIGINT ends it at once.
    With several processes, signal the first, which started the others.

    \b
    Exit codes:
      0      all handlers finished
      1      it could not start, or not close what it had opened; the log says why
      2      wrong usage, or a package is missing
      3      handlers were cut short: cancelled after the grace time, or lost with their process
      128+n  ended at once by a second signal n (130 for SIGINT, 143 for SIGTERM)
    """  # noqa: D301 - \b makes typer keep the lines
    target = _target_without_app(context, "worker")
    _refuse_password(target)
    options = WorkerOptions(
        import_string=import_string,
        processes=processes,
        concurrency=concurrency,
        grace=grace,
        namespace=target.namespace,
        url=target.url,
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
        command_log=command_log,
    )
    from command_bus.cli.process.logs import configure_logging

    configure_logging(options.log_level, options.log_format)
    if options.processes > 1 or options.reload:
        from command_bus.cli.process.supervisor import run_supervisor

        sys.exit(run_supervisor(options))
    from command_bus.cli.process.worker_process import run_worker

    sys.exit(run_worker(options))


def dev(
    context: Context,
    import_string: Annotated[str, Argument(metavar="MODULE[:ATTRIBUTE]", help="The bus, as for `worker`.")],
    *,
    processes: Annotated[int, Option(min=1, max=64, help="Worker processes.")] = 1,
    data: Annotated[Path | None, Option(help="Keep all the server's data in this folder permanently.")] = None,
    namespace: Annotated[  # noqa: ARG001
        str | None, Option("--namespace", "-n", help="Set COMMAND_BUS_NAMESPACE.")
    ] = None,
    include: Annotated[list[str] | None, Option(metavar="MODULE", help="Modules with handlers, as for `worker`.")] = None,
    log_level: Level = None,
) -> None:
    """Run the embedded server and a worker that restarts when files change, for development.

    The server belongs to this project: without a URL, the other commands of this program (`stats`, `send` …) and the application's own
    programs find it from within the project's folder. COMMAND_BUS_URL and REDIS_URL are not used. Ctrl-C ends both. Commands that are not
    settled by then stay in the project's folder `.command_bus`, until they are handled, or deleted with `forget`.

    \b
    Exit codes: as for `worker`.
    """  # noqa: D301
    from command_bus.cli.process.logs import configure_logging
    from command_bus.cli.process.supervisor import run_development

    target = _target_without_app(context, "dev")
    if target.url is not None:
        print_error("dev starts a server of its own: leave --url out, or run `worker --reload` on that server")
        raise Exit(WorkerExitCode.USAGE)
    configure_logging(log_level, LogFormat.TEXT)
    options = WorkerOptions(
        import_string=import_string,
        processes=processes,
        namespace=target.namespace,
        log_level=log_level,
        reload=True,
        include=tuple(include or ()),
    )
    sys.exit(run_development(options, data))


def forget(context: Context, *, yes: Yes = False) -> None:
    """Delete what the development server of this project left behind: commands that are not settled, and dead letters.

    \b
    Exit codes: 0 deleted, or there was nothing, 1 the server runs, or not confirmed, 2 wrong usage, or no terminal to ask on.
    """  # noqa: D301
    from command_bus.embedded import forget_shared_server
    from command_bus.errors import CommandBusError

    if Target.from_context(context) != Target():
        print_error(
            "forget concerns the development server of this folder, which no --url, --namespace or --app names: leave them out"
        )
        raise Exit(ExitCode.USAGE)
    confirm_or_exit("Delete the commands and dead letters that this project's development server has kept?", yes=yes)
    try:
        folder = forget_shared_server()
    except CommandBusError as error:
        raise failure(error.message) from None
    echo("there was nothing to delete" if folder is None else f"deleted {folder}")


def _target_without_app(context: Context, command: str) -> Target:
    """Return the target of a command whose argument names the application.

    Raises:
        typer.Exit: The option `--app` names one, too.
    """
    target = Target.from_context(context)
    if target.app is not None:
        print_error(f"--app is for the other commands: name the application as the argument, `{command} {target.app}`")
        raise Exit(WorkerExitCode.USAGE)
    return target


def _refuse_password(target: Target) -> None:
    """Refuse a password among the arguments of a process that lives long: every user of the machine can read them (`ps`).

    Raises:
        typer.Exit: The URL has a password, or is invalid.
    """
    from command_bus.server_urls import has_password, url_fault

    if target.url is None:
        return
    fault = url_fault(target.url)
    if fault is None and has_password(target.url):
        fault = (
            "its password could be read by all users of this machine as long as the worker runs (ps); put the URL into COMMAND_BUS_URL, or the "
            "password into COMMAND_BUS_PASSWORD, which is used where the URL has none"
        )
    if fault is not None:
        print_error(f"--url: {fault}")
        raise Exit(WorkerExitCode.USAGE)
