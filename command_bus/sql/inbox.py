"""`Inbox`: an effect in a SQL database happens once, however often its command starts.

One transaction has all of it: the fence of the entity, whose row stays locked to the end, a look for the command id, the effect, and the id with
the reply and the commands that were sent. A start that is repeated finds the id. A start that lost its entity finds a higher fence, or the id
when it commits.

All kinds of sessions run one code, which blocks: those that are awaited run it by their `run_sync`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar, cast

from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from command_bus.clock import duration_ms, wall_ms
from command_bus.errors import BadResult, InboxConflict, InvalidCommand, InvalidSettings, WrongTransaction
from command_bus.messages.context import CommandContext, RunMemory
from command_bus.messages.snooze import Snooze
from command_bus.sending.kept_run import KeptRun
from command_bus.serialization.envelope import WireEnvelope
from command_bus.serialization.limits import DEFAULT_LIMITS
from command_bus.sql.tables import Statement, beginning, fence_of, keeping, removing
from command_bus.transport.mailboxes import encoded

R = TypeVar("R")
Row: TypeAlias = Sequence[Any]
Execute: TypeAlias = Callable[[Statement], Sequence[Row]]

_LONGEST_WAIT = 60.0
"""Seconds of one wait for a clock that is behind; there are ten at most."""
_FIRST = "Enter the block of the inbox first, and begin and commit nothing yourself"
_EVERY = 100
"""Commands after which old rows are removed: twice as many, so that a full table gets smaller."""


Database: TypeAlias = Session | AsyncSession | Connection | AsyncConnection | Any
"""A session or connection of SQLAlchemy, or a connection of Django: `django.db.connection`, or `django.db.connections["other"]`."""


class StaleFence(Snooze):
    """A later start has committed: this one did nothing, and is put off.

    Mostly its worker has lost the entity, and nothing that it says counts. If not, the server's clock fell back, in a failover say: it waits until
    that has caught up, ten minutes at most, and fails then.
    """


@dataclass(eq=False)
class _Member:
    """One command of a block."""

    memory: RunMemory
    fence: int
    packed: bytes | None = None
    is_repeated: bool = False
    refusal: Exception | None = None

    @property
    def is_fresh(self) -> bool:
        return self.refusal is None and not self.is_repeated

    def recognise(self, kept: bytes) -> None:
        """Find what its first run has left."""
        try:
            self.packed, self.is_repeated = self.memory.restore(kept), True
        except (InboxConflict, BadResult) as error:
            self.refusal = error

    def keep(self, reply: Any) -> None:
        if not self.is_fresh:
            raise InvalidCommand(f"{self.memory.key} runs again, or is refused: its first reply stands")
        self.packed = self.memory.packed_reply(reply)

    @property
    def reply(self) -> Any:
        return None if self.packed is None else self.memory.reply_of(self.packed)


class Block:
    """One transaction in which effects happen once: `with` for what blocks, `async with` for what is awaited.

    Args:
        inbox: Says for how long rows are kept.
        database: Runs the statements.
        contexts: Those of the commands, as their handlers got them.
    """

    def __init__(self, inbox: Inbox, database: Database, contexts: Sequence[CommandContext]) -> None:
        if any(each.state is not None for each in contexts):
            raise InvalidCommand(
                "the handler has the state of its entity, which a repeat would change again: keep its data in the database, or in the state"
            )
        self._inbox, self._database = inbox, database
        self._members = [_Member(each.memory or _by_hand(each), each.fence) for each in contexts]

    def __enter__(self) -> Self:
        if isinstance(self._database, AsyncSession | AsyncConnection):
            raise WrongTransaction(f"{type(self._database).__name__} is awaited: write `async with`")
        return self._enter(self._database)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        return self._transaction.__exit__(kind, error, trace)

    async def __aenter__(self) -> Self:
        if not isinstance(self._database, AsyncSession | AsyncConnection):
            raise WrongTransaction(f"{type(self._database).__name__} blocks: write `with`, in a handler that is a plain function")
        return await self._database.run_sync(self._enter)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await cast("AsyncSession", self._database).run_sync(lambda _: self._transaction.__exit__(kind, error, trace))

    def _enter(self, database: Any) -> Self:
        self._transaction = self._opened(database)
        return self._transaction.__enter__()

    @contextmanager
    def _opened(self, database: Any) -> Generator[Self]:
        with _transaction(database) as (dialect, execute, home):
            self._check_first(home)
            self._begin(dialect, execute)
            yield self
            self._end(dialect, execute)
        self._note_commit(home)

    def _begin(self, dialect: str, execute: Execute) -> None:
        """Raise the fences, and find the commands that are known."""
        fences: dict[str, int] = {}
        for each in self._members:
            if place := each.memory.place:
                fences[place] = max(each.fence, fences.get(place, 0))
        rows = [row for each in beginning(dialect, fences, [each.memory.key for each in self._members]) for row in execute(each)]
        raised = {row[0] for row in rows if row[1] is None}
        known = {row[0]: row[1] for row in rows if row[1] is not None}
        for each in self._members:
            place, kept = each.memory.place, known.get(each.memory.key)
            if kept is not None:
                each.recognise(bytes(kept))
            elif place and (place not in raised or each.fence < fences[place]):
                highest = fences[place] if place in raised else execute(fence_of(place))[0][0]
                each.refusal = _stale(highest - each.fence)

    def _end(self, dialect: str, execute: Execute) -> None:
        """Keep the commands that are new."""
        fresh = [each for each in self._members if each.is_fresh]
        if not fresh:
            return
        rows = {each.memory.key: each.memory.pack(each.packed) for each in fresh}
        if sum(len(execute(each)) for each in keeping(dialect, rows, wall_ms())) < len(fresh):
            raise _stale(0)
        if self._inbox.is_time(len(rows)):
            execute(self._inbox.removal(dialect, 2 * max(_EVERY, len(rows))))

    def _check_first(self, home: object) -> None:
        """Refuse the second block of a run: it would find the id that the first one has kept, and skip its effect."""
        for each in self._members:
            if home in each.memory.found_in:
                raise WrongTransaction(f"{each.memory.key} had its block: a handler has one block of an inbox in each database")

    def _note_commit(self, home: object) -> None:
        for each in self._members:
            if each.refusal is None:
                each.memory.found_in.add(home)


class Once(Block):
    """The block of one command; see `Inbox.once`."""

    def _begin(self, dialect: str, execute: Execute) -> None:
        super()._begin(dialect, execute)
        if (refusal := self._members[0].refusal) is not None:
            raise refusal

    @property
    def repeated(self) -> bool:
        """True if the effect is there already: return `reply`, and do nothing."""
        return self._members[0].is_repeated

    @property
    def reply(self) -> Any:
        """The reply that was remembered, of the type that the command promises; None if none was.

        Raises:
            BadResult: The type has changed since.
        """
        return self._members[0].reply

    def remember(self, reply: R) -> R:
        """Keep the reply with the effect, for starts that are repeated; return it.

        Raises:
            BadResult: It is not what the command promises: nothing is committed.
            InvalidCommand: The effect was there already.
        """
        self._members[0].keep(reply)
        return reply


class Batch(Block):
    """The block of several commands; see `Inbox.batch`."""

    @property
    def fresh(self) -> list[int]:
        """The places of the commands whose effects are to be made."""
        return [index for index, each in enumerate(self._members) if each.is_fresh]

    def results(self, replies: Mapping[int, Any] | None = None) -> list[Any]:
        """Return what became of each command, in order, and keep the replies.

        A reply, the first one of a command that is known, or an error of one that is not to be settled: `StaleFence`, `InboxConflict`.

        Args:
            replies: Those of the fresh commands, by place; one that is missing is None.

        Raises:
            BadResult: One is not what its command promises: nothing is committed.
            InvalidCommand: One is of a command that is not fresh.
        """
        found = dict(replies or {})
        for index, reply in found.items():
            self._members[index].keep(reply)
        return [found.get(index) if each.is_fresh else each.refusal or each.reply for index, each in enumerate(self._members)]


class Inbox:
    """Makes effects in a SQL database happen once. One for a process, or several with the same tables.

    Args:
        keep: For how long a command is known: `"30 days"`, or a number of seconds. So long it may start again, from a backup of the server say.

    Raises:
        InvalidSettings: There is no such time.
    """

    def __init__(self, *, keep: str | float = "30 days") -> None:
        try:
            self._keep_ms = duration_ms(keep)
        except ValueError as error:
            raise InvalidSettings(f"Inbox(keep={keep!r}): keep {error}") from None
        self._count = _EVERY

    def once(self, database: Database, context: CommandContext) -> Once:
        """Return a block whose effects happen once: `async with inbox.once(session, context) as once:`.

        It begins a transaction and commits it. Send by `context.send` within it: what the first run sends there, a repeat sends, too. If an error
        leaves it, a `Reject` too, it is rolled back and nothing is known of it.

        Args:
            database: A `Session`, `AsyncSession`, `Connection`, `AsyncConnection`, or a connection of Django.
            context: As the handler got it.

        Raises:
            WrongTransaction: A transaction has begun already, or `with` and `async with` are mixed up.
            StaleFence: A later start of its entity, or another one of the same command, has committed.
            InboxConflict: The command id is known with other fields.
            BadResult: What is kept of the command cannot be read: it is encrypted, and the cipher is another.
            InvalidCommand: The handler has the state of its entity: the two are not committed together.
            InvalidSettings: The database is neither PostgreSQL nor SQLite.
        """
        return Once(self, database, [context])

    def batch(self, database: Database, contexts: Sequence[CommandContext]) -> Batch:
        """Return the block of a batch: one transaction for all of its commands; see `once`.

        What a stale fence or a conflict is of one command, is its result; the others go on.
        """
        return Batch(self, database, contexts)

    def remove_old(self, database: Session | Connection | Any, most: int = 10_000) -> int:
        """Remove commands that need not be known any more, in a transaction of its own; return how many. Blocks do it now and then.

        Raises:
            WrongTransaction: A transaction has begun already.
        """
        with _transaction(database) as (dialect, execute, _):
            return len(execute(self.removal(dialect, most)))

    def is_time(self, commands: int) -> bool:
        """Return whether old rows are to be removed, now that so many commands more are kept."""
        self._count += commands
        if self._count < _EVERY:
            return False
        self._count = 0
        return True

    def removal(self, dialect: str, most: int) -> Statement:
        """Return what removes old rows."""
        return removing(dialect, wall_ms() - self._keep_ms, most)


def _stale(behind: int) -> StaleFence:
    """Return the refusal of a start that is so many microseconds behind another one; 0: another start of the command has just committed."""
    what = "its effect has just been committed by another start" if not behind else "a later start of its entity has committed"
    return StaleFence(min(behind / 1_000_000, _LONGEST_WAIT), reason=what)


@contextmanager
def _transaction(database: Any) -> Generator[tuple[str, Execute, object]]:
    """Run a transaction of something that blocks; give the kind of its database, what executes a statement, and what the database is known by."""
    if isinstance(database, Session | Connection):
        if database.in_transaction():
            raise WrongTransaction(f"a transaction has begun, by a query say, which read before the entity was locked. {_FIRST}")
        with database.begin() as transaction:
            connection = database.connection() if isinstance(database, Session) else database
            _check_commits(connection)

            def execute(statement: Statement) -> Sequence[Row]:
                if not transaction.is_active:
                    raise WrongTransaction(f"the transaction of the block was ended within it. {_FIRST}")
                return connection.execute(_text(statement[0]), statement[1]).all()

            yield connection.dialect.name, execute, connection.engine.pool
        return
    if not hasattr(database, "alias"):
        raise WrongTransaction(f"{type(database).__name__} is neither a Session or Connection nor a connection of Django")
    from django.db.transaction import atomic

    with ExitStack() as stack:
        try:
            stack.enter_context(cast("Any", atomic(using=database.alias, durable=True)))
        except RuntimeError as error:  # it is within another one
            raise WrongTransaction(f"{error} {_FIRST}") from None
        yield database.vendor, partial(_execute_by_cursor, database), database.alias


def _check_commits(connection: Connection) -> None:
    if connection.dialect.name == "postgresql" and getattr(connection.connection.dbapi_connection, "autocommit", False) is True:
        raise WrongTransaction("the engine commits each statement by itself: make one without isolation_level='AUTOCOMMIT'")


_text = cache(text)


@cache
def _for_cursors(sql: str) -> str:
    return re.sub(r":(\w+)", r"%(\1)s", sql)


def _execute_by_cursor(database: Any, statement: Statement) -> Sequence[Row]:
    with database.cursor() as cursor:
        cursor.execute(_for_cursors(statement[0]), statement[1])
        rows: list[Row] = cursor.fetchall()
        return rows


def _by_hand(context: CommandContext) -> RunMemory:
    """Return the memory of a context that no worker has made: for unit tests of handlers, where replies are plain data."""
    envelope = WireEnvelope(context.command_id, context.name, context.entity_type, context.entity_id, b"\x80")
    return KeptRun(envelope, Any, DEFAULT_LIMITS, mailbox=f"{context.entity_type}:{encoded(context.entity_id or '')}")
