"""Ends of a handler's run, where it did not return."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter
from dataclasses import dataclass

from pydantic import ValidationError

from command_bus.clock import mono
from command_bus.durable.in_flight import StepRuns
from command_bus.messages.snooze import leading, leaves
from command_bus.serialization.limits import printable
from command_bus.serialization.models import problems_of
from command_bus.transport.steps import Cancellation, Cause
from command_bus.worker.runnable import Runnable
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


_MOST_OF_ERROR = 200
_QUIET = 60.0
_MOST_KINDS = 1000
_log = logging.getLogger("command_bus.worker")


def failure_of(error: BaseException) -> str:
    """Return type and text of an exception, cut at 200 characters."""
    return f"{type(error).__name__}: {text_of(error)}"[:_MOST_OF_ERROR]


class FailureLog:
    """Logs attempts that fail. Of those of one command and one type of error it tells one a minute, with how many there were between.

    Args:
        worker: Its name.
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._told: dict[tuple[str, str], float] = {}
        self._untold: Counter[tuple[str, str]] = Counter()

    def log(self, entity: str, run: Runnable, error: BaseException) -> None:
        """Log an attempt of an entity's command, or count it."""
        name, command_id, attempt = run.envelope.name, run.envelope.command_id, run.started.attempt
        kind, now = (name, type(error).__name__), mono()
        if len(self._told) >= _MOST_KINDS:
            self._told.clear()
            self._untold.clear()
        is_told = kind not in self._told or now - self._told[kind] >= _QUIET
        text = printable(f"{kind[1]}: {text_of(error)}")
        if is_told:
            self._told[kind] = now
            if untold := self._untold.pop(kind, 0):
                text += f" ({untold:,} more {kind[1]} of {printable(name)} since the last line)"
        else:
            self._untold[kind] += 1
        facts = {"command": name, "command_id": command_id, "entity": entity, "attempt": attempt, "worker": self._worker}
        level = logging.INFO if is_told else logging.DEBUG
        _log.log(level, "%s %s failed (attempt %d): %s", printable(name), printable(command_id), attempt, text, extra=facts)


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
