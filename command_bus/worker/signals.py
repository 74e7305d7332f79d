"""Signals that ask a worker to stop."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from types import FrameType
from typing import Any

from command_bus.clock import mono

__all__ = ["on_signals"]


def on_signals(asked: asyncio.Event) -> list[Any]:
    """Let SIGTERM and SIGINT ask for an orderly end, a second one end at once; return what restores the handlers before.

    Not `loop.add_signal_handler`: it would wait for the loop, which a handler may be blocking.
    """
    loop = asyncio.get_running_loop()
    first = 0.0

    def received(number: int, _frame: FrameType | None) -> None:
        nonlocal first
        if first and mono() - first > 0.05:
            os._exit(128 + number)
        first = first or mono()
        loop.call_soon_threadsafe(asked.set)

    restore: list[Any] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            before = signal.signal(number, received)
        except ValueError:
            continue  # not the main thread: the program stops its workers itself
        restore.append(functools.partial(signal.signal, number, before or signal.SIG_DFL))
    return restore
