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
    LazyCommand("worker", "Run the handlers of an application."),
    LazyCommand("dev", "Run an embedded server and a reloading worker.", "worker"),
    LazyCommand("send", "Dispatch a command from JSON."),
    LazyCommand("call", "Send a command or query, print its reply.", "send"),
    LazyCommand("publish", "Publish an event from JSON.", "send"),
    LazyCommand("stats", "Show figures of the whole namespace.", "inspect"),
    LazyCommand("top", "Show figures and the busiest entities, live."),
    LazyCommand("entities", "List entities that have work, busiest first.", "inspect"),
    LazyCommand("entity", "Show, pause, drain, purge or abort an entity."),
    LazyCommand("state", "Show, list, export, delete states of entities."),
    LazyCommand("pause", "Start no command of a type, or of the bus.", "control"),
    LazyCommand("drain", "Accept no new command, finish accepted ones.", "control"),
    LazyCommand("resume", "Undo pause or drain.", "control"),
    LazyCommand("purge", "Remove all waiting commands.", "control"),
    LazyCommand("cancel", "Remove waiting commands, or end running ones.", "control"),
    LazyCommand("command", "Show one command: status, log, steps."),
    LazyCommand("commands", "List, cancel, promote, prioritize all that match."),
    LazyCommand("signal", "Send a signal to a durable command.", "command"),
    LazyCommand("schedules", "List, show, put, pause, remove schedules."),
    LazyCommand("delayed", "List or promote delayed commands."),
    LazyCommand("history", "Show or search how commands ended."),
    LazyCommand("audit", "Show what operators did, and why."),
    LazyCommand("export", "Export history, events, audit, dead letters."),
    LazyCommand("dlq", "List, replay, discard, purge dead letters."),
    LazyCommand("recount", "Correct wrong counters.", "control"),
    LazyCommand("limits", "List, put, remove limits of starts."),
    LazyCommand("shares", "List, put, remove shares between tenants."),
    LazyCommand("subscriptions", "List, show, pause, resume, remove subscriptions."),
    LazyCommand("webhooks", "List, put, remove, pause, test webhooks."),
    LazyCommand("outbox", "Relay and inspect the outbox of a database."),
    LazyCommand("types", "List entity types, or remove one."),
    LazyCommand("events", "Show what happens to commands, live."),
    LazyCommand("workers", "List live workers, and those that were lost.", "inspect"),
    LazyCommand("introspect", "List commands as the workers announce them.", "inspect"),
    LazyCommand("generate", "Generate client code, as Python or TypeScript."),
    LazyCommand("schema", "Export schemas; check changes without workers."),
    LazyCommand("serve", "Serve commands over HTTP, for other languages."),
    LazyCommand("token", "Create a token of the gateway, and its hash.", "serve"),
    LazyCommand("dashboard", "Serve pages for operators in a browser."),
    LazyCommand("password", "Hash a password of a dashboard's user.", "dashboard"),
    LazyCommand("doctor", "Find what is wrong, and what to change."),
    LazyCommand("obliterate", "Delete the namespace with all that is in it.", "control"),
    LazyCommand("forget", "Delete the development server's data.", "worker"),
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
      3    unknown whether it was done: no answer in time (`send`, `call`, `publish`); or `schema check`: workers first
      4    no server
      130  Ctrl-C (`top` and `events follow`: 0)
    """  # noqa: D301 - \b makes typer keep the lines
