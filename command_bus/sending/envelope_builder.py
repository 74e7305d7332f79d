"""Outgoing commands: a command with its options, turned into bytes and a place in line.

command + options → OutgoingMessage (what middleware sees) → Submission (what the transport takes)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from command_bus.clock import mono
from command_bus.errors import InvalidCommand, RegistrationError
from command_bus.messages.context import running_command
from command_bus.messages.handling_policy import check_durable
from command_bus.messages.history import History, HistoryChoice, history_of
from command_bus.messages.limits import check_costs
from command_bus.messages.message import (
    Message,
    MessageSpec,
    canonical_entity_id,
    check_entity_type,
    check_wire_name,
    checked_id,
)
from command_bus.messages.outgoing import Envelope, OutgoingMessage, RawEnvelope
from command_bus.messages.policies import EntityPolicy, Lanes, MailboxPolicy, Priority
from command_bus.messages.retry_policy import RetryPolicy
from command_bus.messages.unique import Unique
from command_bus.messages.upcasting import checked_version
from command_bus.sending.call_progress import check_running, with_waiting
from command_bus.sending.options import (
    checked_headers,
    checked_priority,
    compresses,
    fold,
    keep,
    new_command_id,
    options_of,
    schedule,
)
from command_bus.serialization.envelope import EnvelopeTemplate, pack_envelope, packed_text
from command_bus.serialization.envelope_options import DURABLE, VERSION, override, version_in, with_version
from command_bus.serialization.equality import NotPlain, digest, digest_of_head
from command_bus.serialization.limits import PayloadLimits
from command_bus.serialization.models import MessageCodec, codec_for
from command_bus.serialization.msgpack import pack, unpack
from command_bus.serialization.protection import Protection
from command_bus.serialization.wire_envelope import AT_MOST_ONCE, GIVEN_ID, WireEnvelope
from command_bus.settings import BusSettings
from command_bus.transport.flows import flow_of, tenant_of
from command_bus.transport.mailboxes import free_mailbox, is_plain_id, mailbox_name
from command_bus.transport.submissions import NO_DIGEST, Submission
from command_bus.transport.unique_keys import UniqueSubmission, stander_of


def command_digest(out: OutgoingMessage, limits: PayloadLimits, protection: Protection | None = None) -> bytes:
    """Return eight bytes by which a command is seen to be the same as another of its id (see `equality`).

    With a cipher they are of its fields only as far as there is a key: else a reader of the server could confirm a guess.
    """
    head, key = (out.name, out.entity_type, out.entity_id), b""
    if protection is not None and protection.cipher is not None:
        key = protection.digest_key
        if not key:
            return digest_of_head(head, version_in(out.options))
    with suppress(NotPlain):  # a serializer of the class makes data of it, or it nests deeper than Python's stack
        if out.command is not None:
            return digest(head, out.command, key=key)
    version = version_in(out.options)
    with suppress(NotPlain):
        return digest(head, unpack(out.payload, limits), version, key)
    return digest(head, out.payload, version, key)


_NIL = b"\xc0"


@dataclass(slots=True)
class _Route:
    """The parts that all messages of a class share."""

    spec: MessageSpec
    codec: MessageCodec[Any]
    mailbox: MailboxPolicy
    max_depth: int
    at_most_once: bool
    stamp: EnvelopeTemplate
    priority: Priority
    flow: str
    history: History | None

    def flow_of(self, message: Message[Any]) -> str:
        """Return what a message without options waits in."""
        fair_by = self.spec.fair_by
        return self.flow if fair_by is None else flow_of(self.priority, tenant_of(getattr(message, fair_by, None)))


class EnvelopeBuilder:
    """Turns messages and raw payloads into outbound values, and those into submissions. Pure: no I/O.

    Args:
        settings: PayloadLimits and entity policies.
        protection: Signs and encrypts; by default what the settings say.
    """

    def __init__(self, settings: BusSettings, protection: Protection | None = None) -> None:
        protection, self._settings = protection or Protection.of(settings), settings
        self._encrypts = protection is not None and protection.cipher is not None
        self.pack = pack_envelope if protection is None else protection.pack
        self.sign = None if protection is None else protection.sign
        self._routes: dict[type[Message[Any]], _Route] = {}
        self._names: dict[str, type[Message[Any]]] = {}
        self._compresses = settings.compress_above is not None  # or a class does
        self.limits = limits = PayloadLimits(max_bytes=settings.max_payload, max_nesting=settings.max_nesting)
        self.digest_of = partial(command_digest, limits=limits, protection=protection)

    def outgoing(
        self,
        message: Message[Any],
        *,
        command_id: str | UUID | None = None,
        delay: float = 0.0,
        at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
        expires: float | None = None,
        keep_result: bool = False,
        priority: Priority | None = None,
        retry: RetryPolicy | None = None,
        attempt_timeout: float | None = None,
        unique: Unique | None = None,
        history: HistoryChoice | None = None,
    ) -> OutgoingMessage:
        """Return a message with its options, checked and encoded.

        Raises:
            InvalidCommand: The message or an option is not what it may be.
        """
        route = self._routes.get(type(message)) or self._bind(message)
        spec = route.spec
        if spec.limits:
            check_costs(spec.limits, message)
        entity_id = None if spec.key is None else canonical_entity_id(getattr(message, spec.key, None))
        out = OutgoingMessage(
            spec.name,
            spec.entity,
            entity_id,
            route.codec.encode(message, self.limits),
            new_command_id() if command_id is None else checked_id(command_id),
            keep_result or command_id is not None or spec.durable,
            route.at_most_once,
            command=message,
            priority=spec.priority if priority is None else checked_priority(priority),
            tenant="" if spec.fair_by is None else tenant_of(getattr(message, spec.fair_by, None)),
        )
        if spec.version > 1:
            out.options[VERSION] = spec.version
        if spec.durable:
            out.options[DURABLE] = 1
        if retry is not None or attempt_timeout is not None:
            override(out.options, retry, attempt_timeout)
        keep(out, route.history if history is None else history_of(history))
        if headers:
            out.headers = checked_headers(headers)
        if unique is not None or spec.unique is not None:
            delay = fold(out, unique or spec.unique, delay, at)
        if delay or at is not None or expires is not None:
            schedule(out, delay, at, expires)
        return out

    def raw(
        self,
        entity_type: str | None,
        entity_id: str | int | None,
        name: str,
        payload: Mapping[str, Any],
        *,
        version: int = 1,
        command_id: str | UUID | None = None,
        delay: float = 0.0,
        at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
        expires: float | None = None,
        keep_result: bool = False,
        priority: Priority | None = None,
        retry: RetryPolicy | None = None,
        attempt_timeout: float | None = None,
        unique: Unique | None = None,
        history: HistoryChoice | None = None,
    ) -> OutgoingMessage:
        """Return a message made without its class, checked and encoded.

        Raises:
            InvalidCommand: A part of it is not what it may be.
        """
        if (entity_type is None) != (entity_id is None):
            raise InvalidCommand("an entity has a type and an id: give both, or neither for a message that runs freely")
        if not isinstance(payload, Mapping) or not all(isinstance(key, str) for key in payload):
            raise InvalidCommand(f"the payload of {name!r} is a mapping of field names to values")
        out = OutgoingMessage(
            check_wire_name(name),
            None if entity_type is None else check_entity_type(entity_type),
            None if entity_id is None else canonical_entity_id(entity_id),
            pack(dict(payload), self.limits),
            new_command_id() if command_id is None else checked_id(command_id),
            keep_result or command_id is not None,
            headers=checked_headers(headers or {}),
            priority=None if priority is None else checked_priority(priority),
        )
        schedule(out, fold(out, unique, delay, at), at, expires)
        if checked_version(version) > 1:
            out.options[VERSION] = version
        override(out.options, retry, attempt_timeout)
        keep(out, self._settings.history_of(None, out.entity_type) if history is None else history_of(history))
        return out

    def build(self, out: OutgoingMessage) -> Submission:
        """Build the submission of an outgoing message: pack its envelope, name its mailbox.

        Raises:
            CallCycle: It is a call to an entity that waits for the handler that runs here.
            Suspended: The run of the durable handler that runs here is over.
            InvalidCommand: Its headers are too large.
        """
        running = running_command()
        policy = self._settings.entity(out.entity_type)
        mailbox = self._mailbox(out, policy)
        if running is not None:
            check_running(out, running, mailbox)
        flags = (GIVEN_ID if out.given_id else 0) | (AT_MOST_ONCE if out.at_most_once else 0)
        priority = out.priority or policy.priority
        ttl_ms = out.ttl_ms if out.deadline is None else _left_ms(out.deadline)
        envelope = WireEnvelope(
            out.command_id, out.name, out.entity_type, out.entity_id, out.payload, flags, ttl_ms, out.inbox,
            running.correlation_id if running is not None else None,
            running.command_id if running is not None else None,
            out.headers or None,
            options=(out.options or None) if priority == "normal" and running is None else with_waiting(out, priority, running),
            compressed=self._compresses and compresses(out, self._settings),
        )  # fmt: skip
        unique = None if out.unique is None else UniqueSubmission.of(out.unique, envelope, mailbox)
        return Submission(
            mailbox,
            out.command_id,
            self.pack(envelope),
            self.digest_of(out) if out.given_id else NO_DIGEST,
            policy.max_depth or self._settings.max_depth,
            out.delay_ms,
            out.given_id or out.inbox is not None,
            out.name,
            None if out.deadline is None else partial(self._renewed, envelope, out.deadline, unique),
            flow_of(priority, out.tenant) if out.tenant or priority != "normal" else "",
            unique,
        )

    def _renewed(self, envelope: WireEnvelope, deadline: float, unique: UniqueSubmission | None) -> bytes:
        """Pack an envelope again with the time to live that is left, for which it also holds its unique key."""
        envelope = replace(envelope, ttl_ms=_left_ms(deadline))
        if unique is not None:
            unique.stander = stander_of(envelope)
        return self.pack(envelope)

    @property
    def can_build_fast(self) -> bool:
        """Whether `build_fast` can be used: nothing is encrypted, and no handler runs here whose ids a message would carry."""
        return not self._encrypts and running_command() is None

    def build_fast(self, message: Message[Any]) -> Submission:
        """Build the submission of a message without options, bypassing middleware; three times as fast as `outgoing` and `build`.

        Raises:
            InvalidCommand: As `outgoing`.
        """
        route = self._routes.get(type(message)) or self._bind(message)
        spec = route.spec
        if spec.limits:
            check_costs(spec.limits, message)
        command_id = new_command_id()
        payload = route.codec.encode(message, self.limits)
        if spec.entity is None or spec.key is None:
            mailbox, packed_id = free_mailbox(command_id), _NIL
        else:
            entity_id = canonical_entity_id(getattr(message, spec.key, None))
            mailbox, packed_id = mailbox_name(spec.entity, entity_id, route.mailbox), packed_text(entity_id)
        envelope = route.stamp.pack(packed_text(command_id), packed_id, payload)
        flow = route.flow if spec.fair_by is None else route.flow_of(message)
        return Submission(mailbox, command_id, envelope, NO_DIGEST, route.max_depth, 0, False, spec.name, None, flow)

    def build_run(self, messages: Sequence[Message[Any]]) -> list[Submission | InvalidCommand]:
        """Build the submissions of messages of one class, as `build_fast` does, in half of its time; an error where there is none."""
        route = self._routes.get(type(messages[0])) or self._bind(messages[0])
        key, encode, limits, depth, name = route.spec.key, route.codec.encode, self.limits, route.max_depth, route.spec.name
        start = f"{route.spec.entity}:"
        flow, is_shared = route.flow, route.spec.fair_by is not None
        pack = None if key is None or isinstance(route.mailbox, Lanes) or route.spec.limits else route.stamp.packer()
        built: list[Submission | InvalidCommand] = []
        for message in messages:
            try:
                entity_id = None if key is None or pack is None else getattr(message, key, None)
                if pack is not None and type(entity_id) is str and is_plain_id(entity_id):
                    command_id = new_command_id()
                    envelope = pack(command_id, entity_id, encode(message, limits))
                    if is_shared:
                        flow = route.flow_of(message)
                    built.append(
                        Submission(start + entity_id, command_id, envelope, NO_DIGEST, depth, 0, False, name, None, flow)
                    )
                else:
                    built.append(self.build_fast(message))
            except InvalidCommand as error:
                built.append(error)
        return built

    def spec_of(self, message: Message[Any]) -> MessageSpec:
        """Return what the class of a message says.

        Raises:
            InvalidCommand: It is no message.
        """
        return (self._routes.get(type(message)) or self._bind(message)).spec

    def of_item(self, item: Message[Any] | Envelope[Any] | RawEnvelope) -> OutgoingMessage:
        """Return an item of a batch.

        Raises:
            InvalidCommand: As `outgoing`.
        """
        if isinstance(item, RawEnvelope):
            return self.raw(item.entity_type, item.entity_id, item.name, item.payload, version=item.version, **item.options)
        if isinstance(item, Envelope):
            return self.outgoing(
                item.command,
                command_id=item.command_id,
                delay=item.delay,
                at=item.at,
                headers=item.headers,
                expires=item.expires,
                keep_result=item.keep_result,
                priority=item.priority,
                retry=item.retry,
                attempt_timeout=item.attempt_timeout,
                unique=item.unique,
                history=item.history,
            )
        return self.outgoing(item)

    def mailbox_if_known(self, item: object) -> tuple[str, ...]:
        """Return the mailbox that an item which cannot be sent would have had, if it is known."""
        if isinstance(item, RawEnvelope):
            return self._mailbox_if_sound(item.entity_type, item.entity_id)
        message = item.command if isinstance(item, Envelope) else item
        if not isinstance(message, Message) or type(message).__message_spec__ is None:
            return ()
        spec = type(message).spec()
        return () if spec.key is None else self._mailbox_if_sound(spec.entity, getattr(message, spec.key, None))

    def _mailbox_if_sound(self, entity_type: str | None, entity_id: object) -> tuple[str, ...]:
        if entity_type is None or entity_id is None:
            return ()
        try:
            return (self.mailbox_of(check_entity_type(entity_type), canonical_entity_id(entity_id)),)
        except InvalidCommand:
            return ()

    def mailbox_of(self, entity_type: str, entity_id: str) -> str:
        """Return the mailbox of an entity."""
        return mailbox_name(entity_type, entity_id, self._settings.entity(entity_type).mailbox)

    def mailbox_for(self, out: OutgoingMessage) -> str:
        """Return the mailbox of an outbound value."""
        return self._mailbox(out, self._settings.entity(out.entity_type))

    def _mailbox(self, out: OutgoingMessage, policy: EntityPolicy) -> str:
        if out.entity_type is None or out.entity_id is None:
            return free_mailbox(out.command_id)
        return mailbox_name(out.entity_type, out.entity_id, policy.mailbox)

    def _bind(self, message: Message[Any]) -> _Route:
        kind = type(message)
        if not isinstance(message, Message):
            raise InvalidCommand(f"{kind.__qualname__} is no command: dispatch instances of Command[…] or Query[…] subclasses")
        spec = kind.spec()
        other = self._names.setdefault(spec.name, kind)
        if other is not kind:
            raise RegistrationError(
                f"{kind.__module__}.{kind.__qualname__} and {other.__module__}.{other.__qualname__} have the wire name {spec.name!r}: "
                'give one of them another with name="…"'
            )
        self._compresses = self._compresses or spec.compress_above is not None
        policy = self._settings.entity(spec.entity)
        delivery = self._settings.handling(spec).delivery
        check_durable(spec, policy.mailbox, delivery)
        at_most_once = delivery == "at_most_once"
        flags = AT_MOST_ONCE if at_most_once else 0
        priority = spec.priority or policy.priority
        history = self._settings.history_of(spec, spec.entity)
        sample = None if spec.entity is None else "x"
        stamp = EnvelopeTemplate(
            WireEnvelope(
                "x", spec.name, spec.entity, sample, b"", flags, options=with_version(options_of(priority, history), spec.version)
            ),
            self.sign,
            self._settings.compress_above_of(spec),
        )
        depth = policy.max_depth or self._settings.max_depth
        flow = flow_of(priority)
        route = self._routes[kind] = _Route(
            spec, codec_for(kind), policy.mailbox, depth, at_most_once, stamp, priority, flow, history
        )
        return route


def _left_ms(deadline: float) -> int:
    return max(1, int((deadline - mono()) * 1000))
