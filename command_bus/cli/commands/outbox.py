"""`command-bus outbox`: the outbox of a database, what is in it, and the relay that sends it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from command_bus.cli.connection import run_until_interrupted
from command_bus.cli.options import (
    Answer,
    Format,
    HealthHost,
    HealthPort,
    Json,
    Level,
    Limit,
    LogFormat,
    StuckAfter,
    Target,
    command_group,
    with_target,
)
from command_bus.cli.output import format_table, format_time_and_age
from command_bus.cli.terminal import echo, escape, failure, usage_error
from command_bus.errors import InvalidSettings, MissingExtra, OutboxUnavailable

if TYPE_CHECKING:
    from command_bus.bus import CommandBus

outbox = command_group("The outbox of a database: relay, status, set-aside rows, tables.")
_Database = Annotated[
    str,
    Option(
        "--database",
        metavar="URL",
        envvar="COMMAND_BUS_DATABASE",
        help="Database, as postgresql://user@host/name; better by COMMAND_BUS_DATABASE, which no list of processes shows.",
    ),
]
_Ids = Annotated[list[int], Argument(metavar="ROW", min=1, max=2**63 - 1, help="Ids of rows.")]
_DRIVERS = {"psycopg": "psycopg[binary]", "aiosqlite": "aiosqlite", "asyncpg": "asyncpg", "psycopg2": "psycopg2-binary"}


@contextmanager
def explained() -> Generator[None]:
    """Translate what can be wrong into an exit."""
    try:
        yield
    except ModuleNotFoundError as error:
        wanted = _DRIVERS.get(error.name or "", "command-bus[sql]")
        raise usage_error(f"{error.name} is not installed: pip install '{wanted}'") from None
    except (InvalidSettings, MissingExtra) as error:
        raise usage_error(escape(error.message)) from None
    except OutboxUnavailable as error:
        raise failure(escape(error.message)) from None


@outbox.command("relay", short_help="Send what committed transactions have left.")
@with_target
def relay(
    *,
    target: Target,
    database: _Database,
    name: Annotated[str, Option(help="Name of this outbox, where several databases have one for the same bus.")] = "default",
    keep: Annotated[float, Option(min=0, help="Seconds for which a row outlives its acceptance.")] = 5.0,
    poll: Annotated[float, Option(min=0.001, help="Seconds between looks while nothing comes.")] = 0.02,
    health_port: HealthPort = None,
    health_host: HealthHost = "0.0.0.0",  # noqa: S104 - probes come from outside the container
    stuck_after: StuckAfter = 10.0,
    log_level: Level = None,
    log_format: Format = LogFormat.TEXT,
) -> None:
    """Send commands from the outbox of a database to the bus, until Ctrl-C or SIGTERM. Several relays may run: one works, another one follows it.

    With --app the settings of the application hold, which name the mailboxes.

    \b
    Exit codes: 0 ended by Ctrl-C or SIGTERM, 1 no table, 2 wrong usage or a missing package, 4 no server.
    """  # noqa: D301
    with explained():
        from command_bus.cli.process.health import give_metrics
        from command_bus.cli.process.logs import configure_logging
        from command_bus.sql import outbox_admin
        from command_bus.telemetry.health import HealthServer

        configure_logging(log_level, log_format)

        def relaying(bus: CommandBus) -> Awaitable[None]:
            def told(url: str) -> None:
                echo(f"{bus.session.where}: relays the outbox {name} of {url}", err=True)

            options: dict[str, Any] = {"name": name, "keep": keep, "poll": poll}
            if health_port is not None:
                give_metrics(bus.session)
                options["health"] = partial(HealthServer, host=health_host, port=health_port, stuck_after=stuck_after)
            return outbox_admin.relay(bus, database, told, **options)

        run_until_interrupted(target, relaying, may_begin=True, logs=True)


@outbox.command("ddl", short_help="Print the statements that make the tables.")
def ddl(*, dialect: Annotated[str, Option(help="postgresql or sqlite.")] = "postgresql") -> None:
    """Print the statements that make the tables of outbox and inbox, and what numbers the rows.

    \b
    Exit codes: 0 printed, 2 wrong usage or a missing package.
    """  # noqa: D301
    with explained():
        from command_bus.sql.outbox_admin import statements

        for line in "\n\n".join(f"{each};" for each in statements(dialect)).splitlines():
            echo(line.rstrip())


@outbox.command("status", short_help="Show what waits, and what is set aside.")
def status(*, database: _Database, as_json: Json = False) -> None:
    """Show how many rows wait, since when the oldest does, and what is set aside.

    \b
    Exit codes: 0 shown, 1 no table, or rows that nothing numbers, or no database, 2 wrong usage or a missing package.
    """  # noqa: D301
    with explained():
        from command_bus.sql.outbox_admin import figures

        found = figures(database)
    facts = {
        "rows": f"{found.rows:,}",
        "set aside": f"{found.failed:,}",
        "oldest": format_time_and_age(found.oldest_at_ms),
        "no number": f"{found.unnumbered:,}",
        "trigger": "there" if found.numbered else "missing: run what `command-bus outbox ddl` prints",
    }
    Answer(found, (f"{name:<11}{value}" for name, value in facts.items()), done=found.numbered).show(as_json=as_json)


@outbox.command("list", short_help="List the rows that are set aside.")
def list_failed(*, database: _Database, limit: Limit = 50, as_json: Json = False) -> None:
    """List rows whose commands can never be accepted as they are, with the reason: `outbox retry` or `outbox discard` them.

    \b
    Exit codes: 0 shown, 1 no table or no database, 2 wrong usage or a missing package.
    """  # noqa: D301
    with explained():
        from command_bus.sql.outbox_admin import failed

        rows = failed(database, limit)
    shown = [(str(row.row), row.entity, row.command_id, format_time_and_age(row.added_at_ms), row.error) for row in rows]
    text = format_table(["row", "entity", "id", "added", "why"], shown) if rows else "no row is set aside"
    Answer({"rows": rows}, text).show(as_json=as_json)


@outbox.command("retry", short_help="Let rows that are set aside be sent again.")
def retry(rows: _Ids, *, database: _Database) -> None:
    """Let rows that are set aside be sent again. Their entity has gone on: they come behind what it has had since.

    \b
    Exit codes: 0 all of them, 1 one is no such row, or no table or database, 2 wrong usage or a missing package.
    """  # noqa: D301
    with explained():
        from command_bus.sql import outbox_admin

        _change(database, rows, outbox_admin.retry, "is sent again")


@outbox.command("discard", short_help="Delete rows that are set aside.")
def discard(rows: _Ids, *, database: _Database) -> None:
    """Delete rows that are set aside: their commands are never sent.

    \b
    Exit codes: 0 all of them, 1 one is no such row, or no table or database, 2 wrong usage or a missing package.
    """  # noqa: D301
    with explained():
        from command_bus.sql import outbox_admin

        _change(database, rows, outbox_admin.discard, "is deleted")


def _change(database: str, rows: Sequence[int], change: Callable[[str, Sequence[int]], list[int]], done: str) -> None:
    changed = change(database, rows)
    for row in changed:
        echo(f"row {row} {done}")
    if missing := [str(row) for row in rows if row not in changed]:
        raise failure(f"no row that is set aside: {', '.join(missing)}")
