"""Ends of a handler's run, where it did not return."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from command_bus.durable.in_flight import StepRuns
from command_bus.messages.error_groups import leading
from command_bus.transport.steps import Cancellation, Cause
from command_bus.worker.thread_runs import ThreadRunsError
from command_bus.worker.threads import NeverStartedError, NoThreadError

STOPPING = Cancellation(Cause.STOPPING, "the worker is stopping")
"""Ends handlers that outlive the grace time."""


@dataclass(frozen=True, slots=True)
class Interruption:
    """The handler was cancelled from outside, or never started."""

    why: Cancellation | None = None
    thread_runs: bool = False
    never_started: bool = False
    no_thread: bool = False


@dataclass(frozen=True, slots=True)
class Raised:
    """The handler failed."""

    error: BaseException


def explained(error: BaseException, interrupted: Cancellation | None) -> Interruption | Raised:
    """Translate the exception that ended a handler; of a group the one that says how it ends."""
    match error := leading(error):
        case ThreadRunsError() | StepRuns():
            return Interruption(STOPPING, thread_runs=True)
        case NeverStartedError():
            return Interruption(never_started=True)
        case NoThreadError():
            return Interruption(no_thread=True)
        case asyncio.CancelledError() if interrupted is not None:
            return Interruption(interrupted)
        case _:
            return Raised(error)
