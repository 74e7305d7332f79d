"""The commands that a worker has settled, told one by one: `worker.on_settled`. Without it nothing of this is in the way of a command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from command_bus.clock import wall_ms
from command_bus.serialization.dead_letter import DeadLetterRecord
from command_bus.serialization.envelope_reading import names_of
from command_bus.transport.marks import accepted_ms
from command_bus.transport.steps import Answer, DeadLetterStep, Done, Lease, LeaseLost, Park, Started, Step, StepFailed
from command_bus.transport.worker_interfaces import Steps

Lost = Callable[..., Step | None]


class Executes(Protocol):
    """Runs a delivered command; see `Executor`."""

    async def execute(self, lease: Lease, started: Started, task: asyncio.Task[Any] | None) -> Step | None:
        """Return the step that settles it."""
        ...


@dataclass(frozen=True, slots=True)
class SettledCommand:
    """A command that a worker has settled.

    Attributes:
        command_id: Its id; empty, as the name is, if its bytes cannot be read.
        name: Its wire name.
        entity_type: Of its entity; None without one.
        entity_id: Of its entity.
        status: `completed`, `rejected`, `expired`, `cancelled`, `dead_lettered` or `parked`.
        attempt: The start that settled it, 1 for the first.
        fence: Of that start.
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


def told(
    tell: Callable[[SettledCommand], None] | None, executor: Executes, steps: Steps, lost: Lost
) -> tuple[Executes, Steps, Lost]:
    """Return what runs and settles commands, so that each that was settled is told; as it is without a listener."""
    if tell is None:
        return executor, steps, lost
    runs = SettledRuns(tell, executor, steps)

    def lost_and_told(started: Started, *words: Any) -> Step | None:
        step = lost(started, *words)
        if step is not None:
            _tell(tell, started, step)
        return step

    return runs, runs, lost_and_told


class SettledRuns:
    """Runs commands and moves mailboxes forward, and tells of those that the server has settled.

    Args:
        tell: Is told.
        executor: Runs them.
        steps: Settles them.
    """

    def __init__(self, tell: Callable[[SettledCommand], None], executor: Executes, steps: Steps) -> None:
        self._tell = tell
        self._executor = executor
        self._steps = steps
        self._ran: dict[str, Started] = {}

    async def execute(self, lease: Lease, started: Started, task: asyncio.Task[Any] | None) -> Step | None:
        """See `Executor`."""
        self._ran[lease.activation] = started
        return await self._executor.execute(lease, started, task)

    async def advance(self, lease: Lease, step: Step) -> Answer:
        """See `Steps`."""
        try:
            answer = await self._steps.advance(lease, step)
        except BaseException:
            self._ran.pop(lease.activation, None)
            raise
        if type(answer) is not StepFailed:  # else it is repeated
            started = self._ran.pop(lease.activation, None)
            if started is not None and type(answer) is not LeaseLost:
                _tell(self._tell, started, step)
        return answer


def _tell(tell: Callable[[SettledCommand], None], started: Started, step: Step) -> None:
    status: str
    match step:
        case Done():
            status, record = step.status, None
        case DeadLetterStep():
            status, record = "dead_lettered", DeadLetterRecord.unpack(step.record)
        case Park():
            status, record = "parked", DeadLetterRecord.unpack(step.record)
        case _:
            return
    command_id, name, entity_type, entity_id = names_of((started.envelope or b"")[2:])
    tell(
        SettledCommand(
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
    )
