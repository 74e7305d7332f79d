"""`Observer`: what a bus tells of its work while it does it, for metrics.

None is the default, and costs nothing. Where there is one, the parts that know the facts are replaced when the bus opens and when a
worker starts, by ones that pass them on (`ObservedProducer`, `execution.observed`), and the exchange of a call is timed (`observed_call`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from command_bus.clock import mono
from command_bus.errors import CommandBusError
from command_bus.transport.interfaces import Producer
from command_bus.transport.submissions import Admission, Submission, UnavailableShards

if TYPE_CHECKING:
    from command_bus.messages.outgoing import OutgoingMessage

__all__ = ["ObservedProducer", "Observer", "WorkerFigures", "observed_call"]


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """What a worker has come to since it started.

    Attributes:
        running: Entities that it holds now.
        leases_lost: Leases that it lost while a handler ran.
        recovered: Leases of others, and abandoned ones of its own, that it took over.
        awaiting_thread: Entities among `running` whose next command waits for a thread.
        awaiting_reply: Entities among `running` whose handler waits for a reply of the bus.
    """

    running: int
    leases_lost: int
    recovered: int
    awaiting_thread: int = 0
    awaiting_reply: int = 0


class Observer(Protocol):
    """Is told what happens, in the event loop of the bus. It must be quick, and must not raise."""

    def dispatched(self, command: str, status: str) -> None:
        """A command was sent: `accepted`, `duplicate`, `rejected` (a refusal of the server), or `failed` (no answer)."""
        ...

    def called(self, command: str, status: str, seconds: float) -> None:
        """A call has ended, after that time: `replied`, or the `code` of the error's class (`rejected`, `failed`, `timeout` …).

        Or `given_up`, where its caller was cancelled.
        """
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

    def connects(self, reconnects: Callable[[], int]) -> None:
        """The bus opens; how many requests it repeated because the server did not answer may be asked for at any time, in any thread."""
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
        self, submissions: Sequence[Submission], timeout: float, silent: UnavailableShards | None = None
    ) -> list[Admission | CommandBusError]:
        """See `Producer`."""
        admissions = await self._producer.enqueue_many(submissions, timeout, silent)
        for submission, admission in zip(submissions, admissions, strict=True):
            self._observer.dispatched(submission.name, _status(admission))
        return admissions


async def observed_call(observer: Observer, exchange: Callable[[OutgoingMessage], Awaitable[Any]], out: OutgoingMessage) -> Any:
    """The exchange of a call, and a word to the observer when it ends."""
    began, status = mono(), "given_up"
    try:
        value = await exchange(out)
        status = "replied"
    except CommandBusError as error:
        status = type(error).code  # of a refusal the instance has the handler's own code, of which there may be many
        raise
    finally:
        observer.called(out.name, status, mono() - began)
    return value


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
