"""Ends of a handler's run, where it did not return."""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import dataclass

from pydantic import ValidationError

from command_bus.durable.in_flight import StepRuns
from command_bus.messages.snooze import leading, leaves
from command_bus.serialization.models import problems_of
from command_bus.transport.steps import Cancellation, Cause
from command_bus.worker.threads import NeverStartedError, NoThreadError, ThreadRunsError

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


_MAX_TRACEBACK = 16 * 1024
_MOST_CAUSES = 20


def named(error: BaseException) -> str:
    """Return the type of an exception, with its module where that says something."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"


def text_of(error: BaseException) -> str:
    """Return the text of an exception, capped; of a group, also its causes.

    Pydantic's errors quote their input, which may be secret: of those, places and reasons.
    """
    try:
        text = problems_of(error) if isinstance(error, ValidationError) else str(error)
        if isinstance(error, BaseExceptionGroup):
            text += "".join(f"; {named(each)}: {text_of(each)}" for each in leaves(error)[:_MOST_CAUSES])
        return text[:4096].encode(errors="replace").decode()
    except BaseException:  # noqa: BLE001 - a broken __str__ must not cost the command its dead letter
        return f"(the text of this {type(error).__name__} cannot be read)"


def trace_of(error: BaseException) -> str:
    """Return the frames without locals or input values, the innermost last, capped."""
    try:
        frames = "".join(traceback.format_tb(error.__traceback__))
        if isinstance(error, BaseExceptionGroup):
            for each in leaves(error)[:_MOST_CAUSES]:
                frames += f"{named(each)}:\n" + "".join(traceback.format_tb(each.__traceback__))
    except Exception:  # noqa: BLE001 - as above
        return ""
    return frames[-_MAX_TRACEBACK:]
