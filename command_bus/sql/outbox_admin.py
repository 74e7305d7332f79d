"""Operations on an outbox for operators, by the URL of its database: what is in it, and the relay as a program. The command line shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateIndex, CreateTable

from command_bus.bus import CommandBus
from command_bus.errors import InvalidSettings, OutboxMissing
from command_bus.sql.outbox_table import FAILED, FIGURES, NUMBERING, TRIGGER, discarding, retrying
from command_bus.sql.relay import OutboxRelay
from command_bus.sql.tables import Statement, metadata

T = TypeVar("T")


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


async def relay(bus: CommandBus, database: str, told: Callable[[str], None], **options: Any) -> None:
    """Relay until this is cancelled.

    Args:
        bus: Open.
        database: URL of the database.
        told: Called with the URL without its password, before the first look.
        options: As of `OutboxRelay`.

    Raises:
        InvalidSettings: The URL or an option is not what it may be.
        OutboxMissing: There is no table, or nothing that numbers its rows.
    """
    engine = create_async_engine(_driven(database, awaited=True))
    try:
        sender = OutboxRelay(bus, engine, **options)
        told(engine.url.render_as_string())
        await sender.run()
    finally:
        await engine.dispose()


def figures(database: str) -> dict[str, Any]:
    """Return how many rows there are, how many are set aside or have no number, since when the oldest waits, and whether rows are numbered.

    Raises:
        InvalidSettings: The URL is none.
        OutboxMissing: The database cannot be asked, or has no table.
    """

    def ask(connection: Connection) -> dict[str, Any]:
        count, failed, oldest, unnumbered = _run(connection, (FIGURES, {}))[0]
        is_server = connection.dialect.name == "postgresql"
        return {
            "rows": count,
            "failed": failed,
            "unnumbered": (unnumbered or 0) if is_server else 0,
            "oldest_at": oldest,
            "numbered": not is_server or _run(connection, (TRIGGER, {}))[0][0] == 1,
        }

    return _on(database, ask)


def failed(database: str, most: int) -> list[dict[str, Any]]:
    """Return rows that are set aside, with the reason.

    Raises:
        InvalidSettings: As `figures`.
        OutboxMissing: As `figures`.
    """
    names = ("row", "entity", "command_id", "added_at", "error")
    rows = _on(database, lambda connection: _run(connection, (FAILED, {"most": most})))
    return [dict(zip(names, row, strict=True)) for row in rows]


def retry(database: str, rows: Sequence[int]) -> list[int]:
    """Let rows that are set aside be sent again; return their ids.

    Raises:
        InvalidSettings: As `figures`.
        OutboxMissing: As `figures`.
    """
    return _change(database, rows, retrying)


def discard(database: str, rows: Sequence[int]) -> list[int]:
    """Delete rows that are set aside; return their ids.

    Raises:
        InvalidSettings: As `figures`.
        OutboxMissing: As `figures`.
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
    try:
        with create_engine(_driven(database), poolclass=NullPool).begin() as connection:
            return work(connection)
    except SQLAlchemyError as error:
        raise OutboxMissing(str(error).partition("\n")[0]) from error


def _driven(database: str, *, awaited: bool = False) -> str:
    """Return the URL of a database with the driver that is used here."""
    kind, mark, rest = database.partition("://")
    if not mark or kind.partition("+")[0] not in ("postgresql", "postgres", "sqlite"):
        raise InvalidSettings("a database is a URL, as postgresql://user@host/name or sqlite:///file")
    if kind in ("postgresql", "postgres"):
        kind = "postgresql+psycopg"
    return f"{'sqlite+aiosqlite' if awaited and kind == 'sqlite' else kind}://{rest}"
