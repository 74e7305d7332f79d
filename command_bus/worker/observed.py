"""Decisions that are reported to an observer: every attempt of every command is decided in one of these methods.

The observer sees decisions. If the lease was lost in between, which is rare, the server refuses the decision, and the command is
decided again elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from command_bus.clock import mono
from command_bus.errors import Reject
from command_bus.messages.put_off import Snooze
from command_bus.observer import Observer
from command_bus.serialization.dead_letter import DeadLetterRecord
from command_bus.serialization.envelope_reading import unpack_envelope
from command_bus.serialization.limits import Undecodable
from command_bus.serialization.reply import Cancelled
from command_bus.transport.steps import WORKER_LOST, DeadLetterStep, Done, GiveBack, Park, PutOff, Retry, Started, Step, Suspend
from command_bus.worker.decisions import Decisions
from command_bus.worker.offers import Offer
from command_bus.worker.runnable import Runnable

UNKNOWN = ""
"""Replaces the name of a command that this worker has no handler for: such names may be anything, and too many."""


@dataclass(slots=True)
class _Clocked(Runnable):
    """A command that can run, and since when."""

    began: float = 0.0


class ObservedDecisions(Decisions):
    """The rules of one worker, each decision reported.

    Args:
        observer: Receives the decisions.
        arguments: As for `Decisions`.
    """

    def __init__(self, observer: Observer, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._observer = observer

    def read(self, started: Started, mailbox: str = "") -> Runnable | Step | Offer:
        """See `Decisions`."""
        read = super().read(started, mailbox)
        if not isinstance(read, Runnable):
            self._report_not_run(started, read)
            return read
        if started.attempt == 1 and not started.replayed:
            self._observer.waited(read.handler.spec.name, max(started.now_ms - read.accepted_ms, 0) / 1000)
        return _Clocked(read.envelope, read.started, read.handler, read.message, read.policy, began=mono())

    def completed(self, run: Runnable, value: Any) -> Step:
        """See `Decisions`."""
        return self._reported(run, "completed", super().completed(run, value))

    def rejected(self, run: Runnable, refusal: Reject) -> Step:
        """See `Decisions`."""
        return self._reported(run, "rejected", super().rejected(run, refusal))

    def failed(self, run: Runnable, error: BaseException) -> Step:
        """See `Decisions`."""
        return self._reported(run, "failed", super().failed(run, error))

    def snoozed(self, run: Runnable, snooze: Snooze) -> Step:
        """See `Decisions`. One too many is reported as the failure that it is."""
        step = super().snoozed(run, snooze)
        return self._reported(run, "snoozed", step) if type(step) is PutOff else step

    def suspended(self, run: Runnable, suspension: Suspend) -> Step:
        """See `Decisions`."""
        return self._reported(run, "suspended", super().suspended(run, suspension))

    def cancelled(self, run: Runnable, outcome: Cancelled) -> Step:
        """See `Decisions`."""
        return self._reported(run, "cancelled", super().cancelled(run, outcome))

    def interrupted(self, started: Started, why: str = WORKER_LOST.text) -> Step:
        """See `Decisions`."""
        step = super().interrupted(started, why)
        name = self._name_in(started)
        self._observer.handled(name, "interrupted")
        self._report_step(name, step)
        return step

    def _reported(self, run: Runnable, outcome: str, step: Step) -> Step:
        name = run.handler.spec.name
        self._observer.handled(name, outcome)
        self._observer.ran(name, mono() - run.began if isinstance(run, _Clocked) else 0.0)
        if type(step) is not Done:
            self._report_step(name, step)
        return step

    def _report_not_run(self, started: Started, step: Step | Offer) -> None:
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
            case Retry() | GiveBack():
                self._observer.retried(name)
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
