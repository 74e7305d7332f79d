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
    LazyCommand("dev", "commands.worker", "Run an embedded server and a reloading worker."),
    LazyCommand("send", "commands.send", "Dispatch a command from JSON."),
    LazyCommand("call", "commands.send", "Send a command or query, print its reply."),
    LazyCommand("stats", "commands.inspect", "Show figures of the whole namespace."),
    LazyCommand("top", "commands.top", "Show figures and the busiest entities, live."),
    LazyCommand("entities", "commands.inspect", "List entities that have work, busiest first."),
    LazyCommand("entity", "commands.entity", "Show, pause, drain, purge or abort an entity."),
    LazyCommand("pause", "commands.control", "Start no command of a type, or of the bus."),
    LazyCommand("drain", "commands.control", "Accept no new command, finish accepted ones."),
    LazyCommand("resume", "commands.control", "Undo pause or drain."),
    LazyCommand("purge", "commands.control", "Remove all waiting commands."),
    LazyCommand("cancel", "commands.control", "Remove waiting commands, or end running ones."),
    LazyCommand("command", "commands.command", "Show one command: status, log, steps."),
    LazyCommand("signal", "commands.command", "Send a signal to a durable command."),
    LazyCommand("schedules", "commands.schedules", "List, show, put, pause, remove schedules."),
    LazyCommand("delayed", "commands.delayed", "List or promote delayed commands."),
    LazyCommand("history", "commands.history", "Show or search how commands ended."),
    LazyCommand("audit", "commands.audit", "Show what operators did, and why."),
    LazyCommand("dlq", "commands.dlq", "List, replay, discard, purge dead letters."),
    LazyCommand("recount", "commands.control", "Correct wrong counters."),
    LazyCommand("limits", "commands.limits", "List, put, remove limits of starts."),
    LazyCommand("shares", "commands.shares", "List, put, remove shares between tenants."),
    LazyCommand("webhooks", "commands.webhooks", "List, put, remove, pause, test webhooks."),
    LazyCommand("types", "commands.types", "List entity types, or remove one."),
    LazyCommand("events", "commands.events", "Show what happens to commands, live."),
    LazyCommand("workers", "commands.inspect", "List live workers, and those that were lost."),
    LazyCommand("introspect", "commands.inspect", "List commands as the workers announce them."),
    LazyCommand("generate", "commands.generate", "Generate client code, as Python or TypeScript."),
    LazyCommand("serve", "commands.serve", "Serve commands over HTTP, for other languages."),
    LazyCommand("token", "commands.serve", "Create a token of the gateway, and its hash."),
    LazyCommand("dashboard", "commands.dashboard", "Serve pages for operators in a browser."),
    LazyCommand("password", "commands.dashboard", "Hash a password of a dashboard's user."),
    LazyCommand("doctor", "commands.doctor", "Find what is wrong, and what to change."),
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
