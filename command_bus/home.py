"""Where a bus may be used: in the event loop that opened it, which is of one thread of one process.

Looked at with every request, so it must cost next to nothing: before Python 3.12 `asyncio.get_running_loop` asks the kernel for the process
id. A loop that runs, runs in its thread alone: the thread and whether the loop runs say the same in a tenth of the time. Forks are
counted in the child.
"""

from __future__ import annotations

import asyncio
import os
from threading import get_ident

from command_bus.errors import WrongEventLoop

__all__ = ["Home"]

_forks = 0


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - it is the process's
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


class Home:
    """The running event loop, its thread and its process."""

    __slots__ = ("_forks", "_is_running", "_loop", "_pid", "_thread")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_running = self._loop.is_running
        self._thread = get_ident()
        self._pid = os.getpid()
        self._forks = _forks

    def check(self) -> None:
        """Do nothing where the bus may be used.

        Raises:
            WrongEventLoop: In another event loop, in a thread, after a fork.
        """
        if get_ident() != self._thread or not self._is_running() or self._forks != _forks:
            raise WrongEventLoop(self._advice())

    def is_lost(self) -> bool:
        """Return whether it cannot be returned to: its loop is closed, or it is the parent's.

        Raises:
            WrongEventLoop: It can, and this is another place.
        """
        if self._forks != _forks or self._loop.is_closed():
            return True
        self.check()
        return False

    def _advice(self) -> str:
        if self._forks != _forks:
            return (
                f"this bus was opened in process {self._pid}, and this is process {os.getpid()}, forked from it: "
                "make a new bus after the fork, or take SyncCommandBus, which opens one of its own in each process"
            )
        return (
            "this bus was opened in another event loop, and a bus belongs to the loop that opened it: open one in this loop with "
            "`async with CommandBus(…) as bus`, or take SyncCommandBus, which works from every thread"
        )
