"""The dead-letter queue: which commands were dead-lettered, why, and what to do about it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, TypedDict, Unpack

from command_bus.admin.info import DeadLetter, LetterPage
from command_bus.admin.letter_pages import dispatch_again, edited_envelope, newest_letters
from command_bus.durable.compensation import failed_undos
from command_bus.durable.names import ENDING, UNDO
from command_bus.durable.undo import Ending, pack_ending, unpack_ending
from command_bus.errors import CommandBusError, InvalidCommand, InvalidSettings, UnknownDeadLetter
from command_bus.messages.message import Message
from command_bus.messages.outgoing import Across
from command_bus.messages.reports import OnDone
from command_bus.serialization.dead_letter import DeadLetterRecord
from command_bus.serialization.envelope import ENCRYPTED, WireEnvelope, unpack_envelope
from command_bus.serialization.envelope_options import ACROSS, DURABLE, RETURN, ReturnAddress
from command_bus.serialization.limits import PayloadLimits, Undecodable
from command_bus.serialization.msgpack import unpack
from command_bus.serialization.protection import readable_payload
from command_bus.serialization.reply import Cancelled, cancelled_midway, pack_reply
from command_bus.session import OnSession, Session
from command_bus.spelling import check_filters, shown
from command_bus.transport.flows import envelope_flow
from command_bus.transport.mailboxes import mailbox_label
from command_bus.transport.marks import digest_of, is_marked, waiting_mark
from command_bus.transport.ports.operator import DeadLetterStore
from command_bus.transport.records import StoredDeadLetter
from command_bus.transport.retention import Retention
from command_bus.transport.steps import NO_SETTLEMENT, Settlement
from command_bus.transport.unique_keys import stander_of, unique_key


class CalledLetter(NamedTuple):
    """The dead letter of a command that a durable one called.

    Attributes:
        letter_id: Its id.
        command_id: Id of its command.
        caller: Who called that.
    """

    letter_id: str
    command_id: str
    caller: ReturnAddress


def begins_anew(stored: StoredDeadLetter, envelope: WireEnvelope) -> bool:
    """Return whether a replay runs a durable command from its first line: it was compensated, so it calls all again, under other ids."""
    return not stored.parked and not stored.keeps and DURABLE.of(envelope.options)


def across_of(stored: StoredDeadLetter, envelope: WireEnvelope) -> Across | None:
    """Return what a part of a command over several shards says of the whole, if the lines of the others are held no more; else None."""
    return None if stored.parked else ACROSS.of(envelope.options)


def again_id(stored: StoredDeadLetter, across: Across) -> str:
    """Return the id under which a command over several shards is dispatched again: the old one is known to have ended."""
    return f"{across.command_id}~{stored.id}"


def called_again(called: Iterable[CalledLetter], callers: Collection[str]) -> set[str]:
    """Return the letters of what these commands called, and of what that called, and so on. They are of no use once the callers begin again."""
    letters, found, waiting = defaultdict[str, list[CalledLetter]](list), set[str](), list(callers)
    for each in called:
        letters[each.caller.command_id].append(each)
    while waiting:
        for each in letters.pop(waiting.pop(), ()):
            found.add(each.letter_id)
            waiting.append(each.command_id)
    return found


def caller_of(raw: bytes, limits: PayloadLimits, *, parked: bool) -> ReturnAddress | None:
    """Return the durable command that was told how this one ended; None if there is none. Of a parked one it waits still, and is not told."""
    if parked:
        return None
    try:
        return RETURN.of(unpack_envelope(raw, limits).options)
    except Undecodable:
        return None


def undoes(caller: ReturnAddress) -> bool:
    """Return whether a command undoes what its caller did. The caller is parked then, and its replay calls again."""
    return caller.call.startswith(UNDO)


def check_alone(letter_id: str, caller: ReturnAddress, callers_letter: str) -> None:
    """Check that the letter of a command that was called may be replayed by itself.

    Args:
        letter_id: Its id.
        caller: Who called it.
        callers_letter: The letter of that, if its replay begins it again; else empty.

    Raises:
        InvalidCommand: Its caller calls that again, so it would be done twice.
    """
    if callers_letter:
        raise InvalidCommand(
            f"letter {letter_id} is of a command that {caller.command_id} on {mailbox_label(caller.mailbox)} had called. That was compensated, and "
            f"calls it again: replay the letter {callers_letter} of that one, which discards this one, or discard that one first"
        )
    if undoes(caller):
        raise InvalidCommand(
            f"letter {letter_id} is of a command that undoes what {caller.command_id} on {mailbox_label(caller.mailbox)} did, and that calls it "
            "again: replay the letter of that one, which is parked, and discard this one"
        )


_DISCARDED = "discarded by an operator"
_LAST_MS = 253_402_300_799_000  # the end of the year 9999: any program that writes to a stream can choose its ids


_UNREAD = frozenset({"undecodable", "unsupported_version", "bad_signature"})
"""Reasons for which a command that parks its entity was not read, or not believed. It has something to undo: else it would not be parked."""
_NOT_RUN = frozenset({"no_handler", "undecodable", "invalid", "unsupported_version", "bad_signature", "expired", "unknown"})
"""Reasons for which a command was given up before its handler was called, unless an earlier start of it had called one."""


class LetterFilters(TypedDict, total=False):
    """Filters for dead letters; all that are given apply, None is as if not given."""

    entity_type: str | None
    entity_id: str | int | None
    command_id: str | None
    name: str | None
    """The command's wire name."""
    reason: str | None
    parked: bool | None
    """Whether their entity waits for a decision about them."""
    since: datetime | None
    """Given up then or later; without a time zone it is local time."""
    until: datetime | None
    """Given up before then."""


