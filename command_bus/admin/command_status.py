"""The status of one command: where it is, and what it waits for. Reached as `bus.commands.status`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from command_bus.admin.dead_letters import DeadLetters
from command_bus.admin.entities import entity_info
from command_bus.admin.entity_details import look_at
from command_bus.admin.history import CommandHistory
from command_bus.admin.info import EntityInfo
from command_bus.admin.json_data import trace_id_of
from command_bus.durable.names import CANCEL, ENDING
from command_bus.errors import UnknownCommand, UnsuitableServer
from command_bus.sending.waiting import WaitingCommands
from command_bus.serialization.dead_letter import DeadLetterRecord
from command_bus.serialization.envelope import WireEnvelope, unpack_envelope
from command_bus.serialization.limits import Undecodable
from command_bus.serialization.odd_values import pass_over
from command_bus.serialization.protection import readable_payload
from command_bus.serialization.reply import outcome_code, unpack_reply
from command_bus.session import OnSession, Session
from command_bus.transport.mailboxes import mailbox_label, message_order
from command_bus.transport.marks import is_settled, mailbox_in, reply_in
from command_bus.transport.ports.limits import LimitWaitInfo
from command_bus.transport.records import Failure, HoldInfo, StoredDeadLetter, StoredEntity, SuspensionInfo, wish_text

CommandState = Literal[
    "waiting",
    "delayed",
    "limited",
    "paused",
    "running",
    "retrying",
    "snoozed",
    "suspended",
    "compensating",
    "parked",
    "settled",
]
_LOOKS = 3
"""The most looks for a command that moves meanwhile."""
_MOST_LOOKED_AT = 20_000
"""Commands that are looked at for one that has no mark: less than a second."""
_NEVER_PARK = ("completed", "rejected", "cancelled", "expired")
"""Outcomes after which a command's entity goes on. Any other may be that of a dead letter which parks it."""


@dataclass(frozen=True, slots=True)
class CommandStatus:
    """The place of a command. Times are in ms since the epoch, by the server's clock.

    Attributes:
        command_id: Its id.
        state: `waiting` (behind another command, or for a worker), `delayed`, `limited` (waits for a limit), `paused` (it is next, and an operator
            has paused its entity, type or bus), `running`, `retrying` (waits for its next attempt), `snoozed` (its handler has put it off),
            `suspended` (durable: waits without a worker), `compensating` (durable: undoes what it did, and ends then), `parked` (a dead letter that
            its entity waits for) or `settled`.
        name: Its wire name; empty if it is not known (any more).
        entity: Its entity, for people; empty if it is not known any more.
        position: Its place in line: 1 is next or runs. None if it is in no line, or has more than a thousand commands before it.
        attempt: The number of its starts; of a durable command since it last got on. A start that took no attempt does not count, but once it was
            started it is 1 at least.
        worker: Who runs it, or None.
        since_ms: Since when it runs or is suspended; None otherwise.
        until_ms: When it goes on: the end of a delay, of the wait for an attempt, of a snooze, or of a suspension that has one; None otherwise.
        limit: What it waits for, if it is limited.
        hold: Why it is paused, or None.
        suspension: What it waits for, if it is suspended.
        cancelling: The reason for which a durable command that has begun was asked to end. It waits for what it called and has started. Else empty.
        letter_id: Id of the dead letter that parks it, or that it became, as far as that is known; else None.
        failure: How its last attempt failed; None if none did.
        payload: Its fields, while this bus can read them; else None.
        outcome: Once it is settled: `completed`, `rejected`, or the `code` of the error that its caller got, such as `failed`, `interrupted`,
            `cancelled`, `expired`; empty if that is not kept, and before.
        trace_id: Id of the trace that it belongs to, while its envelope can be read and has one; else empty.
        causation_id: Id of the command whose handler sent it, while its envelope can be read and has one; else empty.
    """

    command_id: str
    state: CommandState
    name: str = ""
    entity: str = ""
    position: int | None = None
    attempt: int = 0
    worker: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    limit: LimitWaitInfo | None = None
    hold: HoldInfo | None = None
    suspension: SuspensionInfo | None = None
    letter_id: str | None = None
    outcome: str = ""
    trace_id: str = ""
    causation_id: str = ""
    cancelling: str = ""
    failure: Failure | None = None
    payload: Mapping[str, Any] | None = field(default=None, repr=False)


class _Head(NamedTuple):
    """A mailbox and its first command."""

    stored: StoredEntity
    info: EntityInfo
    is_ending: bool
    cancelling: str


