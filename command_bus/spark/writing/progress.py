"""`ProgressWatch`: logs on the driver how fast a dispatch is loaded, and what its tasks wait for."""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType
from typing import Self

from command_bus.errors import CommandBusError
from command_bus.spark.target import TargetConnection
from command_bus.transport.ports.bulk import DispatchFacts, Version

_log = logging.getLogger("command_bus.spark")
_READ_EVERY = 1.5
_LOG_EVERY = 10.0


class ProgressWatch:
    """Logs in a thread of its own, as a context manager: progress at INFO every ten seconds, stalled tasks as warnings.

    Args:
        connection: To the dispatch's server.
        version: What is loaded.
    """

    def __init__(self, connection: TargetConnection, version: Version) -> None:
        self._connection = connection
        self._version = version
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="command_bus.spark.watch", daemon=True)
        self._noted = ""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        logged, before = time.monotonic(), None
        while not self._over.wait(_READ_EVERY):
            facts = self._read()
            if facts is None:
                continue
            now, loaded = time.monotonic(), facts.added + facts.duplicates
            if before is None:
                logged, before = now, loaded
            elif now - logged >= _LOG_EVERY:
                rate = (loaded - before) / (now - logged)
                _log.info("dispatch %r: %s rows sent, %s rows/s", self._version.dispatch_id, f"{loaded:,}", f"{rate:,.0f}")
                logged, before = now, loaded
        self._read()  # for the last note

    def _read(self) -> DispatchFacts | None:
        """Return the record of the dispatch, and log a new note of a task; None if the server cannot be read, which the tasks report."""
        try:
            facts = self._connection.facts(self._version.dispatch_id)
        except CommandBusError:
            return None
        if facts is not None and facts.note and facts.note != self._noted:
            self._noted = facts.note
            _log.warning("%s", facts.note)
        return facts
