"""`Sender`: sends commands and waits for replies.

dispatch: command → EnvelopeBuilder (encode, name the mailbox) → Producer (enqueue) → Receipt
call:     the same, with an inbox → Replies (wait for the reply) → the typed result

Many commands in few steps: build a window of them, enqueue it, and build the next one while the server is at work.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, Unpack
from uuid import UUID

from command_bus.clock import checked_seconds, mono
from command_bus.errors import CommandBusError, InvalidCommand, TransportUnavailable
from command_bus.messages.context import while_lent
from command_bus.messages.event import Published
from command_bus.messages.message import Message, canonical_entity_id, check_entity_type, checked_id, reply_of
from command_bus.messages.options import CallOptions, DispatchOptions
from command_bus.messages.outgoing import Envelope, OutgoingMessage, RawEnvelope
from command_bus.messages.receipts import BatchOutcome, BatchResult, Receipt
from command_bus.messages.reports import OnProgress, checked_listener
from command_bus.middleware import Middleware, Sending, around_batch, around_call, around_dispatch
from command_bus.notifications.notices import Notice
from command_bus.observer import observed_call
from command_bus.sending.admission import receipt, refusal, status_of
from command_bus.sending.call_progress import call_with_progress
from command_bus.sending.children import Children
from command_bus.sending.command_location import OverdueCalls
from command_bus.sending.envelope_builder import EnvelopeBuilder, entity_types_of
from command_bus.sending.follow_ups import FollowUps, ShardDepths
from command_bus.sending.publishing import SubscriptionTable, received
from command_bus.sending.results import ResultReader
from command_bus.serialization.envelope_options import OTHERS
from command_bus.session import Session, shard_of
from command_bus.spelling import check_names
from command_bus.transport.ports.sender import Producer
from command_bus.transport.submissions import Admission, Submission, UnavailableShards

R = TypeVar("R")


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
        self._builder = EnvelopeBuilder(session.settings, protection, partial(shard_of, session))
        self._template_builder = EnvelopeBuilder(
            session.settings, protection and protection.templates, partial(shard_of, session)
        )
        self._overdue = OverdueCalls(session)
        session.attach(self._overdue)
        self._depths = ShardDepths(session)
        session.attach(self._depths)
        self.subscriptions = SubscriptionTable(session)
        session.attach(self.subscriptions)
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
        if not options and self._builder.can_build_fast and self._needs_no_preparation(command):
            submission = self._builder.build_fast(command)
            producer = self._session.transport.producer
            return receipt(submission.command_id, await producer.enqueue(submission, self._settings.dispatch_timeout))
        out = self._builder.outgoing(command, options)
        return await self._accepted(out, command, is_kept=options.get("keep_result") or type(command).spec().durable)

    async def dispatch_raw(self, raw: RawEnvelope) -> Receipt[Any]:
        return await self._accepted(self._builder.raw(raw), None, is_kept=raw.options.get("keep_result"))

    async def _accepted(self, out: OutgoingMessage, command: Message[Any] | None, *, is_kept: bool | None) -> Receipt[Any]:
        ask = (
            partial(self._ask_later, out.name, out.entity_type, Any if command is None else reply_of(command))
            if is_kept
            else None
        )
        return receipt(out.command_id, await self._send(out), ask, out.other)

    def outbox(self, command_id: str) -> FollowUps:
        """Return what keeps the commands that one run of a handler sends."""
        self._depths.begin()
        return FollowUps(self._builder, self.prepare, command_id, self._depths, self.subscriptions)

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
        result: BatchResult = await around_batch(self.middleware, partial(self._batch().send, commands))()
        return result

    def _batch(self) -> BatchSender:
        producer, timeout = self._session.transport.producer, self._settings.dispatch_timeout
        return BatchSender(self._builder, producer, self._prepare, timeout, self._needs_no_preparation)

    async def publish(self, event_id: str, *events: OutgoingMessage) -> Published:
        """Give events to all subscriptions that are for them."""
        batch = self._batch()
        await self.subscriptions.begin(*events)
        deliveries = [delivery for event in events for delivery in self.subscriptions.deliveries(event)]
        published = received(event_id, deliveries, (await batch.send(deliveries)).outcomes)
        if (told := self._session.notifications and self._session.notifications.open) and "published" in told.kinds:
            for event in events:
                told.announcer.tell(Notice("published", event.entity_type, event.entity_id, event.command_id, event.name))
        return published

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
        exchange = self._exchange(out, reply_of(command), timeout)
        if on_progress is not None:
            exchange = call_with_progress(
                self._session, exchange, out.command_id, partial(self._builder.mailbox_for, out), on_progress
            )
        value: R = await exchange
        return value

    async def call_raw(self, raw: RawEnvelope, timeout: float | None = None, **options: Unpack[DispatchOptions]) -> Any:
        check_names(options, CallOptions)
        return await self._exchange(self._builder.raw(raw, options), Any, timeout)

    async def result(self, command_id: str | UUID, command_type: type[Message[Any]] | None, timeout: float) -> Any:
        name, reply = ("", Any) if command_type is None else (command_type.spec().name, command_type.spec().reply)
        return await self._result(command_id, name, reply, timeout)

    async def _result(self, command_id: str | UUID, name: str, reply: Any, timeout: float) -> Any:
        seconds = checked_seconds("timeout", timeout, zero=True)
        result = self._results.result(checked_id(command_id), reply, seconds, (name,) if name else ())
        if seconds <= 0:
            return await result
        hook = self._session.active_hook
        return await while_lent(result if hook is None else hook.awaited(result))

    async def _ask_later(self, name: str, entity_type: str | None, reply: Any, command_id: str, timeout: float | None) -> Any:
        """Return the result that a receipt is asked for: see `Receipt.result`."""
        seconds = self._settings.call_timeout_of(entity_type) if timeout is None else checked_seconds("timeout", timeout)
        return await self._result(command_id, name, reply, seconds)

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
        if out.unique is not None or any(agreements.agreed(each) is None for each in entity_types_of(out)):
            return self._transmit(out)
        return self._session.transport.producer.enqueue(self._builder.build(out), self._patience(out))

    def _patience(self, out: OutgoingMessage) -> float:
        """Return the seconds that accepting it may take: a caller waits no longer than it said."""
        timeout = self._settings.dispatch_timeout
        return timeout if out.deadline is None else min(timeout, max(out.deadline - mono(), 0.001))

    def _needs_no_preparation(self, message: Message[Any]) -> bool:
        """Return whether a message can be built at once: no middleware, no unique key, not durable, one entity whose type is agreed on."""
        if self.middleware:
            return False
        spec = self._builder.spec_of(message)
        if spec.unique is not None or spec.durable or spec.others:
            return False
        return spec.entity is None or self._session.transport.agreements.agreed(spec.entity) is not None

    async def _build(self, out: OutgoingMessage, *, templates: bool = False) -> Submission:
        """Return the submission of a message; with the first of an entity type, agree on its mailboxes."""
        agreements = self._session.transport.agreements
        for entity_type in entity_types_of(out):
            if agreements.agreed(entity_type) is None:
                await self._agree(entity_type, self._patience(out))
        return (self._template_builder if templates else self._builder).build(out)

    async def _agree(self, entity_type: str, patience: float) -> None:
        """Agree on an entity type's mailboxes, for as long as a dispatch may take: nothing of the command has left yet."""
        try:
            await self._session.transport.agreements.agree(entity_type, mono() + patience)
        except TransportUnavailable as error:
            raise TransportUnavailable(error.message) from error


