"""Signals that ask the workers of a process to stop: all of them, however many run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from command_bus.clock import mono

_DEBOUNCE = 0.05
_HANG_UP: int | None = getattr(signal, "SIGHUP", None)


def stop_signals() -> list[signal.Signals]:
    """Return the signals that ask for an orderly end. SIGHUP is one, unless the process was told to ignore it, as `nohup` does."""
    numbers = [signal.SIGTERM, signal.SIGINT]
    if _HANG_UP is not None and signal.getsignal(_HANG_UP) is not signal.SIG_IGN:
        numbers.append(signal.Signals(_HANG_UP))
    return numbers


def is_hang_up(number: int) -> bool:
    """Return whether a signal is SIGHUP, which never ends a process at once: a terminal that closes sends it twice, systemd behind SIGTERM."""
    return number == _HANG_UP


def on_signals(asked: asyncio.Event) -> Callable[[], None]:
    """Let the stop signals ask for an orderly end, a second one end at once; return what ends that.

    With the last worker that asked for it, the handlers before are restored.
    """
    return _process.add(asyncio.get_running_loop(), asked)


class _ProcessSignals:
    """The handlers of this process. A signal is one for the whole process, so the workers share them.

    Not `loop.add_signal_handler`: it would wait for the loop, which a handler may be blocking.
    """

    def __init__(self) -> None:
        self._asked: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._before: dict[int, Any] = {}
        self._first = 0.0

    def add(self, loop: asyncio.AbstractEventLoop, asked: asyncio.Event) -> Callable[[], None]:
        """Ask this worker as well."""
        if threading.current_thread() is not threading.main_thread():
            return lambda: None  # the program stops its workers itself
        if not self._asked:
            self._first = 0.0
        self._asked[asked] = loop
        for number in stop_signals():
            before = signal.getsignal(number)
            if before != self._received:  # bound methods are equal, not identical
                self._before[number] = before or signal.SIG_DFL
                signal.signal(number, self._received)
        return lambda: self._remove(asked)

    def _remove(self, asked: asyncio.Event) -> None:
        self._asked.pop(asked, None)
        if self._asked:
            return
        before, self._before = self._before, {}
        for number, handler in before.items():
            if signal.getsignal(number) == self._received:  # else somebody has taken it over since
                signal.signal(number, handler)

    def _received(self, number: int, _frame: FrameType | None) -> None:
        if self._first and mono() - self._first > _DEBOUNCE and not is_hang_up(number):
            os._exit(128 + number)
        self._first = self._first or mono()
        for asked, loop in self._asked.items():
            with contextlib.suppress(RuntimeError):  # its loop is closed
                loop.call_soon_threadsafe(asked.set)


_process = _ProcessSignals()
