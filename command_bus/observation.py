"""`Observer`: what a bus tells of its work while it does it, for metrics.

None is the default, and costs nothing: nothing asks whether there is an observer. Where there is one, the parts that know the facts
are replaced when the bus opens and when a worker starts, by ones that pass them on (`ObservedProducer`, `execution.observed`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from command_bus.errors import CommandBusError
from command_bus.transport.interfaces import Admission, Producer, Silent, Submission

__all__ = ["ObservedProducer", "Observer", "WorkerFigures"]


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """What a worker has come to since it started.

    Attributes:
        running: Entities that it holds now.
        leases_lost: Leases that it lost while a handler ran.
        recovered: Leases of others, and abandoned ones of its own, that it took over.
        reconnects: Requests of its bus that were repeated because the server did not answer.
    """

    running: int
    leases_lost: int
    recovered: int
    reconnects: int


class Observer(Protocol):
    """Is told what happens, in the event loop of the bus. It must be quick, and must not raise."""

    def dispatched(self, command: str, status: str) -> None:
        """A command was sent: `accepted`, `duplicate`, `rejected` (a refusal of the server), or `failed` (no answer)."""
        ...

    def handled(self, command: str, outcome: str) -> None:
        """An attempt was decided: `completed`, `rejected`, `failed` or `interrupted`.

        Or why it was given up without one: `expired`, `invalid`, `no_handler`, `undecodable`, `unsupported_version`, `bad_signature`.
        """
        ...

    def ran(self, command: str, seconds: float) -> None:
        """A handler ended by itself, with whatever outcome, after that time (with middleware, and the wait for a thread)."""
        ...

    def waited(self, command: str, seconds: float) -> None:
        """A command was started for the first time, so long after it was accepted, by the server's clock."""
        ...

    def retried(self, command: str) -> None:
        """A command is to be tried again."""
        ...

    def dead_lettered(self, command: str, reason: str) -> None:
        """A command was given up."""
        ...

    def works(self, figures: Callable[[], WorkerFigures]) -> None:
        """A worker of this bus starts; what it has come to may be asked for at any time, in any thread."""
        ...


class ObservedProducer:
    """A producer that tells an observer what it sent.

    Args:
        producer: Sends.
        observer: Is told.
    """

    def __init__(self, producer: Producer, observer: Observer) -> None:
        self._producer = producer
        self._observer = observer

    @property
    def window(self) -> int:
        """See `Producer`."""
        return self._producer.window

    async def enqueue(self, submission: Submission, timeout: float) -> Admission:
        """See `Producer`."""
        try:
            admission = await self._producer.enqueue(submission, timeout)
        except (CommandBusError, asyncio.CancelledError):
            self._observer.dispatched(submission.name, "failed")
            raise
        self._observer.dispatched(submission.name, _status(admission))
        return admission

    async def enqueue_many(
        self, submissions: Sequence[Submission], timeout: float, silent: Silent | None = None
    ) -> list[Admission | CommandBusError]:
        """See `Producer`."""
        admissions = await self._producer.enqueue_many(submissions, timeout, silent)
        for submission, admission in zip(submissions, admissions, strict=True):
            self._observer.dispatched(submission.name, _status(admission))
        return admissions


def _status(admission: Admission | CommandBusError) -> str:
    match admission:
        case Admission.ACCEPTED:
            return "accepted"
        case Admission.DUPLICATE:
            return "duplicate"
        case Admission():
            return "rejected"
        case _:
            return "failed"
