"""The table of the outbox, what numbers its rows, and the statements of the relay.

On PostgreSQL a deferred trigger runs inside COMMIT. At the transaction's first row it locks all of its mailboxes, in the order of their hashes,
then numbers all of its rows. The locks end when the commit is visible. So for each mailbox the numbers are in the order of the commits, and no row
becomes visible behind one with a higher number. Ids, and the order in which transactions began, are not: https://www.postgresql.org/docs/current/functions-info.html
says that a snapshot does not tell when a transaction commits. On SQLite one writes at a time, so ids are in the order of the commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import DDL, BigInteger, Column, Identity, Index, Integer, LargeBinary, Table, Text, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import registry
from sqlalchemy.sql.expression import FunctionElement

from command_bus.sql.tables import Statement, metadata

_LOCKS = 0x6362  # the first of the two numbers of an advisory lock; the second is the hash of a mailbox, or of an outbox's name
_RELAY_LOCKS = 0x6363


class _Transaction(FunctionElement[int]):
    """The id of the transaction, where the database has one."""

    inherit_cache = True


@compiles(_Transaction, "postgresql")
def _postgresql_transaction(*_: Any, **__: Any) -> str:
    return "txid_current()"


@compiles(_Transaction)
def _no_transaction(*_: Any, **__: Any) -> str:
    return "0"


OUTBOX = Table(
    "command_outbox",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), Identity(), primary_key=True),
    Column("n", BigInteger),
    Column("tx", BigInteger, nullable=False, server_default=_Transaction()),
    Column("mailbox", Text, nullable=False),
    Column("command_id", Text, nullable=False),
    Column("digest", LargeBinary),
    Column("envelope", LargeBinary, nullable=False),
    Column("flow", Text, nullable=False),
    Column("due_ms", BigInteger, nullable=False),
    Column("added_ms", BigInteger, nullable=False),
    Column("error", Text),
    sqlite_autoincrement=True,  # else the ids of deleted rows come again
    postgresql_with={"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.01, "autovacuum_vacuum_cost_delay": 0},
)
Index("command_outbox_n", OUTBOX.c.n)
Index("command_outbox_tx", OUTBOX.c.tx, postgresql_where=OUTBOX.c.n.is_(None))


class OutboxRow:
    """A command in the table."""

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)


registry(metadata=metadata).map_imperatively(OutboxRow, OUTBOX)

NUMBERING: Sequence[str] = (
    "CREATE SEQUENCE IF NOT EXISTS command_outbox_numbers",
    f"""
CREATE OR REPLACE FUNCTION command_outbox_number() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    place integer;
BEGIN
    PERFORM FROM command_outbox WHERE id = NEW.id AND n IS NULL;
    IF NOT FOUND THEN RETURN NULL; END IF;  -- numbered with the first row of the transaction, or deleted in it
    FOR place IN SELECT DISTINCT hashtext(mailbox) FROM command_outbox WHERE tx = txid_current() AND n IS NULL ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock({_LOCKS}, place);
    END LOOP;
    UPDATE command_outbox SET n = given.n FROM (
        SELECT id, nextval('command_outbox_numbers') AS n
        FROM (SELECT id FROM command_outbox WHERE tx = txid_current() AND n IS NULL ORDER BY id) AS mine
    ) AS given WHERE command_outbox.id = given.id;
    RETURN NULL;
END $$""",  # noqa: S608 - nothing is put in but what stands here
    # As the owner, so that who adds needs INSERT only; in the schema of the table, whatever the caller's path says.
    """
DO $$ BEGIN
    EXECUTE format('ALTER FUNCTION command_outbox_number() SET search_path = %I, pg_temp', current_schema());
END $$""",
    "DROP TRIGGER IF EXISTS command_outbox_number ON command_outbox",
    """
