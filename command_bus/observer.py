"""`Observer`: receives what a bus does, while it does it, for metrics.

None is the default, and costs nothing. Where there is one, the parts that know the facts are replaced when the bus opens and when a
worker starts, by ones that pass them on (`ReportingProducer`, `worker.lifecycle`), and the exchange of a call is timed (`observed_call`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from command_bus.clock import mono
from command_bus.errors import CommandBusError
from command_bus.notifications.delivery import Announcer
from command_bus.transport.mailboxes import type_of
from command_bus.transport.ports.sender import Producer
from command_bus.transport.submissions import Admission, Submission, UnavailableShards

if TYPE_CHECKING:
    from command_bus.messages.outgoing import OutgoingMessage
    from command_bus.notifications.notifications import NotificationFigures


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """The counters of a worker since it started.

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


@dataclass(frozen=True, slots=True)
class RelayFigures:
    """The figures of a relay of an outbox since it was made.

    Attributes:
        sent: Commands that were accepted.
        again: Rows that it had sent, and that the server has lost.
        set_aside: Rows that can never be accepted.
        kept: Rows that are accepted, and not deleted yet.
        apart: Rows of mailboxes that take none at the moment, now.
        lag: Seconds since the add of the oldest row that its last look has found, and that is not sent; 0 if it has found none.
        working: Whether it is the one that relays, and reaches the database and the server.
    """

    sent: int
    again: int
    set_aside: int
    kept: int
    apart: int
    lag: float
    working: bool


@dataclass(frozen=True, slots=True)
class ExportFigures:
    """The figures of an export since it was made.

    Attributes:
        rows: The number that was written.
        files: The number that was made.
        lost: Entries that were deleted before they were read.
        lag: Seconds; all that is older is exported.
    """

    rows: int
    files: int
    lost: int
    lag: float


WorkerChange = Literal["drained", "closing", "closed"]


class Observer(Protocol):
    """Receives what happens, in the event loop of the bus. It must be quick, and must not raise. A subclass overrides what it wants."""

    def dispatched(self, command: str, status: str) -> None:
        """Receive that a command was sent: `accepted`, `duplicate`, `rejected` (a refusal of the server), or `failed` (no answer)."""
        return

    def called(self, command: str, status: str, seconds: float) -> None:
        """Receive that a call has ended, with its seconds: `replied`, or the `code` of the error's class (`rejected`, `failed`, `timeout` …).

        Or `given_up`, where its caller was cancelled.
        """
        return

    def handled(self, command: str, outcome: str) -> None:
        """Receive that an attempt was decided: `completed`, `rejected`, `failed`, `snoozed`, `suspended`, `cancelled` or `interrupted`.

        Or why it was settled without one: `expired`, `invalid`, `no_handler`, `undecodable`, `unsupported_version`, `bad_signature`.
        """
        return

    def ran(self, command: str, seconds: float) -> None:
        """Receive the seconds of a handler that ended by itself, with any outcome (with middleware, and the wait for a thread)."""
        return

    def waited(self, command: str, seconds: float) -> None:
        """Receive the seconds between acceptance and first start of a command, by the server's clock."""
        return

    def retried(self, command: str, error: str) -> None:
        """Receive that a command is to be retried, and the name of the class of its error: `Interrupted` where its worker was lost or stopped."""
        return

    def dead_lettered(self, command: str, reason: str) -> None:
        """Receive that a command was dead-lettered."""
        return

    def server_away(self, server: str, reason: str) -> None:
        """Receive that a server cannot be reached: a request failed, and so did a probe after it."""
        return

    def server_back(self, server: str, seconds: float) -> None:
        """Receive that a server that was away answers again, and for how long it was away."""
        return

    def connects(self, reconnects: Callable[[], int]) -> None:
        """Receive, as the bus opens, a function that returns how many requests were repeated for lack of an answer; any thread may call it."""
        return

    def worker_changed(self, worker: str, state: WorkerChange) -> None:
        """Receive what a worker is now, by its name.

        It is `drained`: it had work, has none left, and a read of each shard brought none, which takes up to some seconds. It is `closing`: it reads
        no more, and its handlers have their grace time. It is `closed`: it has stopped.
        """
        return

    def works(self, figures: Callable[[], WorkerFigures]) -> None:
        """Receive, as a worker of this bus starts, a function that returns its figures; any thread may call it."""
        return


