"""Single commands that wait, whatever their entity. Reached as `bus.commands`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Unpack
from uuid import UUID

from command_bus.admin.command_status import CommandStatus, StatusReader
from command_bus.admin.ending import Cancelling
from command_bus.admin.records import CommandRecord, CommandTree, progress_of, record_of, tree_of
from command_bus.admin.selection import CommandFilters, Selection, moment_of
from command_bus.clock import checked_seconds, milliseconds_of, time_of
from command_bus.durable.names import checked_name
from command_bus.durable.values import encoded_signal
from command_bus.errors import BadStep, InvalidCommand, InvalidSettings, UnknownCommand
from command_bus.messages.message import canonical_entity_id, check_entity_type, checked_id
from command_bus.messages.policies import Priority
from command_bus.messages.receipts import Receipt, running_id
from command_bus.messages.reports import ProgressInfo
from command_bus.randomness import token
from command_bus.sending.options import checked_priority
from command_bus.sending.waiting import WaitingCommands
from command_bus.serialization.envelope import ENCRYPTED, WireEnvelope
from command_bus.serialization.envelope_options import DURABLE
from command_bus.session import OnSession
from command_bus.transport.mailboxes import mailbox_name
from command_bus.transport.marks import mailbox_in
from command_bus.transport.ports.durable import (
    MOST_OTHER_SIGNAL_BYTES,
    MOST_OTHER_SIGNALS,
    MOST_SIGNAL_BYTES,
    MOST_SIGNALS,
    SignalToBring,
)


@dataclass(frozen=True, slots=True)
class DelayedCommand:
    """A command that takes its place in line later.

    Attributes:
        command_id: Its id.
        name: Its wire name; empty if its envelope cannot be read.
        entity_type: Type of its entity; None without one.
        entity_id: Id of its entity.
        due_ms: When it takes its place, by the server's clock.
    """

    command_id: str
    name: str
    entity_type: str | None
    entity_id: str | None
    due_ms: int

    @property
    def due_at(self) -> datetime:
        """When it takes its place, in UTC."""
        return time_of(self.due_ms)


class Commands(OnSession):
    """Single commands.

    Args:
        session: Connections and settings of the bus.
    """

    async def signal(self, command_id: str | UUID, name: str, value: Any = None, *, signal_id: str | None = None) -> bool:
        """Bring a signal to a durable command, whose handler waits for it by `context.signal(name)`, or will.

        Args:
            command_id: Id of the command.
            name: As the handler names it in `context.signal(name)`.
            value: Plain data, or a model: of the type that the handler waits for.
            signal_id: One id of this name is taken once, however often it is sent; by default each call sends a signal of its own.

        Returns:
            False if a signal with this id was taken before.

        Raises:
            BadStep: The name or the value cannot be one, or the command takes no more of this name: 10,000 and 16 MiB of each that
                it has waited for, 1,000 and 4 MiB of all others.
            InvalidCommand: The command is not durable.
            InvalidSettings: The command is encrypted, and this bus has no cipher.
            UnknownCommand: No such command waits or runs, or none that is remembered: durable ones are.
            Unconfirmed: Too few replicas confirmed it (`durability="replicated"`). With a `signal_id` asking again is safe.
            TransportUnavailable: The server cannot be reached. With a `signal_id` asking again is safe.
        """
        checked = checked_name("name of a signal", name)
        limits = self._limits
        data = encoded_signal(f"signal {name!r}", value, limits)
        once = checked_id(signal_id) if signal_id else token(12).hex()
        wanted = checked_id(command_id)
        waiting = await self._waiting_in(wanted)
        parked = None if waiting else await StatusReader(self._session, wanted).parked_in()
        for mailbox in waiting if parked is None else [parked]:
            envelope = await self._durable_in(mailbox, wanted)
            sealed = self._sealed(envelope, mailbox, wanted, f"g:{checked}", data)
            signal = SignalToBring(checked, once, sealed, is_parked=mailbox == parked)
            told = await self._transport.durable.signal(mailbox, wanted, signal)
            if told == "full":
                raise BadStep(
                    f"{command_id} takes no further signal {name!r}. The most of a name that a command has waited for is {MOST_SIGNALS:,} signals "
                    f"and {MOST_SIGNAL_BYTES:,} bytes of their values, and of all other names together {MOST_OTHER_SIGNALS:,} and "
                    f"{MOST_OTHER_SIGNAL_BYTES:,}. Send a reference instead of the value, or a command instead of the signal"
                )
            if told != "gone":
                return told == "taken" or signal_id is None  # an answer was lost: its own id can only be repeated by itself
        raise UnknownCommand(f"no command {wanted!r} waits or runs: it has ended, or its id is not remembered")

    async def _durable_in(self, mailbox: str, command_id: str) -> WireEnvelope | None:
        """Return the envelope of a command that may wait for signals; None if it is not found.

        Raises:
            InvalidCommand: It is not durable.
        """
        begun = await self._transport.durable.has_begun(mailbox, command_id)
        envelope = await StatusReader(self._session, command_id).envelope_in(mailbox, begun=begun)
        if not begun and envelope is not None and not DURABLE.of(envelope.options):
            raise InvalidCommand(
                f"{envelope.name} {command_id} is not durable, so nothing in it waits for a signal: declare its class with durable=True, or "
                "dispatch another command"
            )
        return envelope

    def _sealed(self, envelope: WireEnvelope | None, mailbox: str, command_id: str, name: str, data: bytes) -> bytes:
        """Return the value of a signal as its command reads it: encrypted if the command is.

        Raises:
            InvalidSettings: The command is encrypted, and this bus has no cipher.
        """
        protection = self._session.protection
        cipher = None if protection is None else protection.cipher
        is_encrypted = cipher is not None if envelope is None else bool(envelope.flags & ENCRYPTED)
        if not is_encrypted:
            return data
        if protection is None or cipher is None:
            raise InvalidSettings(
                f"command {command_id} is encrypted, so its signals are: send them by a bus that has its cipher"
            )
        return protection.sealed(mailbox, command_id, name, data)

    async def _waiting_in(self, command_id: str) -> list[str]:
        """Return the mailboxes in which a command is not settled, by its marks."""
        marks = await self._transport.locations.marks(command_id)
        return [mailbox for mailbox in map(mailbox_in, marks) if mailbox is not None]

    async def status(
        self, command_id: str | UUID | Receipt[Any], *, entity: tuple[str, str | int] | None = None, looks_around: bool = True
    ) -> CommandStatus:
        """Return where a command is: in line, delayed, running, waiting for what, settled. It is a look at a moment.

        A command that was dispatched with an id or `keep_result`, called, or durable is found by its mark, in one round trip, for `dedup_window` or
        `reply_ttl` after its end as well. Any other is found if it is delayed; in the line of its entity, if that is named; among the
        first 20,000 commands of the namespace; as a dead letter that parks its entity or is one of the newest; and by its history. That takes
        up to a second. A thousand commands of a line are looked through for its place.

        Args:
            command_id: Its id, or the receipt of its dispatch; of a duplicate that is the command which waits or runs.
            entity: Type and id of its entity, to find it there if its id was generated.
            looks_around: Whether it is looked for among others if it has no mark. For who asks often, or on behalf of strangers, `False`.

        Raises:
            UnknownCommand: It was not found.
            TransportUnavailable: The server cannot be reached.
        """
        wanted = running_id(command_id) if isinstance(command_id, Receipt) else command_id
        return await self._reader(wanted, entity, looks_around=looks_around).status()

    def _reader(self, command_id: str | UUID, entity: tuple[str, str | int] | None, *, looks_around: bool = True) -> StatusReader:
        return StatusReader(self._session, checked_id(command_id), self._likely(entity), looks_around=looks_around)

    def _likely(self, entity: tuple[str, str | int] | None) -> str | None:
        """Return the mailbox of an entity that is named."""
        if entity is None:
            return None
        policy = self._session.settings.entity(check_entity_type(entity[0])).mailbox
        return mailbox_name(entity[0], canonical_entity_id(entity[1]), policy)

    def progress(self, command_id: str | UUID) -> AsyncIterator[ProgressInfo]:
        """Iterate over how far a command is: `async for each in bus.commands.progress(command_id)`.

        Yields what its handler says by `context.progress`, whenever that has changed, and at last how the command ended. It looks again after 50 ms
        to a second; what is replaced in between is not seen.

        Raises:
            UnknownCommand: Nothing is known of it: see `status`.
            TransportUnavailable: The server cannot be reached.
        """
        return progress_of(self._session, checked_id(command_id))

    async def record(self, command_id: str | UUID, *, entity: tuple[str, str | int] | None = None) -> CommandRecord:
        """Return what a command that is not settled has stored: progress, log, and the steps of a durable one.

        Args:
            command_id: Its id.
            entity: As for `status`.

        Raises:
            UnknownCommand: Nothing is known of it: see `status`.
            TransportUnavailable: The server cannot be reached.
        """
        return await record_of(self._session, checked_id(command_id), self._reader(command_id, entity))

    async def tree(
        self, command_id: str | UUID, *, entity: tuple[str, str | int] | None = None, limit: int = 1000
    ) -> CommandTree:
        """Return a command with what it has called, and what that has called: all of a durable one that is not settled.

        It takes two requests or so for each command; those of a level are read together.

        Args:
            command_id: Its id.
            entity: As for `status`.
            limit: At most so many commands.

        Raises:
            InvalidSettings: The limit is below 1.
            UnknownCommand: Nothing is known of it: see `status`.
            TransportUnavailable: The server cannot be reached.
        """
        if limit < 1:
            raise InvalidSettings("limit: at least 1")
        return await tree_of(self._session, checked_id(command_id), self._likely(entity), limit)

    async def cancel(self, command_id: str | UUID, *, running: bool = False, reason: str = "", wait: float = 10.0) -> bool:
        """Take a command out of line; with `running` also end one that has started. Its caller gets `CommandCancelled`.

        A handler that is a coroutine is cancelled within about a second, one in a thread sees `context.cancelled`. When it has ended, the command
        is settled as cancelled, however it ended, and the next of its entity starts. What it did until then stays done. If it ended before its
        worker knew of the wish, its outcome stands. The wish is for this command only: it never meets another, and a retry is taken out of line.

        A durable command ends at its next await of what has not ended yet: what it has called and has not started is taken out of line, what has
        started is waited for, and what it did is compensated. One that is being compensated ends as it was decided before.

        Quick for ids that were given, for calls and for delayed commands. For the generated id of a dispatch every line is looked through.

        Args:
            command_id: Id of the command.
            running: Whether to end a command that has started.
            reason: For its caller and the handler's context.
            wait: Seconds to wait for the end of a handler. One that goes on longer has been told; its command is settled as cancelled at its end.

        Returns:
            Whether it is cancelled, or will be: of a durable command, unless its handler finishes first. False if it has ended, is compensated
            with another end, is unknown, or has started and `running` is not set.

        Raises:
            InvalidCommand: `wait` is not a positive number of seconds.
            BadStep: It is being compensated, and its end was written by another release.
            CommandTimeout: Its worker has not answered in time. What was asked for stays asked for some minutes longer.
            Unconfirmed: The command is durable, and too few replicas confirmed the wish (`durability="replicated"`). Asking again is safe.
            TransportUnavailable: The server cannot be reached.
        """
        seconds, wanted = checked_seconds("wait", wait), checked_id(command_id)
        if await WaitingCommands(self._session).cancel(wanted, reason):  # it stood in line, and was no durable one that has begun
            return True
        return running and await Cancelling(self._session, wanted, reason).end(seconds)

    async def reschedule(self, command_id: str, *, delay: float | None = None, at: datetime | None = None) -> bool:
        """Give a delayed command another time; False: it is not delayed any more. It joins the end of its line then.

        Args:
            command_id: Id of the command.
            delay: Seconds from now; 0 promotes it now.
            at: The moment, with a time zone, instead of `delay`.

        Raises:
            InvalidCommand: Neither a delay nor a moment, or both.
            TransportUnavailable: The server cannot be reached. Asking again is safe.
        """
        at_ms, delay_ms = moment_of(delay, at)
        mailboxes = self._operator.mailboxes
        found = await mailboxes.find_delayed(command_id)
        return found is not None and await mailboxes.reschedule(found[0], command_id, at_ms, delay_ms)

    async def prioritize(
        self, command_id: str | UUID, priority: Priority, *, entity: tuple[str, str | int] | None = None
    ) -> bool:
        """Give a delayed command another priority, or else the line in which the command waits, as `bus.entity(…).prioritize` does.

        It is found as for `cancel`.

        Args:
            command_id: Id of the command.
            priority: `"high"`, `"normal"` or `"low"`.
            entity: As for `status`.

        Returns:
            Whether it waits or runs.

        Raises:
            InvalidCommand: The priority is none.
            NewerState: Its entity is in a state that only a later release knows.
            TransportUnavailable: The server cannot be reached. Asking again is safe.
        """
        wanted, checked, shares = checked_id(command_id), checked_priority(priority), self._operator.shares
        for mailbox in await WaitingCommands(self._session).find(wanted, likely=self._likely(entity)):
            if await shares.prioritize(mailbox, checked, [wanted]) or await shares.prioritize(mailbox, checked):
                return True
        return False

    def select(self, *, scan: int = 1_000_000, **filters: Unpack[CommandFilters]) -> Selection:
        """Return the commands that are not settled and fit all filters, to be listed, or changed together.

            async for each in bus.commands.select(state="waiting", name="Ship", where={"carrier": "acme"}):
                print(each.command_id, each.entity_id)
            async for step in bus.commands.select(name="Ship", where={"carrier": "acme"}).cancel("the carrier is closed"):
                print(step)

        Nothing is read before that.

        Args:
            scan: Look at about so many commands at most.
            filters: What a command has to fit; without any, all fit.

        Raises:
            InvalidCommand: An entity type is none, or an age is no number of seconds.
            InvalidSettings: A state or a filter is none, or `scan` is below 1.
        """
        return Selection(self._session, filters, scan)

    async def delayed(self, *, entity_type: str | None = None, before: datetime | None = None) -> AsyncIterator[DelayedCommand]:
        """Yield the delayed commands, in no order; of an entity type, and due before a moment, if those are given.

        Raises:
            InvalidSettings: `before` has no time zone.
            TransportUnavailable: The server cannot be reached.
        """
        limit = None if before is None else milliseconds_of("before", before)
        async for each in self.select(state="delayed", entity_type=entity_type):
            if each.due_ms is not None and (limit is None or each.due_ms < limit):
                yield DelayedCommand(each.command_id, each.name, each.entity_type, each.entity_id, each.due_ms)
