"""The threads of a worker, in virtual time: a synchronous handler runs at one moment, and its thread is then busy for the planned time.

The threads of a process run in its second lane, like the thread that renews leases: they go on while the loop is blocked, and stop with
their process. During faults, a thread sometimes gets no processor for a while before it begins.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from command_bus.worker.threads import HandlerThreads, ThreadJob
from tests.simulation.history import Execution
from tests.simulation.loop import LANE

__all__ = ["SimThreads", "busy_for"]

_LATE, _LATEST = 0.05, 3.0
"""How often a thread is late, and the most seconds."""
_busy: list[tuple[Execution, float, str]] = []


def busy_for(run: Execution, seconds: float, how: str) -> None:
    """Say, in a synchronous handler, how long it runs, and how it ends then."""
    _busy.append((run, seconds, how))


class SimThreads(HandlerThreads):
    """Threads that are tasks."""

    random = Random()
    are_late = True

    def _new_thread(self) -> Any:
        return _Inbox(self)


class _Inbox:
    """The queue of a thread, and the thread."""

    def __init__(self, threads: SimThreads) -> None:
        self._threads = threads
        self._loop: Any = asyncio.get_running_loop()

    def put(self, job: ThreadJob | None) -> None:
        lane = LANE.get()
        assert lane is not None
        if job is not None:
            process = lane.process
            self._loop.create_task(self._run(job, process), name="thread", context=process.thread_context.copy())

    async def _run(self, job: ThreadJob, process: Any) -> None:
        random = self._threads.random
        if self._threads.are_late and random.random() < _LATE:
            await asyncio.sleep(random.random() * _LATEST)
        outcome = job.run()
        if _busy:
            run, seconds, how = _busy.pop()
            await asyncio.sleep(seconds)
            run.ended, run.how = self._loop.time(), how
        self._loop.call_soon(self._threads.finished, self, job, outcome, context=process.context)
