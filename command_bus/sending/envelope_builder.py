"""Outgoing commands: a command with its options, turned into bytes and a place in line.

command + options → OutgoingMessage (what middleware sees) → Submission (what the transport takes)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from command_bus.clock import mono
from command_bus.errors import InvalidCommand, RegistrationError
from command_bus.messages.context import Running, running_command
from command_bus.messages.event import Publish, PublishOptions, checked_event_id
from command_bus.messages.handling_policy import check_policies
from command_bus.messages.history import History
from command_bus.messages.limits import check_costs
from command_bus.messages.message import (
    Event,
    Message,
    MessageSpec,
    canonical_entity_id,
    check_entity_type,
    check_wire_name,
    other_entities,
)
from command_bus.messages.options import DispatchOptions
from command_bus.messages.outgoing import Envelope, OutgoingMessage, RawEnvelope
from command_bus.messages.policies import MailboxPolicy, PerEntity, Priority, delivered_name
from command_bus.messages.upcasting import checked_version
from command_bus.sending.call_progress import HOPS, check_running, hops_of
from command_bus.sending.options import compresses, give, new_command_id
from command_bus.sending.several import entities_of, part_of
from command_bus.serialization.envelope import AT_MOST_ONCE, GIVEN_ID, EnvelopeTemplate, WireEnvelope, pack_envelope, packed_text
from command_bus.serialization.envelope_options import (
    CALLERS,
    CHAIN,
    DURABLE,
    HISTORY,
    OTHERS,
    PRIORITY,
    VERSION,
    with_mailbox,
)
from command_bus.serialization.equality import NotPlain, digest, digest_of_head
from command_bus.serialization.limits import PayloadLimits, reading_limits
from command_bus.serialization.models import MessageCodec, codec_for
from command_bus.serialization.msgpack import pack, unpack
from command_bus.serialization.protection import Protection
from command_bus.settings import BusSettings
from command_bus.spelling import check_names
from command_bus.transport.flows import envelope_flow, flow_of, tenant_of
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
            return digest_of_head(head, VERSION.of(out.options))
    with suppress(NotPlain):  # a serializer of the class makes data of it, or it nests deeper than Python's stack
        if out.command is not None:
            return digest(head, out.command, key=key)
    version = VERSION.of(out.options)
    with suppress(NotPlain):
        return digest(head, unpack(out.payload, limits), version, key)
    return digest(head, out.payload, version, key)


_NIL = b"\xc0"
_NONE = DispatchOptions()
_MOST_BYTES = 3072  # of the mailboxes of further entities: they are part of the envelope's head


@dataclass(slots=True)
class _Route:
    """The parts that all messages of a class share."""

    spec: MessageSpec
    codec: MessageCodec[Any]
    mailbox: MailboxPolicy
    max_depth: int
    stamp: EnvelopeTemplate
    at_most_once: bool
    priority: Priority
    flow: str
    history: History | None

    def flow_of(self, message: Message[Any]) -> str:
        """Return what a message without options waits in."""
        fair_by = self.spec.fair_by
        return self.flow if fair_by is None else flow_of(self.priority, tenant_of(getattr(message, fair_by, None)))


def message_of(spec: MessageSpec, entity_id: str | None, payload: bytes, *, at_most_once: bool) -> OutgoingMessage:
    """Return a message of a class, as far as the class says it."""
    out = OutgoingMessage(
        spec.name, spec.entity, entity_id, payload,
        given_id=spec.durable, at_most_once=at_most_once, priority=spec.priority, unique=spec.unique, across_shards=spec.across_shards,
    )  # fmt: skip
    VERSION.put(out.options, spec.version)
    DURABLE.put(out.options, spec.durable)
    return out


def encoded_message(
    message: Message[Any], codec: MessageCodec[Any], limits: PayloadLimits, *, at_most_once: bool
) -> OutgoingMessage:
    """Return a message that is encoded, as far as it and its class say it.

    Raises:
        InvalidCommand: It or an id of an entity is not what it may be.
    """
    spec = type(message).spec()
    entity_id = None if spec.key is None else canonical_entity_id(getattr(message, spec.key, None))
    out = message_of(spec, entity_id, codec.encode(message, limits), at_most_once=at_most_once)
    out.command = message
    if spec.fair_by is not None:
        out.tenant = tenant_of(getattr(message, spec.fair_by, None))
    if spec.others:
        OTHERS.put(out.options, message.entity_ids())
    return out


def of_event(options: PublishOptions) -> DispatchOptions:
    """Return the options of an event as those of a command: its id is the event's.

    Raises:
        InvalidCommand: That cannot be one.
    """
    check_names(options, PublishOptions)
    event_id = options.get("event_id")
    others = {name: value for name, value in options.items() if name != "event_id"}
    return cast("DispatchOptions", {**others, "command_id": None if event_id is None else checked_event_id(event_id)})


class EnvelopeBuilder:
    """Turns messages and raw payloads into outgoing messages, and those into submissions. Pure: no I/O.

    Args:
        settings: Limits and policies of entities.
        protection: Signs and encrypts; by default what the settings say.
        shard_of: Returns the shard of a mailbox of the open bus; without it no command across shards can be built.

    Attributes:
        home: The server and the namespace that it builds for.
        max_hops: As the settings say.
    """

    def __init__(
        self, settings: BusSettings, protection: Protection | None = None, shard_of: Callable[[str], int] | None = None
    ) -> None:
        protection, self._settings, self._shard_of = protection or Protection.of(settings), settings, shard_of
        self.home, self.max_hops = settings.home, settings.max_hops
        self._encrypts = protection is not None and protection.cipher is not None
        self.pack = pack_envelope if protection is None else protection.pack
        self.sign = None if protection is None else protection.sign
        self._routes: dict[type[Message[Any]], _Route] = {}
        self._names: dict[str, type[Message[Any]]] = {}
        self._compresses = settings.compress_above is not None  # or a class does
        self.limits = PayloadLimits(max_bytes=settings.max_payload, max_nesting=settings.max_nesting)
        self.digest_of = partial(command_digest, limits=reading_limits(settings), protection=protection)

    def outgoing(self, message: Message[Any], options: DispatchOptions = _NONE) -> OutgoingMessage:
        """Return a message with its options, checked and encoded.

        Raises:
            InvalidCommand: The message or an option is not what it may be.
        """
        route = self._routes.get(type(message)) or self._bind(message)
        spec = route.spec
        if spec.limits:
            check_costs(spec.limits, message)
        out = encoded_message(message, route.codec, self.limits, at_most_once=route.at_most_once)
        return give(out, options, route.history)

    def event(self, event: Event, options: PublishOptions | None = None) -> OutgoingMessage:
        """Return an event with its options, checked and encoded, as it is before it is given to subscriptions; its id is the event's.

        Raises:
            InvalidCommand: The event or an option is not what it may be.
        """
        self._check_kind(event)
        if not isinstance(event, Event):
            raise InvalidCommand(f"{type(event).__qualname__} is a command: dispatch it; events are published")
        spec = type(event).spec()
        out = encoded_message(event, codec_for(type(event)), self.limits, at_most_once=False)
        return give(out, of_event(options or {}), self._settings.history_of(spec, spec.entity))

    def raw(self, raw: RawEnvelope, options: DispatchOptions | None = None) -> OutgoingMessage:
        """Return a message made without its class, checked and encoded; with these options, if they are given, instead of its own.

        Raises:
            InvalidCommand: A part of it is not what it may be.
        """
        entity_type, entity_id, name, payload = raw.entity_type, raw.entity_id, raw.name, raw.payload
        if (entity_type is None) != (entity_id is None):
            raise InvalidCommand("an entity has a type and an id: give both, or neither for a message that runs freely")
        if not isinstance(payload, Mapping) or not all(isinstance(key, str) for key in payload):
            raise InvalidCommand(f"the payload of {name!r} is a mapping of field names to values")
        out = OutgoingMessage(
            check_wire_name(name),
            None if entity_type is None else check_entity_type(entity_type, declared=True),
            None if entity_id is None else canonical_entity_id(entity_id),
            pack(dict(payload), self.limits),
            across_shards=raw.across_shards,
        )
        VERSION.put(out.options, checked_version(raw.version))
        if raw.others:
            OTHERS.put(out.options, other_entities(out.entity_type, out.entity_id, raw.others))
        return give(out, raw.options if options is None else options, self._settings.history_of(None, out.entity_type))

    def envelope(
        self, out: OutgoingMessage, flags: int = 0, correlation_id: str | None = None, running: Running | None = None
    ) -> WireEnvelope:
        """Return the envelope of an outgoing message: all are assembled here.

        Args:
            out: The message.
            flags: Those beside `AT_MOST_ONCE`.
            correlation_id: Shared by the commands of a dispatch in bulk.
            running: The command whose handler sends it.
        """
        options = dict(out.options)
        PRIORITY.put(options, out.priority or self._settings.entity(out.entity_type).priority)
        headers = dict(out.headers)
        if running is not None:
            headers.pop(HOPS, None)  # of the command whose headers a handler passes on
            if hops := hops_of(out, running, self.max_hops):
                headers[HOPS] = str(hops)
        if running is not None and out.inbox and running.home == self.home:
            CHAIN.put(options, with_mailbox(running.chain, running.mailbox))
            CALLERS.put(options, running.callers)
        return WireEnvelope(
            out.command_id, out.name, out.entity_type, out.entity_id, out.payload,
            flags | (AT_MOST_ONCE if out.at_most_once else 0),
            out.ttl_ms if out.deadline is None else _left_ms(out.deadline),
            out.inbox,
            correlation_id if running is None else running.correlation_id,
            None if running is None else running.command_id,
            headers or None,
            options=options or None,
            compressed=self._compresses and compresses(out, self._settings),
        )  # fmt: skip

    def build(self, out: OutgoingMessage) -> Submission:
        """Build the submission of an outgoing message: pack its envelope, name its mailbox.

        Raises:
            CallCycle: It is a call to an entity that waits for the handler that runs here.
            Suspended: The run of the durable handler that runs here is over.
            InvalidCommand: Its headers are too large.
        """
        running, mailbox = running_command(), self._own_mailbox(out)
        others = self._others(out, mailbox)
        if running is not None:
            for each in (mailbox, *(other for other, _ in others)):
                check_running(out, running, each, self.home)
        if out.across_shards and (first := self._first_part(out)) is not out:
            return replace(self.build(first), digest=self.digest_of(out))  # its options are no part of that
        envelope = self.envelope(out, GIVEN_ID if out.given_id else 0, running=running)
        unique = None if out.unique is None else UniqueSubmission.of(out.unique, envelope, mailbox)
        return Submission(
            mailbox,
            out.command_id,
            self.pack(envelope),
            self.digest_of(out) if out.given_id else NO_DIGEST,
            self._settings.entity(out.entity_type).max_depth or self._settings.max_depth,
            out.delay_ms,
            out.given_id or out.inbox is not None,
            out.name,
            None if out.deadline is None else partial(self._renewed, envelope, out.deadline, unique),
            envelope_flow(envelope, out.tenant),
            unique,
            others,
        )

    def _others(self, out: OutgoingMessage, home: str) -> tuple[tuple[str, int], ...]:
        """Return the further mailboxes of a message, each with the commands that it may hold."""
        if not (entities := OTHERS.of(out.options)):
            return ()
        if out.unique is not None and out.unique.wins == "latest":
            raise InvalidCommand("a command of several entities replaces no other: let its unique key be one of wins='first'")
        others: dict[str, int] = {}
        for entity, of in entities:
            others[self.mailbox_of(entity, of)] = self._settings.entity(entity).max_depth or self._settings.max_depth
        if sum(len(mailbox) for mailbox in others) > _MOST_BYTES:
            raise InvalidCommand(f"the ids of its other entities take more than {_MOST_BYTES} bytes: use digests of them")
        others.pop(home, None)  # entities of one lane stand in one line
        return tuple(others.items())

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
        pack = None if key is None or route.mailbox != PerEntity() or route.spec.limits else route.stamp.packer()
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

    def of_item(self, item: Message[Any] | Envelope[Any] | RawEnvelope | OutgoingMessage) -> OutgoingMessage:
        """Return an item of a batch.

        Raises:
            InvalidCommand: As `outgoing`.
        """
        if isinstance(item, OutgoingMessage):
            return item
        if isinstance(item, RawEnvelope):
            return self.raw(item)
        if isinstance(item, Envelope):
            options = {name: getattr(item, name) for name in DispatchOptions.__annotations__}
            return self.outgoing(item.command, cast("DispatchOptions", options))
        return self.outgoing(item)

    def mailbox_of(self, entity_type: str, entity_id: str) -> str:
        """Return the mailbox of an entity."""
        return mailbox_name(entity_type, entity_id, self._settings.entity(entity_type).mailbox)

    def mailbox_for(self, out: OutgoingMessage) -> str:
        """Return the mailbox of an outgoing message."""
        return self._own_mailbox(self._first_part(out) if out.across_shards else out)

    def _first_part(self, out: OutgoingMessage) -> OutgoingMessage:
        """Return the part of a message in its lines of the first shard: see `part_of`.

        Raises:
            InvalidCommand: The bus is not open, or this builder has none.
        """
        if self._shard_of is None:
            raise InvalidCommand(
                f"{out.name!r} is of entities across shards, and those are known to an open bus only: dispatch it"
            )
        return part_of(out, [self._shard_of(self.mailbox_of(*each)) for each in entities_of(out)])

    def _own_mailbox(self, out: OutgoingMessage) -> str:
        if out.entity_type is None or out.entity_id is None:
            return free_mailbox(out.command_id)
        return self.mailbox_of(out.entity_type, out.entity_id)

    def _check_kind(self, message: Message[Any]) -> None:
        """Check that it is a message, and the only class of its name."""
        kind = type(message)
        if isinstance(message, type) and issubclass(message, Message):
            raise InvalidCommand(f"{message.__qualname__} is the class: make a command of it, {message.__qualname__}(…)")
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

    def _bind(self, message: Message[Any]) -> _Route:
        self._check_kind(message)
        kind = type(message)
        if isinstance(message, Event):
            raise InvalidCommand(
                f"{kind.__qualname__} is an event: await bus.publish({kind.__name__}(…)), or context.publish(…) in a handler"
            )
        spec = kind.spec()
        policy = self._settings.entity(spec.entity)
        delivery = self._settings.handling(spec).delivery
        check_policies(spec, policy.mailbox, delivery)
        history = self._settings.history_of(spec, spec.entity)
        sample = message_of(spec, None if spec.entity is None else "x", b"", at_most_once=delivery == "at_most_once")
        HISTORY.put(sample.options, history)
        envelope = self.envelope(sample)
        stamp = EnvelopeTemplate(envelope, self.sign, self._settings.compress_above_of(spec))
        depth = policy.max_depth or self._settings.max_depth
        route = self._routes[kind] = _Route(
            spec, codec_for(kind), policy.mailbox, depth, stamp, sample.at_most_once, PRIORITY.of(envelope.options),
            envelope_flow(envelope), history,
        )  # fmt: skip
        return route


def _left_ms(deadline: float) -> int:
    return max(1, int((deadline - mono()) * 1000))


def entity_types_of(out: OutgoingMessage) -> tuple[str, ...]:
    """Return the types of the entities in whose lines a message stands."""
    types = () if out.entity_type is None else (out.entity_type,)
    return (*types, *(entity for entity, _ in OTHERS.of(out.options))) if out.options else types


def of_one_line(out: OutgoingMessage) -> OutgoingMessage:
    """Return a message for what puts commands into one line only.

    Raises:
        InvalidCommand: It stands in the lines of several entities.
    """
    if OTHERS.of(out.options):
        raise InvalidCommand(
            f"{out.name} stands in the lines of several entities, and no schedule, outbox or bulk dispatch puts a command there: let a handler send "
            f"it, context.send({out.name}(…))"
        )
    return out


def events_of(builder: EnvelopeBuilder, events: Sequence[Event], options: PublishOptions) -> tuple[str, list[OutgoingMessage]]:
    """Return the id under which events are published together, and they with their options.

    Raises:
        InvalidCommand: One or an option is not what it may be, or there is none.
    """
    if not events:
        raise InvalidCommand("publish takes at least one event")
    if len(events) == 1:
        out = builder.event(events[0], options)
        return out.command_id, [out]
    given = options.get("event_id")
    event_id = new_command_id() if given is None else checked_event_id(given)
    return event_id, [builder.event(each, {**options, "event_id": f"{event_id}.{n}"}) for n, each in enumerate(events, 1)]


def sendable(builder: EnvelopeBuilder, message: Message[Any], options: DispatchOptions) -> OutgoingMessage:
    """Return a message for what sends commands only: an event becomes the command that publishes it.

    That stands in a line of the event's entity, so that the events of one keep their order.

    Raises:
        InvalidCommand: As `EnvelopeBuilder.outgoing`.
    """
    if not isinstance(message, Event):
        return of_one_line(builder.outgoing(message, options))
    event = builder.event(message)
    wrapped = Publish(
        event=event.name, payload=event.payload, options=event.options, priority=event.priority, tenant=event.tenant
    )
    payload = codec_for(Publish).encode(wrapped, builder.limits)
    out = message_of(Publish.spec(), event.entity_id, payload, at_most_once=False)
    out.entity_type, out.priority, out.tenant = delivered_name(event.entity_type or "", ""), event.priority, event.tenant
    return give(out, options, None)