class DeadLetters(OnSession):
    """Lists, replays, discards and purges dead letters; reached as `bus.dead_letters`.

    Args:
        session: Connections and settings of the bus.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._retention = Retention.of(session.settings)

    async def list(self, *, limit: int | None = None, **filters: Unpack[LetterFilters]) -> AsyncIterator[DeadLetter]:
        """Yield the dead letters that match all filters, oldest first per shard.

        Args:
            limit: At most so many; the letters behind them are not read.
            filters: What a dead letter has to fit; without any, all fit.

        Raises:
            InvalidSettings: The limit is below 1, or a filter is none.
            TransportUnavailable: The server cannot be reached.
        """
        if limit is not None and limit < 1:
            raise InvalidSettings("limit: at least 1")
        check_filters(filters, LetterFilters.__annotations__)
        found = 0
        async for stored in self._store.all():
            letter = self._read(stored)
            if _matches(letter, filters):
                yield letter
                found += 1
                if found == limit:
                    return

    async def page(self, *, limit: int = 50, cursor: str | None = None, **filters: Unpack[LetterFilters]) -> LetterPage:
        """Return dead letters that match all filters, newest first, page by page.

        A page looks at some hundred letters of each shard at most: it may have few although there are more.

        Args:
            limit: At most so many.
            cursor: As the page before gave it, with the same filters; None: the first page.
            filters: What a dead letter has to fit; without any, all fit.

        Raises:
            InvalidSettings: The limit is below 1, it is no cursor, or a filter is none.
            TransportUnavailable: The server cannot be reached.
        """
        check_filters(filters, LetterFilters.__annotations__)
        part = await newest_letters(
            self._transport.operator.views, self._transport.shards, cursor, limit, self._matching(filters)
        )
        return LetterPage(tuple(part.found), part.cursor, part.looked, part.oldest_ms)

    def _matching(self, filters: LetterFilters) -> Callable[[StoredDeadLetter], DeadLetter | None]:
        """Return what reads a letter, and gives None for one that does not match."""

        def read(stored: StoredDeadLetter) -> DeadLetter | None:
            letter = self._read(stored)
            return letter if _matches(letter, filters) else None

        return read

    async def count(self, **filters: Unpack[LetterFilters]) -> Counter[tuple[str, str]]:
        """Count the dead letters that match, by reason and wire name: those that `replay_all` or `purge` would change."""
        counts: Counter[tuple[str, str]] = Counter()
        async for letter in self.list(**filters):
            counts[letter.reason, letter.name] += 1
        return counts

    async def oldest(self) -> datetime | None:
        """Return when the oldest dead letter was written, or None.

        Dead letters stay until they are replayed, discarded or purged, or until `dead_letter_ttl` or `max_dead_letters` has workers delete them.

        Raises:
            TransportUnavailable: The server cannot be reached.
        """
        found = await self._store.oldest_ms()
        return None if found is None else datetime.fromtimestamp(min(found, _LAST_MS) / 1000, UTC)

    async def get(self, letter_id: str) -> DeadLetter:
        """Return one dead letter.

        Raises:
            UnknownDeadLetter: There is none with this id.
        """
        return self._read(await self._stored(letter_id))

    async def several(self, letter_ids: Collection[str]) -> dict[str, DeadLetter]:
        """Return those of these dead letters that are there, by their ids, in one round trip per shard.

        Raises:
            TransportUnavailable: The server cannot be reached.
        """
        found = await self._operator.views.letters_by_id(tuple(letter_ids))
        return {each.id: self._read(each) for each in found}

    async def replay(self, letter_id: str, *, payload: Mapping[str, Any] | Message[Any] | None = None) -> str:
        """Run the command again under its old id; gives that id (empty if it cannot be read).

        A parked command runs before its followers; any other joins the end of its entity's line. One whose entities are of several shards is
        dispatched once more, under an id of its own. Such a one holds its unique key
        again unless another command does; then it waits beside that. A durable command that was compensated begins again, and calls again what it
        had called: the letters of that are looked for, and discarded.

        Args:
            letter_id: The id of the dead letter.
            payload: Other fields to run it with, all of them: an instance of its class, or a mapping, which is checked by the schema that
                workers announce. The id, the entity and the rest stay. The header `edited_letter` has the letter's id.
                For deduplication it is a new command: repeating the original raises `IdempotencyConflict`.

        Raises:
            InvalidCommand: The payload is not one of this command and its entity, or the command cannot be edited. Or it undoes what a durable
                command did, or such a command called it that was compensated and has a letter: that calls it again once its own letter is
                replayed, so this one would do the same twice.
            InvalidSettings: This bus cannot sign or encrypt as the command was.
            UnknownDeadLetter: There is none with this id (any more).
        """
        stored = await self._stored(letter_id)
        envelope = self._envelope(stored)
        caller = caller_of(stored.raw, self._limits, parked=stored.parked)
        if caller is not None:
            check_alone(letter_id, caller, await self._letter_of(caller))
        edited = b"" if payload is None else await self._edited(stored, envelope, payload)
        if begins_anew(stored, envelope):
            await self._discard_all(called_again([each async for _, each in self._letters() if each], {envelope.command_id}))
        if not await self._replay(stored, envelope, edited):
            raise _unknown(letter_id)
        return envelope.command_id if (across := across_of(stored, envelope)) is None else again_id(stored, across)

    async def _letter_of(self, caller: ReturnAddress) -> str:
        """Return the letter of a caller that begins again if that is replayed; empty if there is none."""
        async for stored in self._store.all():
            if _record(stored).command_id == caller.command_id and begins_anew(stored, self._envelope(stored)):
                return stored.id
        return ""

    async def _letters(self) -> AsyncIterator[tuple[StoredDeadLetter, CalledLetter | None]]:
        """Yield all letters; with those of what a durable command called, and was told of, by whom."""
        async for stored in self._store.all():
            caller = caller_of(stored.raw, self._limits, parked=stored.parked)
            yield stored, caller and CalledLetter(stored.id, _record(stored).command_id, caller)

    async def _discard_all(self, letter_ids: Collection[str]) -> None:
        for letter_id in letter_ids:
            if (stored := await self._store.get(letter_id)) is not None:
                await self._discard(stored)

    async def _replay(self, stored: StoredDeadLetter, envelope: WireEnvelope, edited: bytes = b"", ending: bytes = b"") -> bool:
        """Replay a letter, with an ending only to undo what its command did; return False if it is gone."""
        marked = is_marked(envelope) and not _nobody_vouches(stored)
        now = unpack_envelope(edited, self._limits) if edited else envelope
        if (across := across_of(stored, envelope)) is not None:
            await dispatch_again(self._session, now, across, again_id(stored, across))
            return await self._discard(stored)
        protection, fields, key = self._session.protection, None, b""
        if edited and now.flags & ENCRYPTED and protection is not None and protection.digest_key:
            fields, key = unpack(protection.payload(now), self._limits), protection.digest_key
        elif edited and not now.flags & ENCRYPTED:
            fields = unpack(now.payload, self._limits)
        mark = waiting_mark(digest_of(now, fields, key), stored.mailbox) if marked else b""
        left = Settlement(envelope.command_id, mark, 1, unique=unique_key(now), stander=stander_of(now))
        left = replace(left, side="kept" if ending or DURABLE.of(now.options) else "")
        return await self._store.settle(stored, "replay", left, edited, envelope_flow(now), ending=ending)

    async def replay_all(
        self, *, limit: int | None = None, on_done: OnDone | None = None, **filters: Unpack[LetterFilters]
    ) -> int:
        """Replay all letters that match now, or the oldest `limit` of them; return how many. One that fails again is not replayed twice.

        What a durable command called is left to that if its letter matches, too, and what undoes something to that which it undoes. If they begin
        again, and so call it again, its letter is discarded.

        An error in the midst says in its `message` how many were replayed before.

        Args:
            limit: As many at most; None: all.
            on_done: Is called after each letter with how many were replayed so far.
            filters: What a letter has to fit.

        Raises:
            InvalidCommand: A filter or the limit is not what it may be.
        """
        check_filters(filters, LetterFilters.__annotations__)
        if limit is not None and (type(limit) is not int or limit < 1):
            raise InvalidCommand(f"limit is a whole number from 1 on, or None for all that match, not {limit!r}")
        replayed, called, chosen, replays = 0, list[CalledLetter](), dict[str, str](), set[str]()
        async for stored, each in self._letters():
            called += [each] if each else []
            letter = self._read(stored)
            if not _matches(letter, filters):
                continue
            replays.add(letter.command_id)
            chosen[stored.id] = letter.command_id if begins_anew(stored, self._envelope(stored)) else ""
        left = {each.letter_id for each in called if undoes(each.caller) or each.caller.command_id in replays}
        going = [each for each in chosen if each not in left][:limit]
        again = called_again(called, {chosen[letter_id] for letter_id in going} - {""})
        await self._discard_all(again)
        for letter_id in [each for each in going if each not in again]:
            try:
                stored = await self._stored(letter_id)
                if not await self._replay(stored, self._envelope(stored)):
                    continue
            except UnknownDeadLetter:  # another operator decided first
                continue
            except CommandBusError as error:
                error.message = f"{letter_id}, after {replayed:,} were replayed: {error.message}"
                raise
            replayed += 1
            if on_done is not None:
                on_done(replayed)
        return replayed

    async def discard(self, letter_id: str) -> None:
        """Delete a letter. If its entity is parked by it, the entity goes on with the next command.

        A durable command that is parked undoes what it did first. If its compensation has failed, that one is given up: it goes on with the
        others, and ends with its first error.

        Raises:
            UnknownDeadLetter: There is none with this id (any more).
        """
        if not await self._discard(await self._stored(letter_id)):
            raise _unknown(letter_id)

    async def purge(self, *, on_done: OnDone | None = None, **filters: Unpack[LetterFilters]) -> int:
        """Discard all letters that match; how many. Entities that were parked by them go on.

        An error in the midst says in its `message` how many were discarded before.

        Args:
            on_done: Is called after each letter with how many were discarded so far.
            filters: What a letter has to fit.
        """
        purged = 0
        async for letter in self.list(**filters):
            try:
                stored = await self._store.get(letter.id)
                if stored is not None and await self._discard(stored):
                    purged += 1
                    if on_done is not None:
                        on_done(purged)
            except CommandBusError as error:
                error.message = f"{letter.id}, after {purged:,} were discarded: {error.message}"
                raise
        return purged

    @property
    def _store(self) -> DeadLetterStore:
        return self._operator.dead_letters

    async def _edited(self, stored: StoredDeadLetter, envelope: WireEnvelope, payload: Mapping[str, Any] | Message[Any]) -> bytes:
        """Return the envelope with another payload. An operator vouches for the payload alone, so the rest must be sound."""
        if _nobody_vouches(stored) or not envelope.command_id:
            raise InvalidCommand(
                f"letter {stored.id} cannot be edited: {_record(stored).reason}. Discard it, and dispatch a new command if it was meant well"
            )
        protection = self._session.protection
        if envelope.signature is not None and (protection is None or protection.sign is None):
            raise InvalidSettings("the command was signed: edit it with a bus that has the signing_keys")
        try:
            unpack_envelope(stored.raw, self._limits)
        except Undecodable as error:
            raise InvalidCommand(f"letter {stored.id} cannot be edited: {error.reason}") from None
        return await edited_envelope(self._session, stored.id, envelope, payload)

    async def _discard(self, stored: StoredDeadLetter) -> bool:
        envelope = self._envelope(stored)
        record = _record(stored)
        outcome = Cancelled(_DISCARDED)
        if _may_have_run(record):
            undoes_itself = DURABLE.of(envelope.options) and record.reason != "compensation_failed"
            outcome = cancelled_midway(_DISCARDED, durable=undoes_itself)
        left = NO_SETTLEMENT
        if not _nobody_vouches(stored):
            left = self._retention.settlement(envelope, outcome, "discarded", letter=record)
        may_undo = stored.parked and (left.side or (record.reason in _UNREAD and envelope.command_id))
        if may_undo and (ending := await self._ending(stored, envelope, pack_reply(envelope.command_id, outcome))):
            return await self._replay(stored, envelope, ending=pack_ending(ending))
        return await self._store.settle(stored, "discard", replace(left, mark_ms=max(1, self._retention.dedup, left.mark_ms)))

    async def _ending(self, stored: StoredDeadLetter, envelope: WireEnvelope, reply: bytes) -> Ending | None:
        """Return what a parked durable command ends with once it has undone what it did; None if there is nothing to undo.

        One that has begun to undo, and failed, ends with its first error; what failed is given up.

        Raises:
            BadStep: Its end was written by another release.
        """
        fields = await self._transport.durable.record(stored.mailbox, envelope.command_id)
        if ENDING in fields:
            return unpack_ending(fields[ENDING])._replace(given_up=failed_undos(fields))
        return Ending("cancelled", reply) if any(name.startswith(UNDO) for name in fields) else None

    async def _stored(self, letter_id: str) -> StoredDeadLetter:
        stored = await self._store.get(letter_id)
        if stored is None:
            raise _unknown(letter_id)
        return stored

    def _envelope(self, stored: StoredDeadLetter) -> WireEnvelope:
        """Return the envelope, as far as it can be read; without an id there is nothing to keep."""
        try:
            return unpack_envelope(stored.raw, self._limits)
        except Undecodable:
            record = _record(stored)
            return WireEnvelope(record.command_id, record.name, record.entity_type, record.entity_id, b"")

    def _read(self, stored: StoredDeadLetter) -> DeadLetter:
        record = _record(stored)
        recorded = {each.name: getattr(record, each.name) for each in fields(record)}
        letter = _ReadLetter(id=stored.id, parked=stored.parked, payload=None, raw=stored.raw, **recorded)
        letter.read_later(partial(readable_payload, stored.raw, self._limits, self._session.protection))
        return letter


class _ReadLetter(DeadLetter):
    """A letter from the server: its payload is decoded when it is read. Listing, counting and purging do not read it.

    A dead-lettered command may be huge, or made to be slow to read; the operator who wants to be rid of it must not pay for that.
    """

    __slots__ = ("_payload",)
    __qualname__ = DeadLetter.__qualname__  # for who prints it

    def read_later(self, payload: Callable[[], dict[str, Any] | None]) -> None:
        """Leave the payload to be read when it is asked for."""
        object.__setattr__(self, "_payload", payload)
        object.__delattr__(self, "payload")

    def __getattr__(self, name: str) -> Any:
        if name != "payload":
            raise AttributeError(name)
        found = self._payload()
        object.__setattr__(self, "payload", found)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return DeadLetter, tuple(getattr(self, each.name) for each in fields(self))


def _record(stored: StoredDeadLetter) -> DeadLetterRecord:
    """Return the record of a dead letter; of one that cannot be read, a record that says so."""
    try:
        return DeadLetterRecord.unpack(stored.record)
    except Undecodable as error:
        return DeadLetterRecord(reason="unknown", error_message=f"what was recorded of it cannot be read: {error}")


def _matches(letter: DeadLetter, filters: LetterFilters) -> bool:
    wanted = {
        "entity_type": letter.entity_type,
        "entity_id": letter.entity_id,
        "command_id": letter.command_id,
        "name": letter.name,
        "reason": letter.reason,
        "parked": letter.parked,
    }
    for what, value in wanted.items():
        asked: Any = filters.get(what)
        if asked is not None and value != (str(asked) if what == "entity_id" else asked):
            return False
    since, until = filters.get("since"), filters.get("until")
    failed = letter.failed_ms / 1000
    return (since is None or failed >= since.timestamp()) and (until is None or failed < until.timestamp())


def _may_have_run(record: DeadLetterRecord) -> bool:
    """Return whether a handler of the command was called."""
    return record.attempts > 1 or record.reason not in _NOT_RUN


def _nobody_vouches(stored: StoredDeadLetter) -> bool:
    """Return whether the command was not signed as it should have been: the ids in it may be another command's."""
    return _record(stored).reason == "bad_signature"


def _unknown(letter_id: str) -> UnknownDeadLetter:
    return UnknownDeadLetter(f"there is no dead letter {shown(letter_id)}: it was replayed, discarded or purged before")
