"""Reports of what happens to the commands of a worker: decisions to an observer; settlements and lost leases to those who listen.

The observer sees decisions. If the lease was lost in between, which is rare, the server refuses the decision, and the command is
decided again elsewhere.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from operator import call
from typing import Any

from command_bus.clock import mono, wall_ms
from command_bus.errors import Reject
from command_bus.messages.snooze import Snooze
from command_bus.notifications.delivery import Announcer
from command_bus.notifications.notices import Notice
from command_bus.notifications.notifications import Notifications
from command_bus.observer import Observer
from command_bus.serialization.dead_letter import DeadLetterRecord
from command_bus.serialization.envelope import names_of, unpack_envelope
from command_bus.serialization.limits import Undecodable
from command_bus.serialization.reply import Cancelled
from command_bus.transport.mailboxes import mailbox_parts, type_of
from command_bus.transport.marks import accepted_ms
from command_bus.transport.ports.worker import Steps
from command_bus.transport.steps import (
    WORKER_LOST,
    Answer,
    DeadLetterStep,
    Done,
    GiveBack,
    Lease,
    LeaseLost,
    Park,
    PutOff,
    Retry,
    RunStep,
    Started,
    Step,
    StepFailed,
    Suspend,
)
from command_bus.worker.decisions import Decisions
from command_bus.worker.offers import Behind, Offer
from command_bus.worker.runnable import Begun, Driven, Runnable

UNKNOWN = ""
"""Replaces the name of a command that this worker has no handler for: such names may be anything, and too many."""


class ObservedDecisions(Decisions):
    """The rules of one worker, each decision reported.

    Args:
        observer: Receives the decisions.
        arguments: As for `Decisions`.
    """

    def __init__(self, observer: Observer, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._observer = observer

    def read(self, started: Started, mailbox: str = "") -> Runnable | Step | Offer | Behind:
        read = super().read(started, mailbox)
        if not isinstance(read, Runnable):
            self._report_not_run(started, read)
            return read
        if started.attempt == 1 and not started.replayed:
            self._observer.waited(read.handler.spec.name, max(started.now_ms - read.accepted_ms, 0) / 1000)
        return read

    def completed(self, run: Runnable, value: Any) -> Step:
        return self._reported(run, "completed", super().completed(run, value))

    def rejected(self, run: Runnable, refusal: Reject) -> Step:
        return self._reported(run, "rejected", super().rejected(run, refusal))

    def failed(self, run: Runnable, error: BaseException) -> Step:
        return self._reported(run, "failed", super().failed(run, error))

    def snoozed(self, run: Runnable, snooze: Snooze) -> Step:
        """Report one snooze too many as the failure that it is."""
        step = super().snoozed(run, snooze)
        return self._reported(run, "snoozed", step) if type(step) is PutOff else step

    def suspended(self, run: Runnable, suspension: Suspend) -> Step:
        return self._reported(run, "suspended", super().suspended(run, suspension))

    def cancelled(self, run: Runnable, outcome: Cancelled) -> Step:
        return self._reported(run, "cancelled", super().cancelled(run, outcome))

    def interrupted(self, started: Started, why: str = WORKER_LOST.text) -> Step:
        step = super().interrupted(started, why)
        name = self._name_in(started)
        self._observer.handled(name, "interrupted")
        self._report_step(name, step)
        return step

    def _reported(self, run: Runnable, outcome: str, step: Step) -> Step:
        name = run.handler.spec.name
        self._observer.handled(name, outcome)
        self._observer.ran(name, mono() - run.began)
        if type(step) is not Done:
            self._report_step(name, step)
        return step

    def _report_not_run(self, started: Started, step: Step | Offer | Behind) -> None:
        """Report the reason of a command that cannot run, once it is settled. Until then it is offered to other workers."""
        match step:
            case Done():  # the caller of an expired call was answered, and there is no dead letter
                self._observer.handled(self._name_in(started), "expired")
            case DeadLetterStep() | Park():
                record = DeadLetterRecord.unpack(step.record)
                name = self._known(record.name)
                self._observer.handled(name, record.reason)
                self._observer.dead_lettered(name, record.reason)
            case _:
                pass

    def _report_step(self, name: str, step: Step) -> None:
        match step:
            case Retry():
                self._observer.retried(name, step.error.partition(":")[0] or UNKNOWN)
            case GiveBack():
                self._observer.retried(name, "Interrupted")
            case DeadLetterStep() | Park():
                self._observer.dead_lettered(name, DeadLetterRecord.unpack(step.record).reason)
            case _:
                pass

    def _name_in(self, started: Started) -> str:
        try:
            return self._known(unpack_envelope(started.envelope or b"", self._limits).name)
        except Undecodable:
            return UNKNOWN

    def _known(self, name: str) -> str:
        return UNKNOWN if self._bindings.of(name) is None else name


Lost = Callable[..., Step | None]


Execute = Callable[[Lease, Started, asyncio.Task[Any]], Begun]
"""Begins a delivered command, in this task."""


@dataclass(frozen=True, slots=True)
class SettledCommand:
    """A command that a worker has settled.

    Attributes:
        command_id: Its id; empty, as the name is, if its bytes cannot be read.
        name: Its wire name.
        entity_type: Type of its entity; None without one.
        entity_id: Id of its entity.
        status: `completed`, `rejected`, `expired`, `cancelled`, `dead_lettered` or `parked`.
        attempt: The start that settled it, 1 for the first.
        fence: Number of that start.
        accepted_ms: When it was accepted, by the server's clock.
        started_ms: When it was first started, by the server's clock.
        settled_ms: When it was settled, by this machine's clock.
        reason: Why it became a dead letter; else empty.
        error: Type and text of the error behind that; else empty.
    """

    command_id: str
    name: str
    entity_type: str | None
    entity_id: str | None
    status: str
    attempt: int
    fence: int
    accepted_ms: int
    started_ms: int
    settled_ms: int
    reason: str = ""
    error: str = ""


def _settled_by(started: Started, step: Done | DeadLetterStep | Park) -> SettledCommand:
    record = None if isinstance(step, Done) else DeadLetterRecord.unpack(step.record)
    status: str = step.status if isinstance(step, Done) else "parked" if isinstance(step, Park) else "dead_lettered"
    command_id, name, entity_type, entity_id = names_of((started.envelope or b"")[2:])
    return SettledCommand(
        command_id,
        name,
        entity_type or None,
        entity_id or None,
        status,
        started.attempt,
        int(started.fence),
        accepted_ms(started.message),
        started.first_ms,
        wall_ms(),
        "" if record is None else record.reason,
        "" if record is None else f"{record.error_type}: {record.error_message}",
    )


Settled = Callable[[SettledCommand], None]


@dataclass(eq=False)
class Lifecycle(Steps):
    """Runs commands and moves mailboxes forward, and reports what was settled and whose lease was lost.

    Attributes:
        run: Runs commands.
        steps: Settles them.
        on_settled: Is called with each command that the server has settled.
        announcer: Sends notices; None: none.
        kinds: What notices are sent: `settled`, `work`, `lease_lost`.
        worker: Its name.
    """

    run: Execute
    steps: Steps
    on_settled: Settled | None
    announcer: Announcer | None = None
    kinds: Collection[str] = ()
    worker: str = ""

    def __post_init__(self) -> None:
        self._started: dict[int, Started] = {}

    def execute(self, lease: Lease, started: Started, task: asyncio.Task[Any]) -> Begun:
        """Run a command, as `Executor` does; note what it was."""
        begun = self.run(lease, started, task)
        if isinstance(begun, Driven):
            return Driven(call, self._noted_later(lease, started, begun))
        return self._noted(lease, started, begun)

    async def _noted_later(self, lease: Lease, started: Started, begun: Driven[Step | None]) -> Step | None:
        return self._noted(lease, started, await begun)

    def _noted(self, lease: Lease, started: Started, step: Step | None) -> Step | None:
        if step is not None:
            self._started[id(lease)] = started
        elif lease.lost:
            self._report_lost(lease, started)
        return step

    async def advance(self, lease: Lease, step: Step) -> Answer:
        started = self._started.pop(id(lease), None)
        answer = await self.steps.advance(lease, step)
        if started is None:
            pass
        elif type(answer) is LeaseLost:
            self._report_lost(lease, started)
        elif type(answer) is StepFailed:
            self._started[id(lease)] = started  # it is repeated
        elif type(step) is RunStep:
            for each, end in (*step.before, (step.started, step.step)):
                if isinstance(end, Done | DeadLetterStep | Park):
                    self.report_settled(each, end)
        elif type(step) is Done or type(step) is DeadLetterStep or type(step) is Park:
            self.report_settled(started, step)
        return answer

    def behind(self, lease: Lease, message: str, count: int) -> Awaitable[list[tuple[str, bytes]]]:
        return self.steps.behind(lease, message, count)

    def report_settled(self, started: Started, step: Done | DeadLetterStep | Park) -> None:
        """Report a command that was settled, and what was sent with its settlement."""
        is_told = self.announcer is not None and "settled" in self.kinds
        if is_told or self.on_settled is not None:
            settled = _settled_by(started, step)
            if self.announcer is not None and is_told:
                names = settled.entity_type, settled.entity_id, settled.command_id, settled.name
                self.announcer.tell(Notice("settled", *names, settled.status))
            if self.on_settled is not None:
                self.on_settled(settled)
        if self.announcer is not None and "published" in self.kinds:
            for entity_type, entity_id, event_id, name in step.left.published:
                self.announcer.tell(Notice("published", entity_type, entity_id, event_id, name))
        if self.announcer is not None and "work" in self.kinds:
            sent = Counter(type_of(each.mailbox) for each in step.left.follow_ups if each.delay_ms <= 0)
            for entity_type, commands in sent.items():
                self.announcer.work(entity_type, commands)

    def _report_lost(self, lease: Lease, started: Started) -> None:
        if self.announcer is None or "lease_lost" not in self.kinds:
            return
        command_id, name, _, named_id = names_of((started.envelope or b"")[2:])
        entity_type, entity_id = mailbox_parts(lease.mailbox)
        self.announcer.tell(Notice("lease_lost", entity_type, named_id or entity_id, command_id, name, worker=self.worker))


def reported(
    notifications: Notifications | None, on_settled: Settled | None, worker: str, execute: Execute, steps: Steps, lost: Lost
) -> tuple[Execute, Steps, Lost]:
    """Return what runs and settles commands, so that its ends are reported; as it is where nothing listens."""
    open_now = None if notifications is None else notifications.open
    if on_settled is None and open_now is None:
        return execute, steps, lost
    kinds = frozenset[str]() if open_now is None else open_now.kinds
    life = Lifecycle(execute, steps, on_settled, None if open_now is None else open_now.announcer, kinds, worker)

    def lost_and_reported(started: Started, *words: Any) -> Step | None:
        step = lost(started, *words)
        if type(step) is Done or type(step) is DeadLetterStep or type(step) is Park:
            life.report_settled(started, step)
        return step

    return life.execute, life, lost_and_reported
