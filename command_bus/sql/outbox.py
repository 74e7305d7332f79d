"""`Outbox`: a command leaves with the caller's transaction of a SQL database, or not at all.

`add` writes a row in that transaction. A relay (`command_bus.sql.relay`) sends what was committed, in the order of the commits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from sqlalchemy import Connection, Insert, insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from command_bus.bus import CommandBus
from command_bus.clock import wall_ms
from command_bus.errors import InvalidCommand, WrongTransaction
from command_bus.messages.message import Message
from command_bus.messages.options import DispatchOptions
from command_bus.messages.outgoing import Envelope, OutgoingMessage, RawEnvelope
from command_bus.sending.envelope_builder import EnvelopeBuilder, of_one_line, sendable
from command_bus.sql.outbox_table import OUTBOX, OutboxRow
from command_bus.sync.bus import SyncCommandBus

_MOST = 4_000
_ADDED = "INSERT INTO command_outbox ({}) VALUES ({})"


class Outbox:
    """Adds commands to the outbox of a database. It needs no connection to the server: the bus may be closed.

    Args:
        bus: Says settings, keys and classes. What its middleware does around a dispatch is not done here.
    """

    def __init__(self, bus: CommandBus | SyncCommandBus) -> None:
        self._builder = EnvelopeBuilder(bus.settings)

    def add(self, database: Any, command: Message[Any], **options: Unpack[DispatchOptions]) -> str:
        """Add a command to the transaction of a session or connection; return its command id. It is sent if that commits.

        A delay counts from now, an expiry from its acceptance by the bus.

        Args:
            database: A `Session`, `AsyncSession` (or a scoped one) or `Connection` of SQLAlchemy, or a connection of Django in `atomic`.
            command: To be sent.
            options: As of `dispatch`, but for `unique`.

        Raises:
            InvalidCommand: The command or an option is not what it may be.
            WrongTransaction: It is no such session, or a connection of Django that is not in `atomic`.
        """
        values = self._values(sendable(self._builder, command, options))
        if isinstance(database, Session | AsyncSession | scoped_session | async_scoped_session):
            database.add(OutboxRow(**values))
        elif isinstance(database, Connection):
            database.execute(insert(OUTBOX), values)
        elif isinstance(database, AsyncConnection):
            raise WrongTransaction("an AsyncConnection is awaited: await connection.execute(outbox.insert([command]))")
        elif not hasattr(database, "in_atomic_block"):
            raise WrongTransaction(f"{type(database).__name__} is neither a Session or Connection nor a connection of Django")
        elif not database.in_atomic_block:
            raise WrongTransaction("the connection is in no transaction: add within `with transaction.atomic():`")
        else:
            with database.cursor() as cursor:
                cursor.execute(_ADDED.format(", ".join(values), ", ".join(["%s"] * len(values))), [*values.values()])
        return str(values["command_id"])

    def insert(self, commands: Iterable[Message[Any] | Envelope[Any] | RawEnvelope]) -> Insert:
        """Return a statement that adds commands, in their order, for a connection or session of SQLAlchemy.

        Raises:
            InvalidCommand: A command or an option is not what it may be, there is none, or there are more than 4,000.
        """
        rows = [self._values(of_one_line(self._builder.of_item(each))) for each in commands]
        if not 1 <= len(rows) <= _MOST:
            raise InvalidCommand(
                f"{len(rows):,} commands: it takes 1 to {_MOST:,} at a time, as databases limit the values of a statement"
            )
        return insert(OUTBOX).values(rows)

    def _values(self, out: OutgoingMessage) -> dict[str, Any]:
        if out.unique is not None:
            raise InvalidCommand(
                f"{out.name!r} has a unique key, which an outbox does not know: dispatch it, or give it a command_id"
            )
        made, now = self._builder.build(out), wall_ms()
        return {
            "mailbox": made.mailbox,
            "command_id": made.command_id,
            "digest": made.digest if made.marked else None,
            "envelope": made.envelope,
            "flow": made.flow,
            "due_ms": now + made.delay_ms if made.delay_ms > 0 else -made.delay_ms,
            "added_ms": now,
        }
