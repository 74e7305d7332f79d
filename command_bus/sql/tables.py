"""Tables of the inbox, and the statements that use them: on PostgreSQL one for all commands of a block, on SQLite one for each.

`command_fence` has the highest fence that committed, a row for each entity. `command_inbox` has the commands whose effect committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Column, Index, LargeBinary, MetaData, Table, Text

from command_bus.errors import InvalidSettings

Statement = tuple[str, Mapping[str, Any]]
"""SQL with `:name` for its values, and these."""

metadata = MetaData()
"""The tables, for `metadata.create_all(engine)`, or for Alembic: `target_metadata = [my_metadata, metadata]`."""

Table(
    "command_fence",
    metadata,
    Column("mailbox", Text, primary_key=True),
    Column("fence", BigInteger, nullable=False),
    postgresql_with={"fillfactor": 70},  # a row changes with each command of its entity: the next version fits the same page
)
Table(
    "command_inbox",
    metadata,
    Column("command_id", Text, primary_key=True),
    Column("kept", LargeBinary, nullable=False),
    Column("done_ms", BigInteger, nullable=False),
    Index("command_inbox_done_ms", "done_ms"),
)

_RAISED = "ON CONFLICT (mailbox) DO UPDATE SET fence = excluded.fence WHERE command_fence.fence <= excluded.fence RETURNING mailbox, NULL"
_BEGIN = f"""
WITH raised AS (
    INSERT INTO command_fence (mailbox, fence)
    SELECT * FROM unnest(CAST(:mailboxes AS text[]), CAST(:fences AS bigint[])) {_RAISED}
)
SELECT mailbox, CAST(NULL AS bytea) FROM raised
UNION ALL SELECT command_id, kept FROM command_inbox WHERE command_id = ANY(CAST(:ids AS text[]))"""  # noqa: S608 - nothing is put in but what stands here
_KEEP_ALL = """
INSERT INTO command_inbox (command_id, kept, done_ms)
SELECT command_id, kept, CAST(:now AS bigint) FROM unnest(CAST(:ids AS text[]), CAST(:rows AS bytea[])) AS given (command_id, kept)
ON CONFLICT DO NOTHING RETURNING command_id"""
_RAISE = f"INSERT INTO command_fence (mailbox, fence) VALUES (:mailbox, :fence) {_RAISED}"  # noqa: S608 - as above
_FIND = "SELECT command_id, kept FROM command_inbox WHERE command_id = :id"
_KEEP = (
    "INSERT INTO command_inbox (command_id, kept, done_ms) VALUES (:id, :row, :now) ON CONFLICT DO NOTHING RETURNING command_id"
)
_FENCE = "SELECT fence FROM command_fence WHERE mailbox = :mailbox"
_OLD = "SELECT command_id FROM command_inbox WHERE done_ms < :before ORDER BY done_ms LIMIT :most"
_REMOVE = "DELETE FROM command_inbox WHERE command_id IN ({}) RETURNING command_id"


def takes_all(dialect: str) -> bool:
    """Return whether a database takes all commands of a block in one statement.

    Raises:
        InvalidSettings: It is another than PostgreSQL or SQLite.
    """
    if dialect not in ("postgresql", "sqlite"):
        raise InvalidSettings(f"an inbox is in PostgreSQL or SQLite, not in {dialect}")
    return dialect == "postgresql"


def beginning(dialect: str, fences: Mapping[str, int], ids: Sequence[str]) -> Iterator[Statement]:
    """Yield what raises fences and looks for ids.

    Its rows are `(mailbox, None)` of a fence that was not higher before, and `(command id, kept)` of an id that is there. Fences are raised in
    the order of their mailboxes, so that two blocks do not wait for each other.
    """
    mailboxes = sorted(fences)
    if takes_all(dialect):
        yield _BEGIN, {"mailboxes": mailboxes, "fences": [fences[each] for each in mailboxes], "ids": list(ids)}
        return
    for mailbox in mailboxes:
        yield _RAISE, {"mailbox": mailbox, "fence": fences[mailbox]}
    for each in ids:
        yield _FIND, {"id": each}


def fence_of(mailbox: str) -> Statement:
    """Return what reads the fence of a mailbox."""
    return _FENCE, {"mailbox": mailbox}


def keeping(dialect: str, rows: Mapping[str, bytes], now: int) -> Iterator[Statement]:
    """Yield what keeps commands with their rows; it returns the ids of those that were not there yet."""
    if takes_all(dialect):
        yield _KEEP_ALL, {"ids": [*rows], "rows": [*rows.values()], "now": now}
        return
    for command_id, row in rows.items():
        yield _KEEP, {"id": command_id, "row": row, "now": now}


def removing(dialect: str, before: int, most: int) -> Statement:
    """Return what removes rows that are older, and returns their ids; another that does the same meanwhile takes others."""
    return _REMOVE.format(_OLD + " FOR UPDATE SKIP LOCKED" * takes_all(dialect)), {"before": before, "most": most}
