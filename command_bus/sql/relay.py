"""`OutboxRelay`: sends what committed transactions have left in an outbox, in the order of the commits, each command once.

    look: rows that are not taken yet → place: accepted by the bus, and noted there as taken, in one step → delete, after `keep` seconds

Each request to the bus names the state that the one before has left there, and a random token. So any number of relays may run, die and come back:
one whose knowledge is old changes nothing, and begins again. A row stays in the table for some seconds after it was taken. What the server loses
within these, in a failover say, it loses together with the note that it was taken, so that it is sent again, in order.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Row, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from command_bus.bus import CommandBus
from command_bus.clock import mono, wall_ms
from command_bus.errors import CommandBusError, InvalidSettings, OutboxUnavailable, TooManyEntityTypes
from command_bus.observer import RelayFigures, outward_of
from command_bus.randomness import JITTER, token
from command_bus.serialization.envelope import names_of
from command_bus.serialization.limits import printable
from command_bus.session import is_answered
from command_bus.sql.outbox_table import (
    LOCK,
    MISSING,
    NUMBER_REST,
    SNAPSHOT,
    TRIGGER,
    deleting,
    is_missing,
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
_MOST_BYTES, _MOST_READ = 1024 * 1024, 8 * 1024 * 1024
"""Bytes of a request to the bus, and of a page of rows, about."""
_MOST_TAKEN = 100_000
"""Rows that are taken and not deleted yet, at most: then the relay waits for its deletes."""
_MOST_APART = 1_000
"""Rows of mailboxes that take none at the moment, at most: then no more rows of these are read."""
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0
_NUMBERS_EVERY = 60.0
_STANDBY = 1.0
_TURN_WITHIN = 10.0
"""Seconds without a look that succeeded after which a relay does not count as ready."""
_SILENT = 30.0
"""Seconds without an answer after which a connection of the database is given up."""
_CLEARED = 2_000
_SENT = (Admission.ACCEPTED, Admission.DUPLICATE)
_text = cache(text)
_Place = tuple[int, str]
"""Row id and command id."""


def _key(row: int, command_id: str) -> str:
    """Return what a row is noted by. Its id alone comes again where a table is made again, or in another database."""
    return f"{row}:{blake2b(command_id.encode(), digest_size=8).hexdigest()}"


class _Stale(Exception):
    """The state of a shard is another one than this relay knows."""


@dataclass(slots=True)
class _Shard:
    """The knowledge of one relay about the outbox in a shard.

    Attributes:
        value: The state that the next request must expect.
        taken: Rows that were accepted, with the local time of the answer, the oldest first.
        unconfirmed: Rows that were accepted, and that too few replicas have.
        deleted: Keys of rows that are deleted in the database, and still noted in the shard.
        asked_at: When the last request was sent that had the answer of this relay.
    """

    value: str
    taken: deque[tuple[float, _Place]] = field(default_factory=deque[tuple[float, _Place]])
    unconfirmed: list[_Place] = field(default_factory=list[_Place])
    deleted: list[str] = field(default_factory=list[str])
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
        keep: Seconds for which a row outlives its acceptance. What the server loses within them is sent again. At most 100,000 rows are kept so.
        poll: Seconds between looks while nothing comes.

    Attributes:
        bus: The one given.
        sent: Commands that were accepted.
        again: Rows that this relay had sent, and that the server has lost.

    Raises:
        InvalidSettings: A number or the name is not what it may be, or the database is neither PostgreSQL nor SQLite in a file.
    """

    def __init__(
        self, bus: CommandBus, engine: AsyncEngine, *, name: str = "default", keep: float = 5.0, poll: float = 0.02
    ) -> None:
        self._dialect = engine.dialect.name
        if self._dialect not in ("postgresql", "sqlite"):
            raise InvalidSettings(f"an outbox is in PostgreSQL or SQLite, not in {self._dialect}")
        if self._dialect == "sqlite" and engine.url.database in (None, "", ":memory:"):
            raise InvalidSettings(
                "an outbox in SQLite is in a file: in memory, relay and transactions would share one connection"
            )
        if not name.isidentifier() or not 0 <= keep <= 3600 or not 0.001 <= poll <= 60:
            raise InvalidSettings(
                f"OutboxRelay(name={name!r}, keep={keep!r}, poll={poll!r}): a word; 0 to 3,600 seconds; 0.001 to 60 seconds"
            )
        self.bus, self._engine, self._name, self._keep, self._poll = bus, engine, name, keep, poll
        self._is_numbered = self._dialect == "postgresql"
        self.sent = self.again = 0
        self._set_aside_count, self._is_working, self._turned_at = 0, False, -math.inf
        self._oldest_ms: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._connection: AsyncConnection
        self._is_rested = asyncio.Event()
        self._was_checked = False
        self._page = self._asked = _PAGE // 10
        self._forget()
        if (outward := outward_of(bus.session.observer)) is not None:
            outward.relays(lambda: self.figures)

    @property
    def figures(self) -> RelayFigures:
        """Return what this relay has done, and its state. Any thread may ask."""
        apart = sum(len(each.rows) for each in list(self._apart.values()))
        kept, oldest = len(self._taken), self._oldest_ms
        lag = 0.0 if oldest is None else max(0.0, (wall_ms() - oldest) / 1000)
        return RelayFigures(self.sent, self.again, self._set_aside_count, kept, apart, lag, self._is_working)

    async def why_not_ready(self, patience: float = 1.0) -> str | None:
        """Return why this relay neither sends nor follows another one; None if it does. Call it in its event loop.

        Args:
            patience: Seconds for the server's answer.
        """
        if mono() - self._turned_at > _TURN_WITHIN:
            return "it has not looked into the database, or sent, for some seconds: see its log"
        return None if await is_answered(self.bus.session, patience) else "the server does not answer"

    def _forget(self) -> None:
        """Know nothing, as at the beginning."""
        self._shards: list[_Shard] = []
        self._taken: set[_Place] = set()
        self._apart: dict[str, _Waiting] = {}
        self._floor = 0
        self._raise: tuple[int, int] | None = None
        self._numbered_at = 0.0
        self._is_locked = False

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
            TimeoutError: That took longer, or another relay works.
            CommandBusError: The relay has ended by an error.
        """
        async with asyncio.timeout(timeout):
            for _ in range(2):  # the look that goes on may have begun before the commit
                self._is_rested.clear()
                rested = asyncio.ensure_future(self._is_rested.wait())
                tasks: set[asyncio.Future[Any]] = {rested} if self._task is None else {rested, self._task}
                try:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    await end_tasks([rested])
                if self._task is not None and self._task.done():
                    self._task.result()

    async def run(self) -> None:
        """Relay until this is cancelled.

        Raises:
            OutboxUnavailable: There is no table, or nothing numbers its rows.
            InvalidSettings: The mailboxes of an entity type are others than the namespace has recorded.
        """
        try:
            await self._run()
        finally:
            self._forget()
            self._oldest_ms = None

    async def _run(self) -> None:
        wait = _FIRST_WAIT
        while True:
            self._forget()
            try:
                async with self._engine.connect() as connection:
                    self._connection = await connection.execution_options(isolation_level="AUTOCOMMIT")
                    try:
                        await self._check()
                        while True:
                            await self._relay()
                            wait = _FIRST_WAIT
                    finally:
                        self._is_working = False
                        if self._is_numbered:  # a pool would keep it, with the lock
                            await connection.invalidate()
            except (InvalidSettings, OutboxUnavailable) as error:
                _log.error("the outbox %s is not relayed any more: %s", self._name, error.message)
                raise
            except (SQLAlchemyError, OSError, CommandBusError) as error:
                why = str(error).partition("\n")[0] or type(error).__name__
                _log.warning("the outbox %s waits %.1f s: %s", self._name, wait, printable(why))
                await asyncio.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT)

    async def _relay(self) -> None:
        """Do a round if this is the relay that works, and wait if there was nothing to do."""
        if not await self._is_first():
            self._is_working, self._turned_at, self._oldest_ms = False, mono(), None
            await asyncio.sleep(_STANDBY)
            return
        try:
            is_idle = await self._round()
        except _Stale:
            is_locked = self._is_locked
            self._forget()
            self._is_locked = is_locked
            await asyncio.sleep(0 if is_locked else _STANDBY * JITTER.uniform(0.1, 1.0))
            return
        self._is_working, self._turned_at = True, mono()
        if is_idle:
            self._is_rested.set()
            await asyncio.sleep(self._poll)

    # The database.

    async def _ask(self, statement: Statement | str, **values: Any) -> Sequence[Row[Any]]:
        sql, given = statement if isinstance(statement, tuple) else (statement, values)
        async with asyncio.timeout(_SILENT):
            found = await self._connection.execute(_text(sql), given)
            return found.all() if found.returns_rows else []

    async def _check(self) -> None:
        try:
            await self._ask(rows_behind(self._dialect, 0, 1))
            # Later it may be off for a load: those rows are numbered all the same.
            has_trigger = self._was_checked or not self._is_numbered or (await self._ask(TRIGGER))[0][0] == 1
        except SQLAlchemyError as error:
            if not is_missing(error):
                raise
            has_trigger = False
        if not has_trigger:
            raise OutboxUnavailable(MISSING)
        self._was_checked = True

    async def _is_first(self) -> bool:
        """Return whether this is the relay that works. That saves work; nothing depends on it."""
        if self._is_numbered and not self._is_locked:
            self._is_locked = bool((await self._ask(LOCK, name=f"{self.bus.settings.namespace}:{self._name}"))[0][0])
        return self._is_locked or not self._is_numbered

    async def _look(self, due: Sequence[Row[Any]], without: Sequence[str]) -> list[Row[Any]]:
        """Return rows that are not taken and do not wait apart, in the order of their commits.

        A row may become visible behind others with higher numbers, of other mailboxes. So the look begins at a floor below which all is known: the
        highest number that a look has seen, once all transactions have ended that had begun to write by then. Where no other one writes that is at
        once. All pages of a look are of one moment, else a page could show a row of a mailbox whose row before was not there yet.

        Args:
            due: Rows that are known.
            without: Mailboxes whose rows are left for later; then the floor stays.
        """
        known = {row.id for each in self._apart.values() for row in each.rows} | {row.id for row in due}
        page = await self._read(self._floor, without)
        fresh, last, is_whole = self._fresh(page, known), page[-1] if page else None, len(page) < self._asked
        if not is_whole and len(fresh) < len(page):
            fresh, last = await self._read_further(known, without)
        if last is None or without:
            return fresh
        for number, newest in ([] if self._raise is None else [self._raise]) + [(last[0], last.now)]:
            if last[0] >= number and newest <= last.ended:
                self._floor, self._raise = number, None
            elif self._raise is None:
                self._raise = number, newest
        return fresh

    async def _read_further(self, known: set[int], without: Sequence[str]) -> tuple[list[Row[Any]], Row[Any] | None]:
        """Read pages from the floor on until there is a page of rows that are not known; return also the last row."""
        fresh, last, is_whole = list[Row[Any]](), None, False
        if self._is_numbered:
            await self._ask(SNAPSHOT)
        while not is_whole and len(fresh) < self._page:
            page = await self._read(self._floor if last is None else last[0], without)
            fresh += self._fresh(page, known)
            last, is_whole = page[-1] if page else last, len(page) < self._asked
        if self._is_numbered:
            await self._ask("COMMIT")
        return fresh, last

    async def _read(self, floor: int, without: Sequence[str]) -> Sequence[Row[Any]]:
        """Return a page of rows, of some megabytes at most once their size is known."""
        self._asked = self._page
        page = await self._ask(rows_behind(self._dialect, floor, self._asked, without))
        size = sum([len(row.envelope) for row in page])
        self._page = max(1, min(_PAGE, 2 * self._asked, _MOST_READ * max(len(page), 1) // max(size, 1)))
        return page

    def _fresh(self, page: Sequence[Row[Any]], known: set[int]) -> list[Row[Any]]:
        return [row for row in page if row.id not in known and (row.id, row.command_id) not in self._taken]

    # The bus.

    async def _round(self) -> bool:
        """Look, place and delete once; return whether there was nothing to do."""
        if not self._shards:
            await self._begin()
        if self._is_numbered and mono() >= self._numbered_at + _NUMBERS_EVERY:
            self._numbered_at = mono()
            if found := await self._ask(NUMBER_REST):
                _log.warning("the outbox %s: %d rows were added without their trigger, numbered now", self._name, len(found))
        is_crowded = sum(len(each.rows) for each in self._apart.values()) >= _MOST_APART
        without = [mailbox for mailbox, each in self._apart.items() if each.rows] if is_crowded else []
        rows, is_full = self._due(), len(self._taken) >= _MOST_TAKEN
        if not is_full:
            rows += await self._look(rows, without)
        self._oldest_ms = min([row.added_ms for row in rows], default=None)
        by_shard: dict[int, list[Row[Any]]] = {}
        for row in rows:
            by_shard.setdefault(self.bus.session.transport.shard_of(row.mailbox), []).append(row)
        for number, part in by_shard.items():
            await self._place_all(number, part)
        deleted = [await self._delete(number, shard) for number, shard in enumerate(self._shards)]
        if is_full and not rows and not any(deleted):
            await asyncio.sleep(self._poll)
        return not rows and not any(deleted) and not is_full

    async def _begin(self) -> None:
        transport = self.bus.session.transport
        found = [await transport.outboxes.look(self._name, shard) for shard in range(transport.shards)]
        now, shards = mono(), [_Shard(each.value) for each in found]
        for shard, each in zip(shards, found, strict=True):
            ids = sorted({int(key.partition(":")[0]) for key in each.rows})
            for at in range(0, len(ids), _PAGE):
                for row in await self._ask(still_there(self._dialect, ids[at : at + _PAGE])):
                    if _key(row.id, row.command_id) in each.rows:
                        shard.taken.append((now, (row.id, row.command_id)))
            shard.deleted = sorted(each.rows - {_key(*place) for _, place in shard.taken})
        self._shards, self._taken = shards, {place for shard in shards for _, place in shard.taken}

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
            if part and (len(part) == _PAGE or size + len(row.envelope) > _MOST_BYTES):
                await self._place(shard, part)
                part, size = [], 0
            waits = self._apart.get(row.mailbox)
            if waits is not None and (waits.rows or waits.until > mono()):
                waits.rows.append(row)
                continue
            submission = await self._submission(row)
            if submission is not None:
                part.append((row, submission))
                size += len(row.envelope)
        if part:
            await self._place(shard, part)

    async def _submission(self, row: Row[Any]) -> Submission | None:
        """Return the command of a row; None if it cannot be sent, or not now."""
        session, entity_type = self.bus.session, type_of(row.mailbox)
        agreements = session.transport.agreements
        policy = None if entity_type is None else agreements.agreed(entity_type)
        if entity_type is not None and policy is None:
            try:
                policy = await agreements.agree(entity_type, mono() + session.settings.dispatch_timeout)
            except TooManyEntityTypes as error:
                self._let_wait(row, error.message, mono())
                return None
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
        shard, keyed = self._shards[number], [(_key(row.id, row.command_id), submission) for row, submission in rows]
        placed, asked_at = await self._placed(number, shard, keyed)
        shard.value, shard.asked_at = placed.value, asked_at
        now, aside = mono(), list[Row[Any]]()
        if placed.is_confirmed:
            shard.taken += ((now, place) for place in shard.unconfirmed)
            shard.unconfirmed.clear()
        for (row, _), admission in zip(rows, placed.admissions, strict=True):
            waits, place = self._apart.get(row.mailbox), (row.id, row.command_id)
            if admission in _SENT:
                self.sent += admission is Admission.ACCEPTED
                self._taken.add(place)
                if placed.is_confirmed:
                    shard.taken.append((now, place))
                else:
                    shard.unconfirmed.append(place)
                if waits is not None and not waits.rows:
                    del self._apart[row.mailbox]
            elif admission is Admission.CONFLICT:
                aside.append(row)
            else:
                self._let_wait(row, admission.name.lower(), now)
        for row in aside:  # once all that was taken is known
            await self._set_aside(row, f"the command id {row.command_id} was used with other fields")

    def _let_wait(self, row: Row[Any], why: str, now: float) -> None:
        waits = self._apart.setdefault(row.mailbox, _Waiting())
        if not waits.rows:
            waits.seconds = min(2 * waits.seconds, _LONGEST_WAIT)
            waits.until = now + waits.seconds
            if waits.seconds == _LONGEST_WAIT:
                _log.warning("the outbox %s: %s takes nothing (%s)", self._name, mailbox_label(row.mailbox), why)
        waits.rows.append(row)

    async def _placed(self, number: int, shard: _Shard, rows: Sequence[tuple[str, Submission]]) -> tuple[Placed, float]:
        """Send a request; return the answer, and when it was sent.

        Raises:
            _Stale: The state is another one.
        """
        deleted, asked_at = shard.deleted[:_CLEARED], mono()
        # Where there is no answer all begins again: what was carried out is noted by then, or meets another state when it comes later.
        answer = await self.bus.session.transport.outboxes.place(self._name, number, shard.value, token(12).hex(), rows, deleted)
        if isinstance(answer, Taken):
            known = [*(place for _, place in shard.taken), *shard.unconfirmed]
            self.again += sum(_key(*place) not in answer.rows for place in known)
            raise _Stale
        del shard.deleted[: len(deleted)]
        return answer, asked_at

    async def _delete(self, number: int, shard: _Shard) -> bool:
        """Delete rows that were taken long enough ago, if the server has answered since that it still has them; return whether there are any."""
        before = mono() - self._keep
        is_due = bool(shard.taken) and shard.taken[0][0] <= before
        if (is_due and shard.taken[0][0] > shard.asked_at - self._keep) or (shard.deleted and not is_due) or shard.unconfirmed:
            await self._place(number, [])
        places: list[_Place] = []
        while shard.taken and shard.taken[0][0] <= shard.asked_at - self._keep and len(places) < _PAGE:
            places.append(shard.taken.popleft()[1])
        if places:
            await self._ask(deleting(self._dialect, places))
            self._taken.difference_update(places)
            shard.deleted += [_key(*place) for place in places]
        return bool(places)

    async def _set_aside(self, row: Row[Any], why: str) -> None:
        _log.error("the outbox %s: the command %s is set aside: %s", self._name, printable(row.command_id), printable(why))
        await self._ask(setting_aside(self._dialect, row.id, why))
        self._set_aside_count += 1
