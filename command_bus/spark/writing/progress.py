"""`ProgressWatch`: a driver's look at a dispatch that its tasks load: how fast it goes, and what holds a task up."""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType
from typing import Self

from command_bus.errors import CommandBusError
from command_bus.spark.target import TargetConnection
from command_bus.transport.bulk import DispatchFacts, Version

__all__ = ["ProgressWatch"]

_log = logging.getLogger("command_bus.spark")
_LOOK_EVERY = 1.5
_LOG_EVERY = 10.0


class ProgressWatch:
    """Logs in a thread of its own while it is entered: progress at INFO every ten seconds, standstills of tasks as warnings.

    Args:
        connection: To the dispatch's server.
        version: That is loaded.
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
        told, before = time.monotonic(), None
        while not self._over.wait(_LOOK_EVERY):
            facts = self._look()
            if facts is None:
                continue
            now, loaded = time.monotonic(), facts.added + facts.duplicates
            if before is None:
                told, before = now, loaded
            elif now - told >= _LOG_EVERY:
                rate = (loaded - before) / (now - told)
                _log.info("dispatch %r: %s rows sent, %s rows/s", self._version.dispatch_id, f"{loaded:,}", f"{rate:,.0f}")
                told, before = now, loaded
        self._look()  # for what was said last

    def _look(self) -> DispatchFacts | None:
        """How it stands, and hand on what tasks have noted; None while that cannot be read: the tasks say what they cannot do."""
        try:
            facts = self._connection.wait(self._connection.transport.bulk.facts(self._version.dispatch_id))
        except CommandBusError:
            return None
        if facts is not None and facts.note and facts.note != self._noted:
            self._noted = facts.note
            _log.warning("%s", facts.note)
        return facts
