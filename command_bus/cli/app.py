"""The program's commands: a table in the order of `--help`. The module of a command is imported when the command is called."""

from __future__ import annotations

from typing import Annotated

from typer import Exit, Option, Typer

import command_bus
from command_bus.cli import PROGRAM
from command_bus.cli.lazy_commands import LazyCommand, lazy_group
from command_bus.cli.options import App, Namespace, Url
from command_bus.cli.terminal import echo

COMMANDS = (
    LazyCommand("worker", "commands.worker", "Run the handlers of an application."),
    LazyCommand("dev", "commands.worker", "Embedded server and reloading worker in one."),
    LazyCommand("send", "commands.send", "Dispatch a command from JSON."),
    LazyCommand("call", "commands.send", "Send a command or query, print its reply."),
    LazyCommand("stats", "commands.inspect", "Figures of the whole namespace."),
    LazyCommand("top", "commands.top", "The same with the hottest entities, live."),
    LazyCommand("entities", "commands.inspect", "Entities that have work, hottest first."),
    LazyCommand("entity", "commands.entity", "One entity: show, pause, drain, purge, abort."),
    LazyCommand("pause", "commands.control", "Start no command of a type, or of the bus."),
    LazyCommand("drain", "commands.control", "Accept no command, finish those there are."),
    LazyCommand("resume", "commands.control", "Undo pause or drain."),
    LazyCommand("purge", "commands.control", "Remove all waiting commands."),
    LazyCommand("cancel", "commands.control", "Remove commands that wait, or end them."),
    LazyCommand("command", "commands.command", "One command: status, progress, log, steps."),
    LazyCommand("signal", "commands.command", "Bring a signal to a durable command."),
    LazyCommand("schedules", "commands.schedules", "Schedules: list, show, put, pause, remove."),
    LazyCommand("delayed", "commands.delayed", "Delayed commands: list, promote."),
    LazyCommand("history", "commands.history", "How commands ended that have a history: show, search."),
    LazyCommand("audit", "commands.audit", "What operators did in the dashboard, and why."),
    LazyCommand("dlq", "commands.dlq", "Dead letters: list, replay, discard, purge."),
    LazyCommand("recount", "commands.control", "Set wrong counters right."),
    LazyCommand("limits", "commands.limits", "Limits of starts: list, put, remove."),
    LazyCommand("shares", "commands.shares", "Fair shares between tenants: list, put, remove."),
    LazyCommand("webhooks", "commands.webhooks", "Webhooks: list, put, remove, pause, test, deliveries."),
    LazyCommand("types", "commands.types", "Entity types: list them, remove one."),
    LazyCommand("events", "commands.events", "What happens to commands, as it happens."),
    LazyCommand("workers", "commands.inspect", "Live workers, and workers that were lost."),
    LazyCommand("introspect", "commands.inspect", "Commands as the workers announce them."),
    LazyCommand("generate", "commands.generate", "Clients from that, as Python or TypeScript."),
    LazyCommand("serve", "commands.serve", "Serve commands over HTTP, for other languages."),
    LazyCommand("token", "commands.serve", "A token for that, and its hash."),
    LazyCommand("dashboard", "commands.dashboard", "Serve pages for operators in a browser."),
    LazyCommand("password", "commands.dashboard", "Hash of a password, for its users."),
    LazyCommand("doctor", "commands.doctor", "What is wrong here, and what to change."),
    LazyCommand("obliterate", "commands.control", "Delete the namespace with all that is in it."),
    LazyCommand("forget", "commands.worker", "Delete the development server's data."),
)

# Plain help starts faster than rich's panels, and keeps the tables in docstrings as they are written.
app = Typer(cls=lazy_group(COMMANDS), rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)


def _print_version(asked: bool) -> None:
    if asked:
        echo(f"{PROGRAM} {command_bus.__version__}")
        raise Exit


@app.callback()
def _program(
    *,
    url: Url = None,
    namespace: Namespace = None,
    app: App = None,
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Commands and queries, strictly in order per entity, on Redis Streams.

    \b
    Exit codes of all commands but `worker` and `dev`, which have their own:
      0    done, or shown
      1    not done: refused, failed, not there, not confirmed; or `doctor` and `workers` found a problem
      2    wrong usage, an invalid setting, or a missing package
      3    unknown whether it was done: no answer in time (`send`, `call`)
      4    no server
      130  Ctrl-C (`top` and `events follow`: 0)
    """  # noqa: D301 - \b makes typer keep the lines
