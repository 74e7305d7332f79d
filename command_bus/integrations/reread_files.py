"""`RereadFile`: a file that is read again when it has changed, so that who is taken out of it is out, without a restart."""

from __future__ import annotations

import logging
import signal
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

from command_bus.clock import mono
from command_bus.errors import InvalidSettings

T = TypeVar("T")
_FRESH: Final = 1.0
"""Seconds between two looks at a file."""
_log = logging.getLogger("command_bus")
_files: WeakSet[RereadFile[Any]] = WeakSet()


class RereadFile(Generic[T]):
    """A value that a file holds. It is looked at where it is used, at most once a second: nothing runs meanwhile.

    A file that cannot be read any more changes nothing; the log says so.

    Args:
        file: The file.
        read: Reads its value.

    Raises:
        InvalidSettings: It cannot be read at first.
    """

    def __init__(self, file: str | Path, read: Callable[[str | Path], T]) -> None:
        self._file = file
        self._read = read
        self._seen = self._state()
        self._value = read(file)
        self._look_at = mono() + _FRESH
        _files.add(self)

    @property
    def value(self) -> T:
        """The value, as the file has had it within the last second."""
        if mono() >= self._look_at:
            self._look_at = mono() + _FRESH
            if (state := self._state()) != self._seen:
                self._seen = state
                try:
                    self._value = self._read(self._file)
                    _log.info("%s has changed, and was read again", self._file)
                except InvalidSettings as error:
                    _log.error("what was read of %s before holds on: %s", self._file, error.message)
        return self._value

    def forget(self) -> None:
        """Read it again where it is used next, changed or not."""
        self._seen, self._look_at = None, 0.0

    def _state(self) -> tuple[int, int, int] | None:
        """Return what differs when the file was written or replaced; None if it is not there."""
        with suppress(OSError):
            found = Path(self._file).stat()
            return found.st_mtime_ns, found.st_size, found.st_ino
        return None


def reread_on_hangup(loop: AbstractEventLoop) -> None:
    """Read all such files of this process again on SIGHUP, which would end it otherwise."""
    with suppress(NotImplementedError, RuntimeError, ValueError, AttributeError):  # not on Windows, nor outside the main thread
        loop.add_signal_handler(signal.SIGHUP, _forget_all)


def _forget_all() -> None:
    for each in _files:
        each.forget()
