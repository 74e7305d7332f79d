"""Operations on an outbox for operators, by the URL of its database: what is in it, and the relay as a program. The command line shows them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, InvalidRequestError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateIndex, CreateTable

from command_bus.bus import CommandBus
from command_bus.clock import format_duration, wall_ms
from command_bus.doctor.diagnosis import CommandLine, Finding, command_line
from command_bus.errors import InvalidSettings, OutboxUnavailable
from command_bus.serialization.limits import printable
from command_bus.sql.outbox_table import FAILED, FIGURES, MISSING, NUMBERING, TRIGGER, discarding, is_missing, retrying
from command_bus.sql.relay import OutboxRelay
from command_bus.sql.tables import Statement, metadata
from command_bus.transport.mailboxes import mailbox_label
from command_bus.worker.worker_bus import until_signal

T = TypeVar("T")
_LATE = 60.0
"""Seconds after which a row that still stands there is worth a warning; relays keep rows for some seconds."""


def statements(dialect: str) -> list[str]:
    """Return the statements that make the tables of outbox and inbox, and what numbers rows.

    Raises:
        InvalidSettings: It is neither `postgresql` nor `sqlite`.
    """
    if dialect not in ("postgresql", "sqlite"):
        raise InvalidSettings(f"a dialect is postgresql or sqlite, not {dialect}")
    compiled = make_url(f"{dialect}://").get_dialect()()
    made = [str(CreateTable(table).compile(dialect=compiled)) for table in metadata.sorted_tables]
    made += [str(CreateIndex(index).compile(dialect=compiled)) for table in metadata.sorted_tables for index in table.indexes]
    return [each.strip().replace("\t", "    ") for each in (*made, *(NUMBERING if dialect == "postgresql" else ()))]


async def relay(
    bus: CommandBus,
    database: str,
    told: Callable[[str], None],
    health: Callable[[OutboxRelay], AbstractAsyncContextManager[Any]] = nullcontext,
    **options: Any,
) -> None:
    """Relay until this is cancelled, or SIGTERM or SIGINT comes.

    Args:
        bus: Open.
        database: URL of the database.
        told: Called with the URL without password and query, before the first look.
        health: Serves probes of the relay.
        options: As of `OutboxRelay`.

    Raises:
        InvalidSettings: The URL or an option is not what it may be.
        OutboxUnavailable: There is no table, or nothing that numbers its rows.
    """
    with _checked():
        engine = create_async_engine(_driven(database, awaited=True))
    try:
        sender = OutboxRelay(bus, engine, **options)
        async with health(sender):
            told(engine.url.set(query={}).render_as_string())
            await until_signal(sender.run())
    finally:
        await engine.dispose()


@dataclass(frozen=True, slots=True)
class OutboxFigures:
    """The rows of an outbox, counted.

    Attributes:
        rows: All of them; those that are accepted stand there for `keep` seconds.
        failed: Set aside.
        unnumbered: Added while nothing numbered them.
        oldest_at_ms: When the oldest one that is not set aside was added; None if there is none.
        numbered: Whether rows are numbered.
    """

    rows: int
    failed: int
    unnumbered: int
    oldest_at_ms: int | None
    numbered: bool


@dataclass(frozen=True, slots=True)
class AsideRow:
    """A row that is set aside, with the reason."""

    row: int
    entity: str
    command_id: str
    added_at_ms: int
    error: str


def figures(database: str) -> OutboxFigures:
    """Return what is in an outbox.

    Raises:
        InvalidSettings: The URL is none.
        OutboxUnavailable: There is no table, or the database cannot be asked.
    """

    def ask(connection: Connection) -> OutboxFigures:
        count, failed, oldest, unnumbered = _run(connection, (FIGURES, {}))[0]
        is_server = connection.dialect.name == "postgresql"
        numbered = not is_server or _run(connection, (TRIGGER, {}))[0][0] == 1
        return OutboxFigures(count, failed, (unnumbered or 0) if is_server else 0, oldest, numbered)

    return _on(database, ask)


def examine(database: str, line: CommandLine = command_line) -> list[Finding]:
    """Check an outbox: its table, what numbers its rows, what is set aside, what waits.

    Args:
        database: URL of the database.
        line: Makes command lines.

    Raises:
        InvalidSettings: As `figures`.
    """
    try:
        found = figures(database)
    except OutboxUnavailable as error:
        return [Finding("outbox", "bad", error.message, line("outbox", "ddl"))]
    findings: list[Finding] = []
    if not found.numbered:
        findings.append(Finding("outbox", "bad", "nothing numbers the rows: none is sent", line("outbox", "ddl")))
    elif found.unnumbered:
        text = f"{found.unnumbered:,} rows were added while nothing numbered them: a relay sends them within a minute"
        findings.append(Finding("outbox", "warning", text, line("outbox", "relay")))
    if found.failed:
        text = f"{found.failed:,} rows are set aside: they can never be accepted as they are"
        findings.append(Finding("outbox", "warning", text, line("outbox", "list")))
    age = 0.0 if found.oldest_at_ms is None else (wall_ms() - found.oldest_at_ms) / 1000
    if age > _LATE:
        text = f"the oldest row was added {format_duration(age)} ago: does a relay run, and are its entities full or parked?"
        findings.append(Finding("outbox", "warning", text, line("outbox", "relay")))
    return findings or [Finding("outbox", "ok", f"{found.rows:,} rows")]


def failed(database: str, most: int) -> list[AsideRow]:
    """Return rows that are set aside, with the reason.

    Raises:
        InvalidSettings: As `figures`.
        OutboxUnavailable: As `figures`.
    """
    rows = _on(database, lambda connection: _run(connection, (FAILED, {"most": most})))
    return [AsideRow(row, mailbox_label(mailbox), *rest) for row, mailbox, *rest in rows]


def retry(database: str, rows: Sequence[int]) -> list[int]:
    """Let rows that are set aside be sent again; return their ids.

    Raises:
        InvalidSettings: As `figures`.
        OutboxUnavailable: As `figures`.
    """
    return _change(database, rows, retrying)


def discard(database: str, rows: Sequence[int]) -> list[int]:
    """Delete rows that are set aside; return their ids.

    Raises:
        InvalidSettings: As `figures`.
        OutboxUnavailable: As `figures`.
    """
    return _change(database, rows, lambda dialect, row: [discarding(dialect, row)])


def _change(database: str, rows: Sequence[int], making: Callable[[str, int], Sequence[Statement]]) -> list[int]:
    def change(connection: Connection) -> list[int]:
        return [row for row in rows if [_run(connection, each) for each in making(connection.dialect.name, row)][-1]]

    return _on(database, change)


def _run(connection: Connection, statement: Statement) -> list[Any]:
    return list(connection.execute(text(statement[0]), statement[1]).all())


def _on(database: str, work: Callable[[Connection], T]) -> T:
    """Do something in a transaction of the database."""
    with _checked():
        engine = create_engine(_driven(database), poolclass=NullPool)
    try:
        with engine.begin() as connection:
            return work(connection)
    except SQLAlchemyError as error:
        why = str(error).partition("\n")[0]
        raise OutboxUnavailable(MISSING if is_missing(error) else f"the database cannot be asked: {why}") from error


@contextmanager
def _checked() -> Generator[None]:
    """Translate what is wrong with a URL.

    Raises:
        InvalidSettings: It names no database, or a driver that is not there or does not fit.
    """
    try:
        yield
    except (ArgumentError, NoSuchModuleError, InvalidRequestError, ValueError, TypeError) as error:
        raise InvalidSettings(f"the URL of the database: {str(error).partition(chr(10))[0]}") from None


def _driven(database: str, *, awaited: bool = False) -> str:
    """Return the URL of a database with the driver that is used here."""
    kind, mark, rest = database.partition("://")
    if not mark or kind.partition("+")[0] not in ("postgresql", "postgres", "sqlite"):
        raise InvalidSettings("a database is a URL, as postgresql://user@host/name or sqlite:///file")
    path = make_url(database).database if kind.startswith("sqlite") else None
    if path and not path.startswith((":memory:", "file:")) and not Path(path).exists():  # SQLite would make it
        raise InvalidSettings(f"there is no file {printable(path)}")
    if kind in ("postgresql", "postgres"):
        kind = "postgresql+psycopg"
    return f"{'sqlite+aiosqlite' if awaited and kind == 'sqlite' else kind}://{rest}"