CREATE CONSTRAINT TRIGGER command_outbox_number AFTER INSERT ON command_outbox
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION command_outbox_number()""",
)
"""Statements that number rows in the order of commits; for PostgreSQL, behind the table. `metadata.create_all` runs them."""

for _statement in NUMBERING:
    _numbering: Any = DDL(_statement.replace("%", "%%"))  # type: ignore[no-untyped-call]
    event.listen(OUTBOX, "after_create", _numbering.execute_if(dialect="postgresql"))

_COLUMNS = "id, mailbox, command_id, digest, envelope, flow, due_ms, added_ms"
_NUMBER = {"postgresql": "n", "sqlite": "id"}
_MOMENT = {
    "postgresql": "(SELECT txid_snapshot_xmin(txid_current_snapshot())) AS ended, (SELECT txid_current()) AS now",
    "sqlite": "0 AS ended, 0 AS now",
}
"""Two ids of transactions, of the moment of a statement: all below the first have ended; the second is newer than all that have written."""
_MINE = "WITH mine AS MATERIALIZED (SELECT txid_current() AS tx)"
"""Gives a statement the id of its transaction before it takes a number: who looks takes a number for one of a transaction that has an id."""


def rows_behind(dialect: str, floor: int, most: int, without: Sequence[str] = ()) -> Statement:
    """Return what reads rows with higher numbers: number, id and the rest, and `ended` and `now` of the moment; not those of some mailboxes."""
    number, others = _NUMBER[dialect], ""
    values: dict[str, Any] = {"floor": floor, "most": most}
    if without and dialect == "postgresql":
        others, values = " AND mailbox <> ALL(CAST(:without AS text[]))", {**values, "without": list(without)}
    elif without:
        marks = ", ".join(f":m{at}" for at in range(len(without)))
        others, values = f" AND mailbox NOT IN ({marks})", {**values, **{f"m{at}": name for at, name in enumerate(without)}}
    columns = f"{number}, {_COLUMNS}, {_MOMENT[dialect]}"
    sql = f"SELECT {columns} FROM command_outbox WHERE {number} > :floor AND error IS NULL{others} ORDER BY {number} LIMIT :most"  # noqa: S608 - nothing is put in but what stands here
    return sql, values


def _of(dialect: str, ids: Sequence[int], what: str, **values: Any) -> Statement:
    """Return a statement about rows with these ids."""
    if dialect == "postgresql":
        return what.format("id = ANY(CAST(:ids AS bigint[]))"), {"ids": list(ids), **values}
    marks = ", ".join(f":i{at}" for at in range(len(ids)))
    return what.format(f"id IN ({marks})"), {**{f"i{at}": value for at, value in enumerate(ids)}, **values}


def still_there(dialect: str, ids: Sequence[int]) -> Statement:
    """Return what finds which of these rows there are, with their command ids."""
    return _of(dialect, ids, "SELECT id, command_id FROM command_outbox WHERE {}")


def deleting(dialect: str, rows: Sequence[tuple[int, str]]) -> Statement:
    """Return what deletes rows, and returns their ids: of a table that was made again the ids alone may be those of other commands."""
    ids, names = [row for row, _ in rows], [name for _, name in rows]
    if dialect == "postgresql":
        these = "SELECT * FROM unnest(CAST(:ids AS bigint[]), CAST(:names AS text[]))"
        return f"DELETE FROM command_outbox WHERE (id, command_id) IN ({these}) RETURNING id", {"ids": ids, "names": names}  # noqa: S608 - as above
    marks = ", ".join(f"(:i{at}, :n{at})" for at in range(len(rows)))
    values: dict[str, Any] = {f"i{at}": row for at, row in enumerate(ids)} | {f"n{at}": name for at, name in enumerate(names)}
    return f"DELETE FROM command_outbox WHERE (id, command_id) IN (VALUES {marks}) RETURNING id", values  # noqa: S608 - as above


def setting_aside(dialect: str, row: int, error: str) -> Statement:
    """Return what sets a row aside, and returns its id."""
    return _of(dialect, [row], "UPDATE command_outbox SET error = :error WHERE {} AND error IS NULL RETURNING id", error=error)


def retrying(dialect: str, row: int) -> Sequence[Statement]:
    """Return what lets a row that is set aside be sent again: with a new number, for relays look no more where the old one is.

    The last statement returns its old id.
    """
    if dialect == "postgresql":
        again = "UPDATE command_outbox SET error = NULL, tx = mine.tx, n = nextval('command_outbox_numbers') FROM mine"
        return [_of(dialect, [row], f"{_MINE} {again} WHERE {{}} AND error IS NOT NULL RETURNING id")]
    names = "tx, mailbox, command_id, digest, envelope, flow, due_ms, added_ms"
    copied = (
        f"INSERT INTO command_outbox ({names}) SELECT {names} FROM command_outbox WHERE {{}} AND error IS NOT NULL RETURNING id"  # noqa: S608 - as above
    )
    return [_of(dialect, [row], copied), discarding(dialect, row)]


def discarding(dialect: str, row: int) -> Statement:
    """Return what deletes a row that is set aside, and returns its id."""
    return _of(dialect, [row], "DELETE FROM command_outbox WHERE {} AND error IS NOT NULL RETURNING id")


LOCK = (
    f"SELECT pg_try_advisory_lock({_RELAY_LOCKS}, "
    "hashtext(:name || ' ' || CAST(CAST(to_regclass('command_outbox') AS oid) AS text)))"
)
"""Returns whether this session is the one that relays this table."""
SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
"""Lets all that is read until `COMMIT` be of one moment."""
NUMBER_REST = f"""
{_MINE}
UPDATE command_outbox SET n = given.n FROM (
    SELECT id, nextval('command_outbox_numbers') AS n FROM (
        SELECT id FROM command_outbox, mine
        WHERE n IS NULL AND command_outbox.tx < mine.tx AND command_outbox.tx < txid_snapshot_xmin(txid_current_snapshot()) ORDER BY id
    ) AS rest
) AS given WHERE command_outbox.id = given.id RETURNING command_outbox.id"""  # noqa: S608 - as above
"""Numbers rows that were added while the trigger was off, in the order of their ids."""
FIGURES = """
SELECT count(*), count(error), min(CASE WHEN error IS NULL THEN added_ms END), sum(CASE WHEN n IS NULL THEN 1 ELSE 0 END)
FROM command_outbox"""
"""Returns how many rows there are, how many of them are set aside, since when the oldest other one waits, and how many have no number."""
FAILED = "SELECT id, mailbox, command_id, added_ms, error FROM command_outbox WHERE error IS NOT NULL ORDER BY id LIMIT :most"
"""Returns rows that are set aside."""
TRIGGER = "SELECT count(*) FROM pg_trigger WHERE tgname = 'command_outbox_number' AND tgenabled <> 'D' AND tgrelid = to_regclass('command_outbox')"
"""Returns 1 if rows are numbered."""
MISSING = (
    "the database has no table command_outbox whose rows are numbered: run what `command-bus outbox ddl` prints, or "
    "command_bus.sql.metadata.create_all"
)


def is_missing(error: SQLAlchemyError) -> bool:
    """Return whether an error says that there is no table. PostgreSQL says it in the language of the server, so its code counts."""
    cause = getattr(error, "orig", None)
    code = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    return code == "42P01" or "no such table" in str(cause)
