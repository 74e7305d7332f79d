"""`OutboxRelay`: sends what committed transactions have left in an outbox, in the order of the commits, each command once.

    look: rows that are not taken yet → place: accepted by the bus, and noted there as taken, in one step → delete, after `keep` seconds

Each request to the bus names the state that the one before has left there, and a random token. So any number of relays may run, die and come back:
one whose knowledge is old changes nothing, and begins again. A row stays in the table for some seconds after it was taken. What the server loses
within these, in a failover say, it loses together with the note that it was taken, so that it is sent again, in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Row, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from command_bus.bus import CommandBus
from command_bus.clock import mono
from command_bus.errors import CommandBusError, InvalidSettings, OutboxMissing
from command_bus.randomness import JITTER, token
from command_bus.serialization.envelope import names_of
from command_bus.serialization.limits import printable
from command_bus.sql.outbox_table import (
    LOCK,
    NOW_RUNNING,
    NUMBER_REST,
    OLDEST_RUNNING,
    TRIGGER,
    deleting,
    rows_behind,
    setting_aside,
    still_there,
)
from command_bus.sql.tables import Statement
from command_bus.tasks import end_tasks
from command_bus.transport.mailboxes import mailbox_label, stands_in, type_of
from command_bus.transport.ports.sender import Placed, Taken
from command_bus.transport.submissions import NO_DIGEST, Admission, Submission

_log = logging.getLogger("command_bus.outbox")
_PAGE = 500
_MOST_BYTES = 1024 * 1024
_MOST_TAKEN = 20_000
"""Rows that are taken and not deleted yet, at most: then the relay waits for its deletes."""
_MOST_APART = 1_000
"""Rows of mailboxes that take none at the moment, at most: then the others wait, too."""
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0
_NUMBERS_EVERY = 60.0
_STANDBY = 1.0
_CLEARED = 2_000
_text = cache(text)
_SENT = (Admission.ACCEPTED, Admission.DUPLICATE)


class _Stale(Exception):
    """The state of a shard is another one than this relay knows."""


@dataclass(slots=True)
class _Shard:
    """The knowledge of one relay about the outbox in a shard.

    Attributes:
        value: The state that the next request must expect; None before the first look.
        taken: Rows that were accepted, with the local time of the answer, the oldest first.
        deleted: Rows that are deleted in the database, and still noted in the shard.
        asked_at: When the last request was sent that had the answer of this relay.
    """

    value: str | None = None
    taken: deque[tuple[float, int]] = field(default_factory=deque[tuple[float, int]])
    unconfirmed: list[int] = field(default_factory=list[int])
    deleted: list[int] = field(default_factory=list[int])
    asked_at: float = 0.0


@dataclass(slots=True)
class _Waiting:
    """Rows of a mailbox that takes none at the moment.

    Attributes:
        rows: In their order.
        until: Local time when they are sent again.
        seconds: The last wait.
    """

    rows: deque[Row[Any]] = field(default_factory=deque[Row[Any]])
    until: float = 0.0
    seconds: float = _FIRST_WAIT / 2


class OutboxRelay:
    """Relays the outbox of a database: `async with OutboxRelay(bus, engine):`, or `await relay.run()`.

    While the database or the server is away it waits and goes on later. On PostgreSQL one of several works, and another one follows it.

    Args:
        bus: Open while this runs. Its settings must name the same mailboxes as those of who adds.
        engine: Of the database.
        name: Of this outbox, where several databases have one for the same bus.
        keep: Seconds for which a row outlives its acceptance. What the server loses within them is sent again.
        poll: Seconds between looks while nothing comes.

    Attributes:
        sent: Commands that were accepted.
        again: Rows that this relay had sent, and that the server has lost.

    Raises:
        InvalidSettings: A number or the name is not what it may be, or the database is neither PostgreSQL nor SQLite.
    """

    def __init__(
        self, bus: CommandBus, engine: AsyncEngine, *, name: str = "default", keep: float = 5.0, poll: float = 0.02
    ) -> None:
        if engine.dialect.name not in ("postgresql", "sqlite"):
            raise InvalidSettings(f"an outbox is in PostgreSQL or SQLite, not in {engine.dialect.name}")
        if not name.isidentifier() or not 0 <= keep <= 3600 or not 0.001 <= poll <= 60:
            raise InvalidSettings(
                f"OutboxRelay(name={name!r}, keep={keep!r}, poll={poll!r}): a word; 0 to 3,600 seconds; 0.001 to 60 seconds"
            )
        self._bus, self._engine, self._name, self._keep, self._poll = bus, engine, name, keep, poll
        self._dialect = engine.dialect.name
        self._is_numbered = self._dialect == "postgresql"
        self.sent = self.again = 0
        self._task: asyncio.Task[None] | None = None
        self._connection: AsyncConnection
        self._is_rested = asyncio.Event()
        self._forget()

    def _forget(self) -> None:
        """Know nothing, as at the beginning."""
        self._shards: list[_Shard] = []
        self._taken: set[int] = set()
        self._apart: dict[str, _Waiting] = {}
        self._floor = 0
        self._raise: tuple[int, int] | None = None
        self._numbered_at = 0.0

    async def __aenter__(self) -> Self:
        async with self._engine.connect() as connection:
            self._connection = connection
            await self._check()
        self._task = asyncio.get_running_loop().create_task(self.run(), name=f"command_bus.outbox {self._name}")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._task is not None:
            failed = self._task.exception() if self._task.done() and not self._task.cancelled() else None
            await end_tasks([self._task])
            if failed is not None and kind is None:
                raise failed

    async def drained(self, timeout: float = 30.0) -> None:
        """Wait until all that was committed before is sent; what is set aside, and what waits for a full entity, excepted.

        Raises:
            TimeoutError: That took longer.
            CommandBusError: The relay has ended by an error.
        """
        for _ in range(2):  # the look that goes on may have begun before the commit
            self._is_rested.clear()
            rested = asyncio.ensure_future(self._is_rested.wait())
            tasks = {rested} if self._task is None else {rested, self._task}
            done, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            await end_tasks([rested])
            if self._task in done and self._task is not None:
                self._task.result()
            if rested not in done:
                raise TimeoutError("the outbox is not drained in time")

    async def run(self) -> None:
        """Relay until this is cancelled.

        Raises:
            OutboxMissing: There is no table, or nothing numbers its rows.
            InvalidSettings: The mailboxes of an entity type are others than the namespace has recorded.
        """
        wait = _FIRST_WAIT
        while True:
            try:
                async with self._engine.connect() as connection:
                    self._connection = await connection.execution_options(isolation_level="AUTOCOMMIT")
                    await self._check()
                    while not await self._is_first():
                        self._is_rested.set()
                        await asyncio.sleep(_STANDBY)
                    while True:
                        try:
                            is_idle = await self._round()
                        except _Stale:
                            self._forget()
                            await asyncio.sleep(self._keep * JITTER.uniform(0.1, 1.0) if not await self._is_first() else 0)
                            continue
                        wait = _FIRST_WAIT
                        if is_idle:
                            self._is_rested.set()
                            await asyncio.sleep(self._poll)
            except (InvalidSettings, OutboxMissing):
                raise
            except (SQLAlchemyError, OSError, CommandBusError) as error:
                _log.warning("the outbox %s waits %.1f s: %s", self._name, wait, printable(str(error).partition("\n")[0]))
                self._forget()  # the lock is gone with the connection
                await asyncio.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT)

    # The database.

    async def _ask(self, statement: Statement | str, **values: Any) -> Sequence[Row[Any]]:
        sql, given = statement if isinstance(statement, tuple) else (statement, values)
        return (await self._connection.execute(_text(sql), given)).all()

    async def _check(self) -> None:
        try:
            await self._ask(rows_behind(self._dialect, 0, 1))
            has_trigger = not self._is_numbered or (await self._ask(TRIGGER))[0][0] == 1
        except SQLAlchemyError as error:
            if "command_outbox" not in str(error).partition("\n")[0]:
                raise
            has_trigger = False
        if not has_trigger:
            raise OutboxMissing(
                "the database has no table command_outbox whose rows are numbered: run what `command-bus outbox ddl` prints, or "
                "command_bus.sql.metadata.create_all"
            )

    async def _is_first(self) -> bool:
        """Return whether this is the relay that works. That saves work; nothing depends on it."""
        return not self._is_numbered or bool((await self._ask(LOCK, name=self._name))[0][0])

    async def _look(self) -> list[Row[Any]]:
        """Return rows that are not taken and do not wait apart, in the order of their commits.

        A row may become visible behind others with higher numbers, of other mailboxes. So the look begins at a floor below which all is known: the
        highest number of an earlier look, once all transactions have ended that had begun to write by then.
        """
        ended = (await self._ask(OLDEST_RUNNING))[0][0] if self._raise is not None and self._is_numbered else 0
        apart = {row.id for each in self._apart.values() for row in each.rows}
        fresh: list[Row[Any]] = []
        reached = self._floor
        while len(fresh) < _PAGE:
            page = await self._ask(rows_behind(self._dialect, reached, _PAGE))
            fresh += [row for row in page if row.id not in self._taken and row.id not in apart]
            if page:
                reached = page[-1][0]
            if len(page) < _PAGE:
                break
        if self._raise is not None and self._raise[1] < ended and reached >= self._raise[0]:
            self._floor, self._raise = self._raise[0], None
        if not self._is_numbered:
            self._floor = reached  # one writes at a time
        elif self._raise is None and reached > self._floor:
            self._raise = reached, (await self._ask(NOW_RUNNING))[0][0]
        return fresh

    # The bus.

    async def _round(self) -> bool:
        """Look, place and delete once; return whether there was nothing to do."""
        if not self._shards:
            await self._begin()
        if self._is_numbered and mono() >= self._numbered_at + _NUMBERS_EVERY:
            self._numbered_at = mono()
            if found := await self._ask(NUMBER_REST):
                _log.warning("the outbox %s: %d rows were added without their trigger, numbered now", self._name, len(found))
        is_full = len(self._taken) >= _MOST_TAKEN or sum(len(each.rows) for each in self._apart.values()) >= _MOST_APART
        rows = [*self._due(), *([] if is_full else await self._look())]
        for shard in range(len(self._shards)):
            await self._place_all(shard, [row for row in rows if self._bus.session.transport.shard_of(row.mailbox) == shard])
        deleted = [await self._delete(number, shard) for number, shard in enumerate(self._shards)]
        return not rows and not any(deleted)

    async def _begin(self) -> None:
        transport = self._bus.session.transport
        found = [await transport.outboxes.look(self._name, shard) for shard in range(transport.shards)]
        now = mono()
        self._shards = [_Shard(each.value, deque((now, row) for row in sorted(each.rows))) for each in found]
        self._taken = {row for each in found for row in each.rows}
        for shard in self._shards:
            rows = [row for _, row in shard.taken]
            there: set[int] = set()
            for at in range(0, len(rows), _PAGE):
                there |= {row[0] for row in await self._ask(still_there(self._dialect, rows[at : at + _PAGE]))}
            shard.deleted = [row for row in rows if row not in there]
            shard.taken = deque((at, row) for at, row in shard.taken if row in there)

    def _due(self) -> list[Row[Any]]:
        """Return rows of mailboxes that took none, and are asked again."""
        now, found = mono(), list[Row[Any]]()
        for each in self._apart.values():
            if each.rows and each.until <= now:
                found += each.rows
                each.rows.clear()
        return found

    async def _place_all(self, shard: int, rows: Sequence[Row[Any]]) -> None:
        """Send rows to their shard, in requests that are not too large."""
        part, size = list[tuple[Row[Any], Submission]](), 0
        for row in rows:
            waits = self._apart.get(row.mailbox)
            if waits is not None and (waits.rows or waits.until > mono()):
                waits.rows.append(row)
                continue
            submission = await self._submission(row)
            if submission is None:
                continue
            if part and (len(part) == _PAGE or size + len(row.envelope) > _MOST_BYTES):
                await self._place(shard, part)
                part, size = [], 0
            part.append((row, submission))
            size += len(row.envelope)
        if part:
            await self._place(shard, part)

    async def _submission(self, row: Row[Any]) -> Submission | None:
        """Return the command of a row; None if it cannot be sent."""
        session, entity_type = self._bus.session, type_of(row.mailbox)
        agreements = session.transport.agreements
        policy = None if entity_type is None else agreements.agreed(entity_type)
        if entity_type is not None and policy is None:
            policy = await agreements.agree(entity_type, mono() + session.settings.dispatch_timeout)
        command_id, _, of_type, of_id = names_of(row.envelope[2:])
        if not stands_in(row.mailbox, of_type or None, of_id or None, command_id, policy):
            await self._set_aside(
                row, f"{mailbox_label(row.mailbox)} is no mailbox of {of_type}:{of_id}: who adds has other settings"
            )
            return None
        depth = session.settings.entity(entity_type).max_depth or session.settings.max_depth
        digest = NO_DIGEST if row.digest is None else bytes(row.digest)
        return Submission(
            row.mailbox,
            row.command_id,
            bytes(row.envelope),
            digest,
            depth,
            -row.due_ms,
            marked=row.digest is not None,
            flow=row.flow,
        )

    async def _place(self, number: int, rows: Sequence[tuple[Row[Any], Submission]]) -> None:
        shard, shard_rows = self._shards[number], [(row.id, submission) for row, submission in rows]
        placed, asked_at = await self._placed(number, shard, shard_rows)
        shard.value, shard.asked_at = placed.value, asked_at
        now = mono()
        if placed.is_confirmed:
            shard.taken += ((now, row) for row in shard.unconfirmed)
            shard.unconfirmed.clear()
        for (row, _), admission in zip(rows, placed.admissions, strict=True):
            if admission in _SENT:
                self.sent += admission is Admission.ACCEPTED
                self._taken.add(row.id)
                if placed.is_confirmed:
                    shard.taken.append((now, row.id))
                else:
                    shard.unconfirmed.append(row.id)
                self._apart.pop(row.mailbox, None)
            elif admission is Admission.CONFLICT:
                await self._set_aside(row, f"the command id {row.command_id} was used with other fields")
            else:
                self._let_wait(row, admission, now)

    def _let_wait(self, row: Row[Any], admission: Admission, now: float) -> None:
        waits = self._apart.setdefault(row.mailbox, _Waiting())
        if not waits.rows:
            waits.seconds = min(2 * waits.seconds, _LONGEST_WAIT)
            waits.until = now + waits.seconds
            if waits.seconds == _LONGEST_WAIT:
                _log.warning(
                    "the outbox %s: %s takes nothing (%s)", self._name, mailbox_label(row.mailbox), admission.name.lower()
                )
        waits.rows.append(row)

    async def _placed(self, number: int, shard: _Shard, rows: Sequence[tuple[int, Submission]]) -> tuple[Placed, float]:
        """Send a request; return the answer, and when it was sent.

        Raises:
            _Stale: The state is another one.
        """
        expected, new, deleted, asked_at = shard.value or "", token(12).hex(), shard.deleted[:_CLEARED], mono()
        # Where there is no answer all begins again: what was carried out is noted by then, or meets another state when it comes later.
        answer = await self._bus.session.transport.outboxes.place(self._name, number, expected, new, rows, deleted)
        if isinstance(answer, Taken):
            self.again += len(self._taken - answer.rows)
            raise _Stale
        del shard.deleted[: len(deleted)]
        self._taken.difference_update(deleted)
        return answer, asked_at

    async def _delete(self, number: int, shard: _Shard) -> bool:
        """Delete rows that were taken long enough ago, if the server has answered since that it still has them; return whether there are any."""
        before = mono() - self._keep
        is_due = bool(shard.taken) and shard.taken[0][0] <= before
        if (is_due and shard.taken[0][0] > shard.asked_at - self._keep) or (shard.deleted and not is_due) or shard.unconfirmed:
            await self._place(number, [])
        ids: list[int] = []
        while shard.taken and shard.taken[0][0] <= shard.asked_at - self._keep and len(ids) < _PAGE:
            ids.append(shard.taken.popleft()[1])
        if ids:
            await self._ask(deleting(self._dialect, ids))
            shard.deleted += ids
        return bool(ids)

    async def _set_aside(self, row: Row[Any], why: str) -> None:
        _log.error("the outbox %s: the command %s is set aside: %s", self._name, printable(row.command_id), printable(why))
        await self._ask(setting_aside(self._dialect, row.id, why))