_SLICE = 64
"""Commands that are built before the event loop gets its turn: those built before leave, and no other task waits for long."""

_TURNS = 3
"""Turns of the event loop that a request takes to leave."""

_Item = Message[Any] | Envelope[Any] | RawEnvelope | OutgoingMessage


class _Unbuilt(NamedTuple):
    """An item that cannot be sent, in its place: no later command of its mailbox may overtake it."""

    outcome: BatchOutcome
    mailboxes: tuple[str, ...]


_Built = Submission | _Unbuilt


class BatchSender:
    """Sends one batch; after a refused command of an entity, its later ones are refused as well. An outage is waited for once per shard.

    Args:
        builder: Encodes and names mailboxes.
        producer: Enqueues.
        prepare: Turns an outgoing message into a submission: agreement on its entity type, middleware, building.
        timeout: Seconds per step.
        agreed: Whether a message may be built at once, without `prepare`.
    """

    def __init__(
        self,
        builder: EnvelopeBuilder,
        producer: Producer,
        prepare: Callable[[OutgoingMessage], Awaitable[Submission]],
        timeout: float,
        agreed: Callable[[Message[Any]], bool],
    ) -> None:
        self._builder = builder
        self._producer = producer
        self._prepare = prepare
        self._timeout = timeout
        self._agreed = agreed
        self._refused: set[str] = set()
        self._unavailable: UnavailableShards = {}
        self._unagreed: dict[str, TransportUnavailable] = {}

    async def send(self, commands: Iterable[_Item]) -> BatchResult:
        """Send all, in order per entity."""
        source = iter(commands)
        outcomes: list[BatchOutcome] = []
        under_way: asyncio.Task[list[BatchOutcome]] | None = None
        try:
            while window := await self._build_window(source):
                if under_way is not None:
                    outcomes += await under_way
                under_way = asyncio.create_task(self._enqueue(window), name="command_bus.sending.sender")
                for _ in range(_TURNS):
                    await asyncio.sleep(0)
            if under_way is not None:
                outcomes += await under_way
        except BaseException as error:
            if under_way is not None:
                if isinstance(error, asyncio.CancelledError):
                    under_way.cancel()
                await asyncio.gather(under_way, return_exceptions=True)
            raise
        statuses = [outcome.status for outcome in outcomes]
        replaced = statuses.count("replaced")
        return BatchResult(
            tuple(outcomes),
            statuses.count("accepted") + replaced,
            statuses.count("duplicate"),
            statuses.count("rejected"),
            replaced,
        )

    async def _build_window(self, source: Iterator[_Item]) -> list[_Built]:
        """Build as many commands as leave together, fewer at the end."""
        built: list[_Built] = []
        can_build_fast = self._builder.can_build_fast
        while len(built) < self._producer.window:
            items = list(itertools.islice(source, _SLICE))
            for _, same in itertools.groupby(items, type):
                run = list(same)
                built += (self._built_run(run) if can_build_fast else None) or [await self._build(item) for item in run]
            if len(items) < _SLICE:
                break
            await asyncio.sleep(0)
        return built

    def _built_run(self, run: list[_Item]) -> list[_Built] | None:
        """Build the submissions of items of one class, without options, or say why there is none; None: `_build` decides."""
        if isinstance(run[0], Envelope | RawEnvelope | OutgoingMessage):
            return None
        try:
            built = self._builder.build_run(run) if self._agreed(run[0]) else None  # type: ignore[arg-type]  # no envelopes, see above
        except CommandBusError as error:  # it is the fault of their class
            return [self._unbuilt(item, error) for item in run]
        if built is None:
            return None
        return [
            each if isinstance(each, Submission) else self._unbuilt(item, each) for item, each in zip(run, built, strict=True)
        ]

    async def _build(self, item: _Item) -> _Built:
        """Build the submission of an item, or say why there is none. Do not wait again for a server that was away for its entity type."""
        try:
            out = self._builder.of_item(item)
            entity_type = out.entity_type or ""
            if (away := self._unagreed.get(entity_type)) is not None:
                return self._unbuilt(item, away)
            try:
                return await self._prepare(out)
            except TransportUnavailable as error:
                if entity_type and not error.outcome_unknown:
                    self._unagreed[entity_type] = error
                raise
        except CommandBusError as error:
            return self._unbuilt(item, error)

    def _unbuilt(self, item: _Item, error: CommandBusError) -> _Unbuilt:
        return _Unbuilt(BatchOutcome("", "rejected", error), self._mailbox_if_known(item))

    def _mailbox_if_known(self, item: object) -> tuple[str, ...]:
        """Return the mailbox that an item which cannot be sent would have had, if it is known."""
        entity_type, entity_id = _entity_of(item)
        if entity_type is None or entity_id is None:
            return ()
        try:
            home = self._builder.mailbox_of(check_entity_type(entity_type), canonical_entity_id(entity_id))
            return (home, *(self._builder.mailbox_of(*each) for each in _other_entities_of(item)))
        except InvalidCommand:
            return ()

    async def _enqueue(self, window: list[_Built]) -> list[BatchOutcome]:
        """Send what nothing before it keeps back; the outcome of each."""
        going: list[Submission] = []
        outcomes: list[BatchOutcome | None] = []
        for item in window:
            if isinstance(item, _Unbuilt):
                self._refused.update(item.mailboxes)
                outcomes.append(item.outcome)
            elif not self._refused.isdisjoint(item.lines):
                self._refused.update(item.lines)
                outcomes.append(self._outcome(item, Admission.PREDECESSOR_REFUSED))
            else:
                going.append(item)
                outcomes.append(None)
        admissions = await self._producer.enqueue_many(going, self._timeout, self._unavailable)
        answered = map(self._outcome, going, admissions)
        if len(going) == len(window):
            return list(answered)
        return [outcome or next(answered) for outcome in outcomes]

    def _outcome(self, submission: Submission, admission: Admission | CommandBusError) -> BatchOutcome:
        if admission is Admission.ACCEPTED:
            return BatchOutcome(submission.command_id, "accepted")
        if isinstance(admission, CommandBusError):
            self._refused.update(submission.lines)
            return BatchOutcome(submission.command_id, "rejected", admission)
        error = refusal(admission, submission.command_id)
        if error is not None and admission is not Admission.CONFLICT:
            self._refused.update(submission.lines)
        other = None if submission.unique is None else submission.unique.other
        return BatchOutcome(submission.command_id, status_of(admission), error, other)


def _entity_of(item: object) -> tuple[str | None, object]:
    """Return the entity that an item names, as far as it does."""
    if isinstance(item, RawEnvelope | OutgoingMessage):
        return item.entity_type, item.entity_id
    message = item.command if isinstance(item, Envelope) else item
    if not isinstance(message, Message) or type(message).__message_spec__ is None:
        return None, None
    spec = type(message).spec()
    return spec.entity, None if spec.key is None else getattr(message, spec.key, None)


def _other_entities_of(item: object) -> Sequence[tuple[str, str]]:
    """Return the further entities in whose lines an item stands."""
    if isinstance(item, OutgoingMessage):
        return OTHERS.of(item.options)
    message = item.command if isinstance(item, Envelope) else item
    return message.entity_ids() if isinstance(message, Message) else ()
