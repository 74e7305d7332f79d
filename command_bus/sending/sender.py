"""`Sender`: sends commands and waits for replies.

dispatch: command → EnvelopeBuilder (encode, name the mailbox) → Producer (enqueue) → Receipt
call:     the same, with an inbox → Replies (wait for the reply) → the typed result
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar, Unpack
from uuid import UUID

from command_bus.clock import checked_seconds, mono
from command_bus.errors import TransportUnavailable
from command_bus.messages.context import while_lent
from command_bus.messages.message import Message, checked_id
from command_bus.messages.options import CallOptions, DispatchOptions
from command_bus.messages.outgoing import Envelope, OutgoingMessage, RawEnvelope
from command_bus.messages.receipts import BatchResult, Receipt
from command_bus.messages.reports import OnProgress, checked_listener
from command_bus.middleware import Middleware, Sending, around_batch, around_call, around_dispatch
from command_bus.observer import observed_call
from command_bus.sending.admission import receipt
from command_bus.sending.batch import BatchSender
from command_bus.sending.call_progress import call_with_progress
from command_bus.sending.children import Children
from command_bus.sending.command_location import OverdueCalls
from command_bus.sending.envelope_builder import EnvelopeBuilder
from command_bus.sending.follow_ups import FollowUps, ShardDepths
from command_bus.sending.options import check_names
from command_bus.sending.results import ResultReader
from command_bus.session import Session
from command_bus.transport.submissions import Admission, Submission

R = TypeVar("R")

_PLAIN = {option.name: option.default for option in fields(Envelope) if option.name in DispatchOptions.__annotations__}
"""The options of a dispatch that gives none."""


class Sender:
    """Sends for one bus; its methods are those of `CommandBus`.

    Args:
        session: Connections and settings of the bus.
        middleware: Around what is sent, the first one outermost.
    """

    def __init__(self, session: Session, middleware: Sequence[Middleware]) -> None:
        self._session = session
        self._settings = session.settings
        protection = session.protection
        self._builder = EnvelopeBuilder(session.settings, protection)
        self._template_builder = EnvelopeBuilder(session.settings, protection and protection.templates)
        self._overdue = OverdueCalls(session)
        session.attach(self._overdue)
        self._depths = ShardDepths(session)
        session.attach(self._depths)
        self._results = ResultReader(session, self._overdue)
        self.use(middleware)

    def use(self, middleware: Sequence[Middleware]) -> None:
        """Send through these middleware from now on."""
        self.middleware = tuple(middleware)
        self._send: Sending = around_dispatch(self.middleware, self._transmit)
        self._prepare: Sending = around_dispatch(self.middleware, self._build)

    @property
    def builder(self) -> EnvelopeBuilder:
        """The builder, which encodes messages and names their mailboxes."""
        return self._builder

    async def dispatch(self, command: Message[R], options: DispatchOptions) -> Receipt[R]:
        if (not options or options == _PLAIN) and self._builder.can_build_fast and self._needs_no_preparation(command):
            submission = self._builder.build_fast(command)
            producer = self._session.transport.producer
            return receipt(submission.command_id, await producer.enqueue(submission, self._settings.dispatch_timeout))
        out = self._builder.outgoing(command, options)
        return await self._accepted(out, type(command), is_kept=options.get("keep_result") or type(command).spec().durable)

    async def dispatch_raw(
        self,
        entity_type: str | None,
        entity_id: str | int | None,
        name: str,
        payload: Mapping[str, Any],
        version: int,
        options: DispatchOptions,
    ) -> Receipt[Any]:
        out = self._builder.raw(entity_type, entity_id, name, payload, version, options)
        return await self._accepted(out, None, is_kept=options.get("keep_result"))

    async def _accepted(
        self, out: OutgoingMessage, command_type: type[Message[Any]] | None, *, is_kept: bool | None
    ) -> Receipt[Any]:
        ask = partial(self._ask_later, command_type) if is_kept else None
        return receipt(out.command_id, await self._send(out), ask, out.other)

    def outbox(self, command_id: str) -> FollowUps:
        """Return what keeps the commands that one run of a handler sends."""
        self._depths.begin()
        return FollowUps(self._builder, self.prepare, command_id, self._depths)

    def children(self, command_id: str, mailbox: str) -> Children:
        """Return what makes the commands that one run of a durable handler calls."""
        return Children(self._session, self._builder, self.prepare, self._results, command_id, mailbox)

    async def prepare(self, out: OutgoingMessage) -> Submission:
        """Return the submission of a command that is sent by other means; its entity type is agreed on."""
        submission: Submission = await self._prepare(out)
        return submission

    async def template(self, out: OutgoingMessage) -> bytes:
        """Return the envelope of a command that is stored, to be sent later under other ids. It is signed as that, and is no command."""
        submission: Submission = await around_dispatch(self.middleware, partial(self._build, templates=True))(out)
        return submission.envelope

    async def dispatch_batch(self, commands: Iterable[Message[Any] | Envelope[Any] | RawEnvelope]) -> BatchResult:
        producer = self._session.transport.producer
        batch = BatchSender(self._builder, producer, self._prepare, self._settings.dispatch_timeout, self._needs_no_preparation)
        result: BatchResult = await around_batch(self.middleware, partial(batch.send, commands))()
        return result

    async def call(
        self,
        command: Message[R],
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        **options: Unpack[DispatchOptions],
    ) -> R:
        check_names(options, CallOptions)
        if on_progress is not None:
            checked_listener(on_progress)
        out = self._builder.outgoing(command, options)
        exchange = self._exchange(out, type(command).spec().reply, timeout)
        if on_progress is not None:
            exchange = call_with_progress(
                self._session, exchange, out.command_id, partial(self._builder.mailbox_for, out), on_progress
            )
        value: R = await exchange
        return value

    async def call_raw(
        self,
        entity_type: str | None,
        entity_id: str | int | None,
        name: str,
        payload: Mapping[str, Any],
        version: int,
        timeout: float | None,
        options: DispatchOptions,
    ) -> Any:
        out = self._builder.raw(entity_type, entity_id, name, payload, version, options)
        return await self._exchange(out, Any, timeout)

    async def result(self, command_id: str | UUID, command_type: type[Message[Any]] | None, timeout: float) -> Any:
        seconds = checked_seconds("timeout", timeout, zero=True)
        reply_type = Any if command_type is None else command_type.spec().reply
        names = () if command_type is None else (command_type.spec().name,)
        result = self._results.result(checked_id(command_id), reply_type, seconds, names)
        if seconds <= 0:
            return await result
        hook = self._session.active_hook
        return await while_lent(result if hook is None else hook.awaited(result))

    async def _ask_later(self, command_type: type[Message[Any]] | None, command_id: str, timeout: float | None) -> Any:
        """Return the result that a receipt is asked for: see `Receipt.result`."""
        entity_type = None if command_type is None else command_type.spec().entity
        seconds = self._settings.call_timeout_of(entity_type) if timeout is None else checked_seconds("timeout", timeout)
        return await self.result(command_id, command_type, seconds)

    def _exchange(self, out: OutgoingMessage, reply_type: Any, timeout: float | None) -> Awaitable[Any]:
        """Send a message for a caller who waits so many seconds, and return the result in its reply."""
        seconds = self._settings.call_timeout_of(out.entity_type) if timeout is None else checked_seconds("timeout", timeout)
        deadline = mono() + seconds
        out.ttl_ms = max(1, int(seconds * 1000))
        out.inbox = self._session.transport.replies.process
        send = self._send if self.middleware else self._enqueue
        exchange: Sending = partial(self._results.exchange, send, self._builder.mailbox_for, reply_type, deadline)
        if self._session.observer is not None:
            exchange = partial(observed_call, self._session.observer, exchange)
        return (around_call(self.middleware, exchange) if self.middleware else exchange)(out)

    async def _transmit(self, out: OutgoingMessage) -> Admission:
        """Build and enqueue: the innermost of the middleware around a dispatch."""
        submission = await self._build(out)
        admission = await self._session.transport.producer.enqueue(submission, self._patience(out))
        if submission.unique is not None:
            out.other = submission.unique.other
        return admission

    def _enqueue(self, out: OutgoingMessage) -> Awaitable[Admission]:
        """Transmit without a task if nothing has to be asked first."""
        agreements = self._session.transport.agreements
        if out.unique is not None or (out.entity_type is not None and agreements.agreed(out.entity_type) is None):
            return self._transmit(out)
        return self._session.transport.producer.enqueue(self._builder.build(out), self._patience(out))

    def _patience(self, out: OutgoingMessage) -> float:
        """Return the seconds that accepting it may take: a caller waits no longer than it said."""
        timeout = self._settings.dispatch_timeout
        return timeout if out.deadline is None else min(timeout, max(out.deadline - mono(), 0.001))

    def _needs_no_preparation(self, message: Message[Any]) -> bool:
        """Return whether a message can be built at once: no middleware, no unique key, not durable, and its entity type is agreed on."""
        if self.middleware:
            return False
        spec = self._builder.spec_of(message)
        if spec.unique is not None or spec.durable:
            return False
        return spec.entity is None or self._session.transport.agreements.agreed(spec.entity) is not None

    async def _build(self, out: OutgoingMessage, *, templates: bool = False) -> Submission:
        """Return the submission of a message; with the first of an entity type, agree on its mailboxes."""
        agreements = self._session.transport.agreements
        if out.entity_type is not None and agreements.agreed(out.entity_type) is None:
            await self._agree(out.entity_type, self._patience(out))
        return (self._template_builder if templates else self._builder).build(out)

    async def _agree(self, entity_type: str, patience: float) -> None:
        """Agree on an entity type's mailboxes, for as long as a dispatch may take: nothing of the command has left yet."""
        try:
            await self._session.transport.agreements.agree(entity_type, mono() + patience)
        except TransportUnavailable as error:
            raise TransportUnavailable(error.message) from error