class StatusReader(OnSession):
    """Reads the status of one command.

    Args:
        session: Open.
        command_id: Id of the command.
        likely: The mailbox in which it is looked for first if it has no mark.
        looks_around: Whether one without a mark is looked for among others: up to a second each time, so not for who asks again and again.
    """

    def __init__(self, session: Session, command_id: str, likely: str | None = None, *, looks_around: bool = True) -> None:
        super().__init__(session)
        self._id = command_id
        self._likely = likely
        self._most = _MOST_LOOKED_AT if looks_around else 0

    async def status(self) -> CommandStatus:
        """Return it.

        Raises:
            UnknownCommand: Nothing is known of it.
        """
        found: list[str] = []
        for _ in range(_LOOKS):
            marks, found = await self._places()
            for mailbox in found:
                status = await self._status_in(mailbox)
                if status is not None:
                    return status
            if not found:
                return await self._settled([mark for mark in marks if is_settled(mark)])
        return CommandStatus(self._id, "waiting", entity=mailbox_label(found[0]))

    async def _places(self) -> tuple[list[bytes], list[str]]:
        """Return the marks of the command, and the mailboxes in which it may be."""
        marks = await self._transport.locations.marks(self._id)
        if marks:
            return marks, [box for box in map(mailbox_in, marks) if box is not None]
        waiting = WaitingCommands(self._session)
        return [], await waiting.find_unmarked(self._id, likely=self._likely, most=self._most)

    async def mailbox(self) -> str | None:
        """Return where the command waits, runs or is parked; None if it is settled or not known."""
        _, found = await self._places()
        return next(iter(found), None) or await self.parked_in()

    async def envelope_in(self, mailbox: str, *, begun: bool = False) -> WireEnvelope | None:
        """Return the envelope of a command that waits, runs or is delayed in a mailbox; None if it is not there, or too far behind.

        One that has begun is looked for at the head alone.
        """
        if begun:
            head = await self._transport.locations.line(mailbox, 1)
            return self._found([each for _, each in head])
        delayed = await self._transport.operator.mailboxes.find_delayed(self._id, mailbox)
        line = [envelope for _, envelope in await self._transport.locations.line(mailbox)] if delayed is None else [delayed[1]]
        return self._found(line)

    def _found(self, line: Sequence[bytes]) -> WireEnvelope | None:
        """Return the envelope of the command among these; None if it is not there, or cannot be read."""
        with suppress(Undecodable):
            return next((self._read(each) for each in line if self._is_this(each)), None)
        return None

    def _read(self, data: bytes) -> WireEnvelope:
        return unpack_envelope(data, self._limits)

    # Not settled.

    async def _status_in(self, mailbox: str) -> CommandStatus | None:
        """Return the status of a command that is in a mailbox; None if it is not there (any more)."""
        delayed, due, line, head = await asyncio.gather(
            self._operator.mailboxes.find_delayed(self._id, mailbox),
            self._operator.entities.delayed_times(mailbox, [self._id]),
            self._transport.locations.line(mailbox),
            self._head(mailbox),
        )
        if delayed is not None:
            return replace(self._named(delayed[1], mailbox), state="delayed", until_ms=due.get(self._id))
        place = next((place for place, (_, envelope) in enumerate(line, 1) if self._is_this(envelope)), None)
        if place is None:
            is_far = head.stored.depth > len(line) > 0
            return CommandStatus(self._id, "waiting", entity=mailbox_label(mailbox)) if is_far else None
        named = self._named(line[place - 1][1], mailbox)
        if place > 1 and message_order(line[place - 1][0]) <= message_order(head.stored.last_id):  # it runs with those before it
            return replace(self._at_the_head(head, named), position=place, attempt=1, failure=None)
        if place > 1 or head.stored.oldest_id != line[0][0]:
            return replace(named, position=place)
        return self._at_the_head(head, named)

    async def _head(self, mailbox: str) -> _Head:
        """Read what is known of a mailbox's head, in case it is this command."""
        transport = self._transport
        (stored, waits), now, (ends, wish) = await asyncio.gather(
            look_at(self._session, mailbox),
            transport.operator.entities.now_ms(),
            transport.durable.fields(mailbox, self._id, [ENDING, CANCEL]),
        )
        info = entity_info(stored, transport.shard_of(mailbox), now, waits)
        return _Head(stored, info, is_ending=ends is not None, cancelling=wish_text(wish))

    def _at_the_head(self, head: _Head, named: CommandStatus) -> CommandStatus:
        """Return the status of the command that is next in its mailbox, or runs."""
        info = head.info
        return replace(
            named,
            state="compensating" if head.is_ending and info.state != "parked" else _state_of(info),
            position=1,
            attempt=info.attempt,
            worker=info.worker,
            since_ms=info.suspension.since_ms if info.suspension is not None else head.stored.started_ms or None,
            until_ms=info.retry_at_ms if info.hold is None else info.hold.until_ms,
            limit=info.limit,
            hold=info.hold,
            suspension=info.suspension,
            letter_id=info.letter_id,
            cancelling=head.cancelling,
            failure=info.failure,
        )

    def _named(self, data: bytes, mailbox: str) -> CommandStatus:
        """Return the status of a command that waits, with what its envelope says."""
        found = CommandStatus(self._id, "waiting", entity=mailbox_label(mailbox))
        try:
            envelope = self._read(data)
        except Undecodable:
            return found
        entity = found.entity if envelope.entity_type is None else f"{envelope.entity_type}:{envelope.entity_id}"
        return replace(
            found,
            name=envelope.name,
            entity=entity,
            trace_id=trace_id_of(envelope.headers),
            causation_id=envelope.causation_id or "",
            payload=readable_payload(data, self._limits, self._session.protection),
        )

    def _is_this(self, data: bytes) -> bool:
        try:
            return self._read(data).command_id == self._id
        except Undecodable as error:
            return error.command_id == self._id

    # Settled.

    async def _settled(self, marks: Sequence[bytes]) -> CommandStatus:
        reply = reply_in(marks[0]) if marks else None
        code = "" if reply is None else self._outcome(reply)
        if reply is not None or (not marks and self._most):
            letter = await self._parking_letter() if code not in _NEVER_PARK else None
            if letter is not None:
                record = DeadLetterRecord.unpack(letter.record)
                found = self._named(letter.raw, letter.mailbox)
                return replace(found, state="parked", position=1, attempt=record.attempts, letter_id=letter.id)
        if marks:
            return CommandStatus(self._id, "settled", outcome=code)
        return await self._kept()

    async def _kept(self) -> CommandStatus:
        """Return the end of a command without a mark, as its history or its dead letter has it."""
        end, letters = await asyncio.gather(
            CommandHistory(self._session).get(self._id), DeadLetters(self._session).page(limit=1, command_id=self._id)
        )
        letter = next(iter(letters.letters), None)
        if letter is not None:
            found = CommandStatus(self._id, "settled", letter.name, letter.entity or "", attempt=letter.attempts)
            trace = trace_id_of(letter.headers)
            return replace(found, letter_id=letter.id, outcome=letter.reason, trace_id=trace, payload=letter.payload)
        if end is None:
            raise UnknownCommand(
                f"no command {self._id!r} is known. Commands that were dispatched with an id or keep_result, called, or durable are remembered "
                "for dedup_window or reply_ttl after their end, and those with a history for as long as that says. Any other is found while it is "
                f"delayed, among the first {_MOST_LOOKED_AT:,} commands of the namespace, in the line of its entity if that is named, or among "
                "the newest dead letters"
            )
        entity = "" if end.entity_type is None else f"{end.entity_type}:{end.entity_id}"
        outcome = end.status if end.error is None else end.error.code
        return CommandStatus(self._id, "settled", end.name, entity, None, end.attempts, outcome=outcome, payload=end.payload)

    async def parked_in(self) -> str | None:
        """Return the mailbox that the command parks; None if it parks none."""
        marks = await self._transport.locations.marks(self._id)
        settled = [mark for mark in marks if is_settled(mark)]
        reply = reply_in(settled[0]) if settled else None
        if marks and (reply is None or self._outcome(reply) in _NEVER_PARK):
            return None
        letter = await self._parking_letter()
        return None if letter is None else letter.mailbox

    def _outcome(self, reply: bytes) -> str:
        """Return the code of a reply; empty if it cannot be read."""
        try:
            return outcome_code(unpack_reply(reply, self._limits)[1])
        except Undecodable as error:
            pass_over("k", self._id, error)
            return ""

    async def _parking_letter(self) -> StoredDeadLetter | None:
        """Return the dead letter by which the command parks its entity."""
        try:
            pages = self._operator.views.parking()
        except UnsuitableServer:  # a transport without views
            return self._found_in([stored async for stored in self._operator.dead_letters.all()])
        async for page in pages:
            found = self._found_in(page)
            if found is not None:
                return found
        return None

    def _found_in(self, letters: Sequence[StoredDeadLetter]) -> StoredDeadLetter | None:
        """Return the dead letter of the command among these, if its entity waits for it."""
        return next(
            (each for each in letters if each.parked and DeadLetterRecord.unpack(each.record).command_id == self._id), None
        )


def _state_of(info: EntityInfo) -> CommandState:
    """Return the state of the command at the head of an entity."""
    return "waiting" if info.state == "draining" or info.state == "blocked" else info.state  # noqa: PLR1714 - as type checkers need it
