"""The worker processes: started, one of them killed without warning and replaced, stopped.

They are programs of their own, not forks, as in a deployment. The example holds the other end of their standard input, so they
stop with it even if it is killed itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping
from pathlib import Path
from typing import Self

__all__ = ["Fleet", "WorkerEnded"]

_ROOT = Path(__file__).resolve().parents[2]
_GRACE = 15.0  # seconds until a worker that was asked to stop is killed
_TAIL = 15  # lines of its log that are shown


class WorkerEnded(RuntimeError):
    """A worker ended although it was not asked to."""


class Fleet:
    """`count` worker processes; `async with` starts and stops them.

    Args:
        module: What each runs, with the concurrency as its only argument.
        count: How many.
        concurrency: Entities that each works on at a time.
        environment: Added to this process's environment: where the server is, and under which settings.
        folder: Where each writes its log.

    Attributes:
        killed: The process ids of the workers that `kill_one` killed.
    """

    def __init__(self, module: str, count: int, concurrency: int, environment: Mapping[str, str], folder: Path) -> None:
        self.killed: list[int] = []
        self._module = module
        self._count = count
        self._concurrency = concurrency
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        self._environment = {**os.environ, "PYTHONPATH": path, **environment}
        self._folder = folder
        self._running: dict[Process, Path] = {}
        self._started = 0

    async def __aenter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        for _ in range(self._count):
            await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._running:
            if process.returncode is None:
                process.terminate()
        for process in list(self._running):
            await self._end(process)

    async def kill_one(self) -> int:
        """Kill a worker with SIGKILL, which leaves it no time for anything, and start another; returns the killed one's id."""
        victim = next(iter(self._running))
        del self._running[victim]
        victim.send_signal(signal.SIGKILL)
        await victim.wait()
        self.killed.append(victim.pid)
        await self._start()
        return victim.pid

    def check(self) -> None:
        """Check that all are alive.

        Raises:
            WorkerEnded: One is not; the message shows the end of its log.
        """
        for process, log in self._running.items():
            if process.returncode is not None:
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL:])
                raise WorkerEnded(
                    f"worker {process.pid} ended with exit code {process.returncode}; its log {log} ends with:\n{tail}"
                )

    async def _start(self) -> None:
        self._started += 1
        log = self._folder / f"worker-{self._started}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._module,
                str(self._concurrency),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for the demo, which then stops them in order
            )
        self._running[process] = log

    async def _end(self, process: Process) -> None:
        try:
            async with asyncio.timeout(_GRACE):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        self._running.pop(process, None)
