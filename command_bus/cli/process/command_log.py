"""`CommandLog`: one JSON line for each command that a worker has settled, in a file for each day and process.

A thread writes the lines and flushes each, so that a slow disk never holds up the event loop. What cannot be written is counted and said in the
worker's log, once a minute; the worker goes on.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import threading
from datetime import UTC, datetime
from logging.handlers import TimedRotatingFileHandler
from pathlib import Path
from typing import Any

from command_bus.clock import mono
from command_bus.errors import InvalidSettings
from command_bus.worker.lifecycle import SettledCommand

_MOST_WAITING = 100_000
"""Lines that wait for a slow disk; what comes then is left out."""
_PATIENCE = 5.0
_SAID_EVERY = 60.0
_TIMES = ("accepted_ms", "started_ms", "settled_ms")
_log = logging.getLogger("command_bus.cli")


class CommandLog:
    """Writes the command log of this process.

    Args:
        folder: The place where the files are; made if it is missing. Today's is `commands-<pid>.jsonl`, earlier ones have their day behind that.
        worker: Name of the worker.

    Raises:
        InvalidSettings: Nothing can be written there.
    """

    def __init__(self, folder: Path, worker: str) -> None:
        path = folder / f"commands-{os.getpid()}.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = _File(path)
        except OSError as error:
            raise InvalidSettings(
                f"--command-log {folder}: {error.strerror or error}: name a folder that this user may write"
            ) from None
        self._worker = worker
        self._waiting: queue.Queue[SettledCommand | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._write_all, name="command_bus.command_log", daemon=True)
        self._thread.start()

    def write(self, settled: SettledCommand) -> None:
        """Take a command; returns at once."""
        try:
            self._waiting.put_nowait(settled)
        except queue.Full:
            self._file.lose("the disk is too slow")

    def close(self) -> None:
        """Write what waits, for five seconds at most."""
        try:
            self._waiting.put(None, timeout=_PATIENCE)
        except queue.Full:
            return
        self._thread.join(_PATIENCE)
        if not self._thread.is_alive():
            with contextlib.suppress(OSError):  # of what the disk did not take; that was said
                self._file.close()

    def _write_all(self) -> None:
        while (settled := self._waiting.get()) is not None:
            self._file.handle(logging.makeLogRecord({"msg": _line(settled, self._worker)}))


class _File(TimedRotatingFileHandler):
    """A file that is begun again each day (UTC), flushed after each line."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, when="midnight", utc=True, encoding="utf-8")
        self._lost = 0
        self._said = -_SAID_EVERY

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's names
        """Say what happened instead of printing a traceback for each line."""
        import sys

        error = sys.exc_info()[1]
        self.lose(error.strerror or str(error) if isinstance(error, OSError) else repr(error))

    def lose(self, why: str) -> None:
        """Count a line that is not written, and say so, once a minute."""
        self._lost += 1
        if mono() - self._said >= _SAID_EVERY:
            self._said = mono()
            _log.error("the command log %s lacks %d commands: %s", self.baseFilename, self._lost, why)


def _line(settled: SettledCommand, worker: str) -> str:
    entry: dict[str, Any] = {name: getattr(settled, name) for name in SettledCommand.__slots__ if name not in _TIMES}
    for name in _TIMES:
        at = datetime.fromtimestamp(getattr(settled, name) / 1000, UTC)
        entry[f"{name.removesuffix('_ms')}_at"] = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({**entry, "worker": worker})