class OutwardObserver(Protocol):
    """Receives what passes between a bus and others: notifications, webhooks, outboxes, exports.

    An `Observer` that wants to know has one as its attribute `outward`.
    """

    def notifies(self, figures: Callable[[], NotificationFigures]) -> None:
        """Receive, as a bus with a notifier opens, a function that returns its figures; any thread may call it."""
        ...

    def relays(self, figures: Callable[[], RelayFigures]) -> None:
        """Receive, as a relay of an outbox is made, a function that returns its figures; any thread may call it."""
        ...

    def exports(self, figures: Callable[[], ExportFigures]) -> None:
        """Receive, as an export is made, a function that returns its figures; any thread may call it."""
        ...

    def posted(self, webhook: str, result: str) -> None:
        """Receive what became of one request to a receiver.

        It was `delivered`, or answered `put_off` (it asks to wait), `gone`, `redirected` or `failed` (with another status). Or there was no answer:
        `silent` (none in time), `unreachable`, `forbidden` (an address that it may not connect to), `unsigned` (its secret is not there).
        """
        ...

    def lost_events(self, webhook: str) -> None:
        """Receive that events were deleted before a webhook was told of them."""
        ...


def outward_of(observer: Observer | None) -> OutwardObserver | None:
    """Return what an observer has for notifications and webhooks, if it has."""
    found: OutwardObserver | None = getattr(observer, "outward", None)
    return found


Report = Callable[[Sequence[Submission], Sequence[Admission | CommandBusError | None]], None]
"""Receives what was sent, and how it was answered; None: its sender gave up."""


class ReportingProducer(Producer):
    """A producer that reports what it sent.

    Args:
        producer: Sends.
        report: Receives the reports.
    """

    def __init__(self, producer: Producer, report: Report) -> None:
        self._producer = producer
        self._report = report

    @property
    def window(self) -> int:
        return self._producer.window

    async def enqueue(self, submission: Submission, timeout: float) -> Admission:
        try:
            admission = await self._producer.enqueue(submission, timeout)
        except BaseException:
            self._report((submission,), (None,))
            raise
        self._report((submission,), (admission,))
        return admission

    async def enqueue_many(
        self, submissions: Sequence[Submission], timeout: float, unavailable: UnavailableShards | None = None
    ) -> list[Admission | CommandBusError]:
        admissions = await self._producer.enqueue_many(submissions, timeout, unavailable)
        self._report(submissions, admissions)
        return admissions


def observed(observer: Observer) -> Report:
    """Return what reports each command to an observer."""

    def report(submissions: Sequence[Submission], admissions: Sequence[Admission | CommandBusError | None]) -> None:
        for submission, admission in zip(submissions, admissions, strict=True):
            observer.dispatched(submission.name, _status(admission))

    return report


def announced(announcer: Announcer) -> Report:
    """Return what announces commands that were accepted and wait for a worker now. A delayed command is not work yet."""

    def report(submissions: Sequence[Submission], admissions: Sequence[Admission | CommandBusError | None]) -> None:
        work = Counter(
            type_of(submission.mailbox)
            for submission, admission in zip(submissions, admissions, strict=True)
            if admission is Admission.ACCEPTED and submission.delay_ms <= 0
        )
        for entity_type, commands in work.items():
            announcer.work(entity_type, commands)

    return report


async def observed_call(observer: Observer, exchange: Callable[[OutgoingMessage], Awaitable[Any]], out: OutgoingMessage) -> Any:
    """Exchange a call, and report its end to the observer."""
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


def _status(admission: Admission | CommandBusError | None) -> str:
    match admission:
        case Admission.ACCEPTED | Admission.REPLACED:
            return "accepted"
        case Admission.DUPLICATE | Admission.FOLDED:
            return "duplicate"
        case Admission():
            return "rejected"
        case _:
            return "failed"
