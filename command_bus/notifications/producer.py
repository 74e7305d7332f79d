"""`NotifyingProducer`: a producer that tells which entity types have new work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from command_bus.errors import CommandBusError
from command_bus.notifications.announcer import Announcer
from command_bus.transport.mailboxes import type_of
from command_bus.transport.sender_interfaces import Producer
from command_bus.transport.submissions import Admission, Submission, UnavailableShards


class NotifyingProducer:
    """Sends by another producer, and tells what was accepted and waits for a worker now. A delayed command is not work yet.

    Args:
        producer: Sends.
        announcer: Tells.
    """

    def __init__(self, producer: Producer, announcer: Announcer) -> None:
        self._producer = producer
        self._announcer = announcer

    @property
    def window(self) -> int:
        """See `Producer`."""
        return self._producer.window

    async def enqueue(self, submission: Submission, timeout: float) -> Admission:
        """See `Producer`."""
        admission = await self._producer.enqueue(submission, timeout)
        if admission is Admission.ACCEPTED and submission.delay_ms <= 0:
            self._announcer.work(type_of(submission.mailbox))
        return admission

    async def enqueue_many(
        self, submissions: Sequence[Submission], timeout: float, silent: UnavailableShards | None = None
    ) -> list[Admission | CommandBusError]:
        """See `Producer`."""
        admissions = await self._producer.enqueue_many(submissions, timeout, silent)
        accepted = Counter(
            type_of(submission.mailbox)
            for submission, admission in zip(submissions, admissions, strict=True)
            if admission is Admission.ACCEPTED and submission.delay_ms <= 0
        )
        for entity_type, commands in accepted.items():
            self._announcer.work(entity_type, commands)
        return admissions
