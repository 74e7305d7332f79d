"""Many commands in few steps: seal a window of them, enqueue it, note each outcome, go on with the next window."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from command_bus.admission import refusal, status_of
from command_bus.errors import CommandBusError
from command_bus.messages import Message
from command_bus.outbound import Envelope, Outbound, Sealer
from command_bus.receipts import BatchOutcome, BatchResult
from command_bus.transport.interfaces import Admission, Producer, Submission

__all__ = ["BatchSender"]

WINDOW = 2048
"""Commands that are sealed at a time: bounds the memory of an endless iterable, and is many times what one step carries."""

_Item = Message[Any] | Envelope[Any]


class BatchSender:
    """Sends one batch; after a refused command of an entity, its later ones are refused as well.

    Args:
        sealer: Encodes and names mailboxes.
        producer: Enqueues.
        prepare: Turns an outbound value into a submission: agreement on its entity type, middleware, sealing.
        timeout: Seconds per step.
    """

    def __init__(
        self, sealer: Sealer, producer: Producer, prepare: Callable[[Outbound], Awaitable[Submission]], timeout: float
    ) -> None:
        self._sealer = sealer
        self._producer = producer
        self._prepare = prepare
        self._timeout = timeout
        self._refused: set[str] = set()

    async def send(self, commands: Iterable[_Item]) -> BatchResult:
        """Send all, in order per entity."""
        source = iter(commands)
        outcomes: list[BatchOutcome] = []
        while window := list(itertools.islice(source, WINDOW)):
            outcomes += await self._send_window(window)
        statuses = [outcome.status for outcome in outcomes]
        return BatchResult(tuple(outcomes), statuses.count("accepted"), statuses.count("duplicate"), statuses.count("rejected"))

    async def _send_window(self, window: list[_Item]) -> list[BatchOutcome]:
        sealed = [await self._seal(item) for item in window]
        ready = [item for item in sealed if isinstance(item, Submission)]
        admissions = iter(await self._producer.enqueue_many(ready, self._timeout))
        return [self._outcome(item, next(admissions)) if isinstance(item, Submission) else item for item in sealed]

    async def _seal(self, item: _Item) -> Submission | BatchOutcome:
        """The submission of an item, or why there is none."""
        try:
            out = self._sealer.of_item(item)
            submission = await self._prepare(out)
        except CommandBusError as error:
            self._refused.update(self._sealer.mailbox_if_known(item))
            return BatchOutcome("", "rejected", error)
        if submission.mailbox in self._refused:
            return self._outcome(submission, Admission.PREDECESSOR_REFUSED)
        return submission

    def _outcome(self, submission: Submission, admission: Admission | CommandBusError) -> BatchOutcome:
        if isinstance(admission, CommandBusError):
            self._refused.add(submission.mailbox)
            return BatchOutcome(submission.command_id, "rejected", admission)
        error = refusal(admission, submission.command_id)
        if error is not None and admission is not Admission.CONFLICT:
            self._refused.add(submission.mailbox)
        return BatchOutcome(submission.command_id, status_of(admission), error)
