"""SQL databases: effects that happen once, and commands that leave with a transaction.

Needs the extra `sql`: SQLAlchemy 2, and psycopg 3 for PostgreSQL.
"""

from __future__ import annotations

from command_bus.errors import InboxConflict, MissingExtra, OutboxUnavailable, WrongTransaction

try:
    from command_bus.sql.inbox import Batch, Inbox, Once, StaleFence
    from command_bus.sql.outbox import Outbox
    from command_bus.sql.relay import OutboxRelay
    from command_bus.sql.tables import metadata
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "sqlalchemy":
        raise
    raise MissingExtra("command_bus.sql needs SQLAlchemy: pip install 'command-bus[sql]'") from error

__all__ = [
    "Batch",
    "Inbox",
    "InboxConflict",
    "Once",
    "Outbox",
    "OutboxRelay",
    "OutboxUnavailable",
    "StaleFence",
    "WrongTransaction",
    "metadata",
]  # fmt: skip
