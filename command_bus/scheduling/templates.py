"""Templates: the stored command of a schedule, and the firings that are made of it.

A template is an envelope whose command id is the schedule's name. It is signed and encrypted as a template of that name, so no one who can
write to the server can make workers sign another one, nor a command that was signed once: the worker verifies what is stored before it signs a
firing.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from command_bus.errors import CommandBusError, InvalidCommand
from command_bus.scheduling.record import ScheduleRecord
from command_bus.sending.call_progress import HOPS
from command_bus.serialization.envelope import ENCRYPTED, WireEnvelope, pack_envelope, unpack_envelope
from command_bus.serialization.envelope_options import UNIQUE
from command_bus.serialization.limits import Undecodable
from command_bus.serialization.protection import Protection
from command_bus.session import OnSession, Session
from command_bus.transport.flows import envelope_flow
from command_bus.transport.mailboxes import free_mailbox, mailbox_name
from command_bus.transport.marks import digest_of
from command_bus.transport.ports.schedules import Firing


class BadTemplate(CommandBusError):
    """The stored command of a schedule is not what a holder of a key has put there."""

    code = "bad_template"


class ForeignTemplate(CommandBusError):
    """The stored command of a schedule needs keys that this process does not have; another one may have them."""

    code = "foreign_template"


class Templates(OnSession):
    """Reads templates and makes firings of them.

    Args:
        session: Connections and settings of the bus.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._settings = session.settings

    @property
    def _protection(self) -> Protection | None:
        """The protection of templates; that of commands is the session's."""
        protection = self._session.protection
        return protection and protection.templates

    def read(self, record: ScheduleRecord) -> WireEnvelope:
        """Return the stored envelope as it is.

        Raises:
            BadTemplate: It cannot be read, or is that of another schedule.
        """
        try:
            envelope = unpack_envelope(record.template, self._limits)
        except Undecodable as error:
            raise BadTemplate(f"its command cannot be read: {error}") from None
        if envelope.command_id != record.name:
            raise BadTemplate("its command is that of another schedule")
        return envelope

    def readable(self, record: ScheduleRecord) -> WireEnvelope | None:
        """Return what a schedule dispatches, or None if it cannot be read here."""
        try:
            return self.read(record)
        except BadTemplate:
            return None

    def clear(self, record: ScheduleRecord) -> WireEnvelope:
        """Return the stored envelope, verified, with its payload in clear text.

        Raises:
            BadTemplate: As `read`, or it is not signed as it ought to be.
            ForeignTemplate: It was signed or encrypted, and this bus has no keys.
        """
        return self._clear(record, self._protection)

    def moved(self, record: ScheduleRecord, namespace: str) -> bytes:
        """Return the template of a schedule from another namespace, signed and encrypted for this one.

        Raises:
            BadTemplate, ForeignTemplate: As `clear`.
        """
        protection = self._protection
        if namespace == self._settings.namespace:
            with suppress(ForeignTemplate):
                self.clear(record)
            return record.template
        theirs = self._settings.model_copy(update={"namespace": namespace})
        before = None if protection is None else Protection.of(theirs, protection.cipher)
        envelope = replace(self._clear(record, before and before.templates), signature=None)
        return pack_envelope(envelope) if protection is None else protection.pack(envelope)

    def _clear(self, record: ScheduleRecord, protection: Protection | None) -> WireEnvelope:
        envelope = self.read(record)
        signatures = None if protection is None else protection.signatures
        if signatures is not None and (fault := signatures.fault(record.template, envelope.signature)) is not None:
            raise BadTemplate(f"bad signature: {fault}")
        if envelope.signature is not None and signatures is None:
            raise ForeignTemplate("its command is signed, and this bus has no signing keys")
        if not envelope.flags & ENCRYPTED:
            return envelope
        if protection is None or protection.cipher is None:
            raise ForeignTemplate("its command is encrypted, and this bus has no cipher")
        try:
            payload = protection.payload(envelope)
        except InvalidCommand as error:
            raise BadTemplate(error.message) from error
        return replace(envelope, payload=payload, flags=envelope.flags & ~ENCRYPTED)

    async def mailbox(self, envelope: WireEnvelope, command_id: str) -> str:
        """Return the mailbox of a firing, by what the namespace recorded for its entity type."""
        if envelope.entity_type is None or envelope.entity_id is None:
            return free_mailbox(command_id)
        agreements = self._transport.agreements
        policy = agreements.recorded(envelope.entity_type)
        if policy is None:
            await agreements.learn(envelope.entity_type)
            policy = agreements.recorded(envelope.entity_type)
        return mailbox_name(
            envelope.entity_type, envelope.entity_id, policy or self._settings.entity(envelope.entity_type).mailbox
        )

    async def firing(self, record: ScheduleRecord, now_ms: int) -> Firing:
        """Return the firing of the pinned tick.

        Raises:
            BadTemplate, ForeignTemplate: As `clear`.
            CommandBusError: The server cannot be asked.
        """
        stored = self.clear(record)
        command_id = record.pinned_id
        # A schedule's `overlap` takes the place of a unique key: a firing has none.
        options = UNIQUE.replaced(stored.options, None)
        headers = {name: value for name, value in (stored.headers or {}).items() if name != HOPS}  # each firing begins a chain
        envelope = replace(
            stored,
            command_id=command_id,
            signature=None,
            correlation_id=None,
            causation_id=None,
            headers=headers or None,
            options=options,
        )
        protection: Protection | None = self._session.protection
        packed = pack_envelope(envelope) if protection is None else protection.pack(envelope)
        policy = self._settings.entity(envelope.entity_type)
        return Firing(
            schedule=record.name,
            incarnation=record.incarnation,
            seq=record.seq,
            mailbox=await self.mailbox(envelope, command_id),
            command_id=command_id,
            envelope=packed,
            digest=digest_of(envelope),
            max_depth=policy.max_depth or self._settings.max_depth,
            late=record.finished(now_ms).late > record.late,
            flow=envelope_flow(envelope, record.tenant),
        )
