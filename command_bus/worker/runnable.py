"""`Runnable`: a delivery that has been read and can be run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from command_bus.clock import mono
from command_bus.durable.run import DurableRun
from command_bus.handlers.handler import Handler, function_handler
from command_bus.messages.durable import DurableContext
from command_bus.messages.handling_policy import HandlingPolicy
from command_bus.messages.message import Command
from command_bus.serialization.callers_option import callers_in, with_caller
from command_bus.serialization.wire_envelope import WireEnvelope
from command_bus.transport.marks import accepted_ms
from command_bus.transport.steps import (
    Cancellation,
    DeadLetterStep,
    Done,
    FollowUp,
    Lease,
    Started,
    Step,
)

if TYPE_CHECKING:
    from command_bus.worker.reports import RunReports


class _Unknown(Command[None], durable=True):
    """A durable command whose class is not here, or does not fit."""


async def _never_called(command: _Unknown, context: DurableContext) -> None:
    raise AssertionError(command, context)


NO_HANDLER = function_handler(_Unknown, _never_called)
"""The handler of a command that can only be undone."""


@dataclass(slots=True)
class Runnable:
    """A command that can run: read, validated, with its handler."""

    envelope: WireEnvelope
    started: Started
    handler: Handler
    message: Any
    policy: HandlingPolicy
    """What applies to it."""
    interrupted: Cancellation | None = None
    """What interrupted it from outside, once it was."""
    lease: Lease | None = None
    """Under which it runs, once it does."""
    follow_ups: tuple[FollowUp, ...] = ()
    """What its handler sends with its settlement, once that is decided."""
    durable: DurableRun | None = None
    """The run of its durable handler, and all that it has stored."""
    reports: RunReports | None = None
    """The progress and log of its handler, if it may report."""
    lends_beyond: bool = False
    """Whether its handler lends its slot although no more may be."""

    @property
    def may_start(self) -> bool:
        """Whether its handler may still be started: its lease is not over, and no operator wants it to end. Safe in any thread."""
        return self.interrupted is None and (self.lease is None or mono() < self.lease.deadline)

    @property
    def serves_handler(self) -> bool:
        """Whether it was called by a handler, which may still wait for its reply."""
        return bool(self.envelope.inbox) and self.envelope.causation_id is not None

    @property
    def callers(self) -> Mapping[str, str]:
        """Who waits for what its handler calls, and may have places of limits: its own callers, and itself."""
        callers, lease = callers_in(self.envelope.options), self.lease
        if lease is None or not lease.may_have_places:
            return callers
        return with_caller(callers, lease.mailbox, lease.activation)

    @property
    def accepted_ms(self) -> int:
        """The server's time of acceptance."""
        return accepted_ms(self.started.message)

    @property
    def remaining(self) -> float | None:
        """Seconds until its caller waits no longer, at the time of its start."""
        if self.envelope.ttl_ms is None:
            return None
        return (self.accepted_ms + self.envelope.ttl_ms - self.started.now_ms) / 1000


def without_reports(run: Runnable, step: Step | None) -> Step | None:
    """Return a step that deletes what a plain command has reported, if it settles that. A durable one deletes its record by itself."""
    if isinstance(step, Done | DeadLetterStep) and run.reports is not None and run.reports.is_used:
        step.left = replace(step.left, command_id=run.envelope.command_id, side="ends")
    return step
