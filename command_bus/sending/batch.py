"""Many commands in few steps: build a window of them, enqueue it, and build the next one while the server is at work."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from command_bus.errors import CommandBusError, InvalidCommand, TransportUnavailable
from command_bus.messages.message import Message, canonical_entity_id, check_entity_type
from command_bus.messages.outgoing import Envelope, OutgoingMessage, RawEnvelope
from command_bus.messages.receipts import BatchOutcome, BatchResult
from command_bus.sending.admission import refusal, status_of
from command_bus.sending.envelope_builder import EnvelopeBuilder
from command_bus.transport.ports.sender import Producer
from command_bus.transport.submissions import Admission, Submission, UnavailableShards

_SLICE = 64
"""Commands that are built before the event loop gets its turn: those built before leave, and no other task waits for long."""

_TURNS = 3
"""Turns of the event loop that a request takes to leave."""

_Item = Message[Any] | Envelope[Any] | RawEnvelope


@dataclass(frozen=True, slots=True)
class _Unbuilt:
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
                under_way = asyncio.create_task(self._enqueue(window), name="command_bus.sending.batch")
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
        if isinstance(run[0], Envelope | RawEnvelope):
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
            return (self._builder.mailbox_of(check_entity_type(entity_type), canonical_entity_id(entity_id)),)
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
            elif item.mailbox in self._refused:
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
            self._refused.add(submission.mailbox)
            return BatchOutcome(submission.command_id, "rejected", admission)
        error = refusal(admission, submission.command_id)
        if error is not None and admission is not Admission.CONFLICT:
            self._refused.add(submission.mailbox)
        other = None if submission.unique is None else submission.unique.other
        return BatchOutcome(submission.command_id, status_of(admission), error, other)


def _entity_of(item: object) -> tuple[str | None, object]:
    """Return the entity that an item names, as far as it does."""
    if isinstance(item, RawEnvelope):
        return item.entity_type, item.entity_id
    message = item.command if isinstance(item, Envelope) else item
    if not isinstance(message, Message) or type(message).__message_spec__ is None:
        return None, None
    spec = type(message).spec()
    return spec.entity, None if spec.key is None else getattr(message, spec.key, None)
