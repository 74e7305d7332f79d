"""`Runnable`: a delivery that has been read and can be run; and what it runs in: contexts, and coroutines that are driven."""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from command_bus.clock import mono
from command_bus.durable.run import DurableRun
from command_bus.errors import InvalidCommand
from command_bus.handlers.handler import Handler, Invoke, function_handler
from command_bus.messages.context import Running
from command_bus.messages.durable import DurableContext
from command_bus.messages.event import RawEvent
from command_bus.messages.handling_policy import HandlingPolicy
from command_bus.messages.limits import check_costs
from command_bus.messages.message import Command, Message
from command_bus.messages.outgoing import Across
from command_bus.messages.policies import parts_of_delivery
from command_bus.messages.state import HeldState
from command_bus.sending.follow_ups import FollowUps
from command_bus.serialization.envelope import ENCRYPTED, GIVEN_ID, WireEnvelope
from command_bus.serialization.envelope_options import (
    ACROSS,
    ATTEMPT_TIMEOUT,
    CALLERS,
    DURABLE,
    OTHERS,
    RETRY,
    with_caller,
)
from command_bus.serialization.limits import Undecodable, reading_limits
from command_bus.serialization.models import MessageCodec, codec_for, decoded
from command_bus.serialization.msgpack import unpack
from command_bus.serialization.protection import Protection
from command_bus.settings import BusSettings
from command_bus.transport.marks import accepted_ms
from command_bus.transport.steps import (
    Cancellation,
    DeadLetterStep,
    Done,
    FollowUp,
    Lease,
    Started,
    Step,
)

if TYPE_CHECKING:
    from command_bus.worker.reports import RunReports

T = TypeVar("T")


class _Unknown(Command[None], durable=True):
    """A durable command whose class is not here, or does not fit."""


async def _never_called(command: _Unknown, context: DurableContext) -> None:
    raise AssertionError(command, context)


NO_HANDLER = function_handler(_Unknown, _never_called)
"""The handler of a command that can only be undone."""


@dataclass(slots=True)
class Runnable:
    """A command that can run: read, validated, with its handler."""

    envelope: WireEnvelope
    started: Started
    handler: Handler
    message: Any
    policy: HandlingPolicy
    """What applies to it."""
    interrupted: Cancellation | None = None
    """What interrupted it from outside, once it was."""
    lease: Lease | None = None
    """Under which it runs, once it does."""
    follow_ups: tuple[FollowUp, ...] = ()
    """What its handler sends with its settlement, once that is decided."""
    durable: DurableRun | None = None
    """The run of its durable handler, and all that it has stored."""
    state: HeldState | None = None
    """The state of its entity, if its handler has it."""
    changed_state: bytes | None = None
    """The state that is stored with its end; empty: none; None: it stays as it is."""
    outbox: FollowUps | None = None
    """The follow-ups of its handler, if it has a context."""
    reports: RunReports | None = None
    """The progress and log of its handler, if it may report."""
    begun: tuple[Running, Awaitable[Any]] | None = None
    """What its handler is as a running one, and what it does next, if it was begun."""
    lends_beyond: bool = False
    """Whether its handler lends its slot although no more may be."""
    began: float = field(default_factory=mono)
    """When it was read."""

    def bound(self, invoke: Invoke) -> Invoke:
        """Return what calls its handler, with the state if it takes one."""
        return invoke if self.state is None else partial(invoke, state=self.state.value)

    @property
    def may_start(self) -> bool:
        """Whether its handler may still be started: its lease is not over, and no operator wants it to end. Safe in any thread."""
        return self.interrupted is None and (self.lease is None or mono() < self.lease.deadline)

    @property
    def serves_handler(self) -> bool:
        """Whether it was called by a handler, which may still wait for its reply."""
        return bool(self.envelope.inbox) and self.envelope.causation_id is not None

    @property
    def callers(self) -> Mapping[str, str]:
        """Who waits for what its handler calls, and may have places of limits: its own callers, and itself."""
        callers, lease = CALLERS.of(self.envelope.options), self.lease
        if lease is None or not lease.may_have_places:
            return callers
        return with_caller(callers, lease.mailbox, lease.activation)

    @property
    def accepted_ms(self) -> int:
        """The server's time of acceptance."""
        return accepted_ms(self.started.message)

    @property
    def remaining(self) -> float | None:
        """Seconds until its caller waits no longer, at the time of its start."""
        if self.envelope.ttl_ms is None:
            return None
        return (self.accepted_ms + self.envelope.ttl_ms - self.started.now_ms) / 1000


