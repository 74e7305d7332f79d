"""SQL databases: effects that happen once. Needs the extra `sql`: SQLAlchemy 2, and psycopg 3 for PostgreSQL."""

from __future__ import annotations

from command_bus.errors import InboxConflict, MissingExtra, WrongTransaction

try:
    from command_bus.sql.inbox import Batch, Inbox, Once, StaleFence
    from command_bus.sql.tables import metadata
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "sqlalchemy":
        raise
    raise MissingExtra("command_bus.sql needs SQLAlchemy: pip install 'command-bus[sql]'") from error

__all__ = ["Batch", "Inbox", "InboxConflict", "Once", "StaleFence", "WrongTransaction", "metadata"]
