"""`Children`: the commands that a durable handler calls. Each is sent once, and its outcome comes back to the side record of its caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar, Unpack

from command_bus.errors import BadSignature, CallCycle, CommandBusError, CommandCancelled, InvalidCommand
from command_bus.messages.message import Message
from command_bus.messages.options import DispatchOptions
from command_bus.messages.outgoing import Across, OutgoingMessage
from command_bus.sending.envelope_builder import EnvelopeBuilder
from command_bus.sending.follow_ups import while_away
from command_bus.sending.results import ResultReader
from command_bus.sending.several import entities_of, part_of
from command_bus.sending.waiting import WaitingCommands
from command_bus.serialization.envelope import ENCRYPTED, WireEnvelope, unpack_envelope
from command_bus.serialization.envelope_options import HISTORY, RETURN
from command_bus.serialization.limits import reading_limits
from command_bus.session import Session
from command_bus.transport.mailboxes import envelope_in, free_mailbox, mailbox_label, pack_entry, stands_in, unpack_entry
from command_bus.transport.marks import waiting_mark
from command_bus.transport.ports.durable import CIRCLE, CalledCommand
from command_bus.transport.ports.sender import Reply
from command_bus.transport.steps import FollowUp
from command_bus.transport.submissions import NO_DIGEST, Submission

T = TypeVar("T")


class Child(NamedTuple):
    """A command that is called.

    Attributes:
        follow_up: What is sent.
        digest: Tells the command from another, in 8 bytes.
    """

    follow_up: FollowUp
    digest: bytes


@dataclass(eq=False, slots=True)
class Children:
    """Makes the calls of one run of a durable handler.

    Args:
        session: Connections and settings of the worker's bus.
        builder: Encodes commands.
        prepare: Passes a command through middleware, agrees on its entity type, and makes its submission.
        results: Reads outcomes.
        command_id: Id of the command whose handler calls.
        mailbox: Its mailbox.
    """

    session: Session
    builder: EnvelopeBuilder
    prepare: Callable[[OutgoingMessage], Awaitable[Submission]]
    results: ResultReader
    caller: str
    mailbox: str

    def outgoing(self, command: Message[Any], **options: Unpack[DispatchOptions]) -> OutgoingMessage:
        """Return a command with its options, checked and encoded.

        Raises:
            InvalidCommand: It or an option is not what it may be.
        """
        out = self.builder.outgoing(command, options)
        if out.unique is not None:
            raise InvalidCommand(f"{out.name!r} has a unique key, which a durable call does not know: use context.dispatch")
        out.given_id = True  # its outcome is remembered, should it not reach the caller
        return out

    def part_behind(self, out: OutgoingMessage, across: Across) -> tuple[OutgoingMessage, str]:
        """Return the part of a command in its lines of the next shard behind that of its caller, and a mailbox of the last shard."""
        shard_of, lines = self.session.transport.shard_of, [self.builder.mailbox_of(*each) for each in entities_of(out)]
        return part_of(out, [*map(shard_of, lines)], shard_of(self.mailbox), across), max(lines, key=shard_of)

    def keep_end(self, out: OutgoingMessage) -> None:
        """Give a command that was packed without a bus the history of this one, unless it has one, or (None) wants none."""
        if HISTORY.letter not in out.options:
            HISTORY.put(out.options, self.session.settings.history_of(None, out.entity_type))
        elif out.options[HISTORY.letter] is None:
            del out.options[HISTORY.letter]

    def digest_of(self, out: OutgoingMessage) -> bytes:
        """Return the digest of a command that is called, 8 bytes (see `equality`)."""
        return self.builder.digest_of(out)

    async def child(self, out: OutgoingMessage, call: str, seed: str) -> Child:
        """Return the call of a command under a name.

        Args:
            out: The command.
            call: Name of the call in the caller's side record.
            seed: What tells this caller's calls of that name from those of an earlier command with its id.

        Raises:
            CallCycle: It would wait for its own caller.
        """
        out.command_id = self._id_of(call, seed)
        out.inbox = self.session.transport.replies.process
        RETURN.put(out.options, (self.mailbox, self.caller, call))
        submission = await while_away(partial(self.prepare, out))
        mark = waiting_mark(submission.digest, submission.mailbox)
        return Child(
            FollowUp(submission.mailbox, out.command_id, submission.entry, submission.flow, submission.delay_ms, mark),
            self.digest_of(out) if submission.digest == NO_DIGEST else submission.digest,
        )

    async def again(self, sent: FollowUp, first: str, call: str, seed: str) -> FollowUp:
        """Return a command that was kept as a call of the first name, as one of another: with an id of its own.

        Raises:
            BadSignature: It is not what a key holder had put there, so it is not signed again.
            CommandBusError: It cannot be read or packed by this worker.
        """
        envelope = unpack_envelope(envelope_in(sent.envelope), reading_limits(self.session.settings))
        if fault := await self._fault(sent, first, envelope):
            raise BadSignature(
                f"{envelope.name} on {mailbox_label(sent.mailbox)} is not sent: {fault}", command_id=sent.command_id
            )
        protection, command_id = self.session.protection, self._id_of(call, seed)
        has_entity = envelope.entity_type is not None and envelope.entity_id is not None
        changed = replace(
            envelope,
            command_id=command_id,
            payload=envelope.payload if protection is None else protection.payload(envelope),
            flags=envelope.flags & ~ENCRYPTED,
            inbox=self.session.transport.replies.process,
            options=RETURN.replaced(envelope.options, (self.mailbox, self.caller, call)),
            signature=None,
        )
        mailbox = sent.mailbox if has_entity else free_mailbox(command_id)
        fields = [part for field in unpack_entry(sent.envelope) for part in field]
        fields[1] = self.builder.pack(changed)
        return replace(sent, command_id=command_id, mailbox=mailbox, envelope=pack_entry(fields))

    async def _fault(self, sent: FollowUp, first: str, envelope: WireEnvelope) -> str | None:
        """Return what is wrong with the signature of a command that was kept, its purpose or its mailbox; None if nothing is.

        Who can write to the server could have put it there; packed again, it would have a signature of ours.
        """
        protection = self.session.protection
        signatures = None if protection is None else protection.signatures
        if signatures is None:
            return None if envelope.signature is None else "it is signed, and this worker has no signing_keys"
        fault = signatures.fault(envelope_in(sent.envelope), envelope.signature)
        if fault is not None or envelope.signature is None:
            return fault
        if RETURN.of(envelope.options) != (self.mailbox, self.caller, first):
            return "it was not signed to be kept by this command under this name"
        policy, entity_type = None, envelope.entity_type
        if entity_type is not None:
            agreements = self.session.transport.agreements
            if agreements.recorded(entity_type) is None:
                await agreements.learn(entity_type)
            policy = agreements.recorded(entity_type) or self.session.settings.entity(entity_type).mailbox
        if stands_in(sent.mailbox, entity_type, envelope.entity_id, envelope.command_id, policy):
            return None
        return "it was signed for another entity than that in whose line it is to stand"

    def _id_of(self, call: str, seed: str) -> str:
        return "~" + blake2b(f"{self.caller}\0{seed}\0{call}".encode(), digest_size=16).hexdigest()

    def expect(self, command_id: str) -> Reply:
        """Be ready for the reply to a call, before it is sent."""
        return self.session.transport.replies.expect(command_id)

    async def remove(self, mailbox: str, command_id: str) -> bool:
        """Take a command that was called out of its line; return False if it has begun, or is not there."""
        return await WaitingCommands(self.session).cancel_in(mailbox, command_id, fresh=True)

    async def give_up(self, mailbox: str, command_id: str, reason: str, *, is_durable: bool = False) -> bool:
        """Take a command that was called out of its line, or, if it is durable and has begun, let it end, and what it has called as well.

        Args:
            mailbox: Name of the command's mailbox.
            command_id: Id of the command.
            reason: For what it ends with.
            is_durable: Whether it is known to be durable; else it is looked up.

        Returns:
            False if its outcome has to be waited for.
        """
        if await self.remove(mailbox, command_id):
            return True
        durable = self.session.transport.durable
        if is_durable or await durable.has_begun(mailbox, command_id):
            await durable.cancel(mailbox, command_id, reason.encode())
        return False

    async def look_up(self, called: CalledCommand) -> None:
        """Bring the caller the outcome of a call that has ended, if that was lost on its way. It stays lost for now while a server is away."""
        with suppress(CommandBusError):
            await self.session.transport.durable.look_up(self.mailbox, self.caller, called)

    def awaited(self, work: Awaitable[T]) -> Awaitable[T]:
        """Return what waits for this: where a test has virtual time, that passes meanwhile."""
        hook = self.session.active_hook
        return work if hook is None else hook.awaited(work)

    def value_of(self, record: bytes, reply_type: Any, command_id: str) -> Any:
        """Return the result in an outcome.

        Raises:
            CallCycle: The command waits for its caller.
            CommandBusError: The outcome.
        """
        try:
            return self.results.value_of(record, reply_type, command_id)
        except CommandCancelled as error:
            if error.code != CIRCLE:
                raise
            raise CallCycle(error.message) from None