def without_reports(run: Runnable, step: Step | None) -> Step | None:
    """Return a step that deletes what a plain command has reported, if it settles that. A durable one deletes its record by itself."""
    if isinstance(step, Done | DeadLetterStep) and run.reports is not None and run.reports.is_used:
        step.left = replace(step.left, command_id=run.envelope.command_id, side="ends")
    return step


@dataclass(slots=True)
class Bound:
    """The values that all commands of a handler share."""

    handler: Handler
    policy: HandlingPolicy
    codec: MessageCodec[Any]

    def policy_of(self, envelope: WireEnvelope) -> HandlingPolicy:
        """Return what applies to a command: what its dispatch says, else its class, its entity type, the settings."""
        options = envelope.options
        return self.policy.with_overrides(RETRY.of(options), ATTEMPT_TIMEOUT.of(options)) if options else self.policy


class Bindings:
    """The handlers of one worker, each with its policy and codec.

    Args:
        lookup: Finds the handler of a wire name.
        settings: Limits and policies.
        protection: Decrypts, or None.
    """

    def __init__(self, lookup: Callable[[str], Handler | None], settings: BusSettings, protection: Protection | None) -> None:
        self._lookup = lookup
        self._settings = settings
        self._protection = protection
        self._limits = reading_limits(settings)
        self._bound: dict[str, Bound] = {}

    def of(self, name: str) -> Bound | None:
        """Return what all commands of a wire name share; None if they have no handler here."""
        handler, bound = self._lookup(name), self._bound.get(name)
        if handler is not None and (bound is None or bound.handler is not handler):
            policy, codec = self._settings.handling(handler.spec), codec_for(handler.message_type)
            bound = self._bound[name] = Bound(handler, policy, codec)
        return None if handler is None else bound

    def message(self, bound: Bound, envelope: WireEnvelope) -> Any:
        """Return the message of a command.

        Raises:
            InvalidCommand: It does not match the class, names another entity than the envelope, or a cost is no such.
        """
        payload, spec = self._clear(envelope) if envelope.flags & ENCRYPTED else envelope.payload, bound.handler.spec
        if bound.handler.message_type is RawEvent:
            return self._raw_event(envelope, payload)
        if envelope.options or spec.version > 1:
            message = decoded(bound.handler.message_type, payload, envelope.options, self._limits)
        else:
            message = bound.codec.decode(payload, self._limits)
        if spec.limits:
            check_costs(spec.limits, message)
        if spec.entity is None or spec.key is None:
            return message
        if (across := ACROSS.of(envelope.options)) is not None:
            return _part_of(message, envelope, across)
        named = getattr(message, spec.key)  # checked with the message
        if envelope.entity_type != spec.entity or envelope.entity_id != (named if type(named) is str else str(named)):
            raise InvalidCommand(
                f"sequenced for entity {envelope.entity_type}:{envelope.entity_id}, but its payload names {spec.entity}:{named}"
            )
        if (spec.others or envelope.options) and (stands := OTHERS.of(envelope.options)) != message.entity_ids():
            lines, names = (", ".join(map(":".join, each)) or "none" for each in (stands, message.entity_ids()))
            raise InvalidCommand(f"besides its own it stands in the lines of these entities: {lines}; its payload names: {names}")
        return message

    def _raw_event(self, envelope: WireEnvelope, payload: bytes) -> RawEvent:
        """Return an event for a handler without its class.

        Raises:
            InvalidCommand: Its fields cannot be read.
        """
        try:
            fields = unpack(payload, self._limits)
        except Undecodable as error:
            raise InvalidCommand(f"its fields cannot be read: {error}") from error
        return RawEvent.model_construct(
            name=parts_of_delivery(envelope.name)[0],
            entity_type=parts_of_delivery(envelope.entity_type or "")[0],
            id=envelope.entity_id,
            event_id=parts_of_delivery(envelope.command_id)[0],
            fields=fields,
        )

    def _clear(self, envelope: WireEnvelope) -> bytes:
        """Decrypt the payload.

        Raises:
            InvalidCommand: It cannot be.
        """
        if self._protection is None:
            raise InvalidCommand("its payload is encrypted, and this worker has no cipher")
        return self._protection.payload(envelope)


def _part_of(message: Message[Any], envelope: WireEnvelope, across: Across) -> Message[Any]:
    """Return a message of entities in several shards, of which the last one's lines are here.

    Raises:
        InvalidCommand: It names others, or its class none of several shards.
    """
    spec, here = type(message).spec(), ((envelope.entity_type, envelope.entity_id), *OTHERS.of(envelope.options))
    named = ((spec.entity, message.entity_id()), *message.entity_ids())
    if spec.across_shards and tuple(across.entities) == named and set(here) < set(named):
        return message
    raise InvalidCommand(
        f"sent as a part of a command of several shards, of {across.entities}, to the lines of {here}; its payload names {named}, and its class "
        f"says across_shards={spec.across_shards}"
    )


def as_durable(envelope: WireEnvelope) -> WireEnvelope:
    """Return the envelope of a durable command as its class would have sent it: one that was sent without the class does not say it."""
    if DURABLE.of(envelope.options):
        return envelope
    return replace(envelope, flags=envelope.flags | GIVEN_ID, options=DURABLE.replaced(envelope.options, True))


_NOT_BEGUN: Any = object()


class CommandContexts:
    """The source of contexts: copies of the one in which it was made.

    What a variable refers to is shared, as among tasks. Of decimal's own context, which every program changes in place, each command has a copy.
    """

    def __init__(self) -> None:
        self._base = contextvars.copy_context()
        decimal = sys.modules.get("decimal")
        found = [] if decimal is None else [each for each in self._base.items() if isinstance(each[1], decimal.Context)]
        self._copied: list[tuple[contextvars.ContextVar[Any], Callable[[], Any]]] = [
            (each, value.copy().copy) for each, value in found
        ]

    def new(self) -> contextvars.Context:
        """Return the context of a command."""
        context = self._base.copy()
        for variable, copied in self._copied:
            context.run(variable.set, copied())
        return context


class Driven(Generic[T]):
    """A coroutine that something else calls, to be awaited.

    Args:
        call: Calls its methods: `Context.run`, say.
        work: The coroutine.
        awaited: What it waits for, if it was begun.
    """

    __slots__ = ("_awaited", "_blocks", "_call", "_work")

    def __init__(self, call: Callable[..., Any], work: Coroutine[Any, Any, T], awaited: Any = _NOT_BEGUN) -> None:
        self._call, self._work, self._awaited = call, work, awaited
        self._blocks = getattr(awaited, "_asyncio_future_blocking", False)
        if self._blocks:
            awaited._asyncio_future_blocking = False  # noqa: SLF001 - others may await the same future before this does

    def __await__(self) -> Generator[Any, Any, T]:
        call, work, awaited = self._call, self._work, self._awaited
        try:
            if awaited is _NOT_BEGUN:
                awaited = call(work.send, None)
            elif self._blocks:
                awaited._asyncio_future_blocking = True  # noqa: SLF001 - as it was
            while True:
                try:
                    value = yield awaited
                except GeneratorExit:
                    call(work.close)
                    raise
                except BaseException as error:  # noqa: BLE001 - a cancellation mostly
                    thrown = [error]
                else:
                    awaited = call(work.send, value)
                    continue
                awaited = call(work.throw, thrown.pop())  # out here, where nothing is being handled; and no frame keeps the error
        except StopIteration as end:
            result: T = end.value
            return result


Begun = Step | None | Driven[Step | None]
"""The step that settles a command, None if this worker may no longer settle it, or what gives that."""
