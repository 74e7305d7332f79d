"""Rows that cannot be accepted: stored with the reason, raised or dropped, as `on_invalid` says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from command_bus.errors import InvalidRows
from command_bus.spark.options import OnInvalid
from command_bus.spark.writing.task_results import PartitionResult, RowReject

_CHUNK = 200  # stored at a time


class RejectStore:
    """Rejects of one partition.

    Args:
        dispatch_id: Name of the dispatch.
        result: The partition's result, which counts them.
        store: Stores keys and records on the server; returns False once the dispatch has more than `max_rejects`.
        on_invalid: What to do with them.
        max_rejects: The number of them above which `InvalidRows` is raised.
    """

    def __init__(
        self,
        dispatch_id: str,
        result: PartitionResult,
        store: Callable[[list[tuple[str, bytes]]], bool],
        on_invalid: OnInvalid,
        max_rejects: int | None,
    ) -> None:
        self._dispatch_id = dispatch_id
        self._result = result
        self._store = store
        self._on_invalid = on_invalid
        self._max_rejects = max_rejects
        self._rejects: list[RowReject] = []

    def add(self, reject: RowReject) -> None:
        """Count a row, and do with it what `on_invalid` says.

        Raises:
            InvalidRows: `on_invalid` is `raise`, or there are too many rejects.
        """
        self._result.rejected += 1
        if self._on_invalid == "raise":
            raise self._invalid(json.loads(reject.record))
        if self._on_invalid == "quarantine":
            self._rejects.append(reject)
            if len(self._rejects) >= _CHUNK:
                self.flush()
        elif self._max_rejects is not None and self._result.rejected > self._max_rejects:
            raise self._too_many()

    def flush(self) -> None:
        """Store the rejects that are not stored yet, unless the version was committed already.

        Raises:
            InvalidRows: There are too many rejects.
        """
        rejects, self._rejects = self._rejects, []
        if not rejects or self._result.done:
            return
        if not self._store([(reject.key, reject.record) for reject in rejects]):
            raise self._too_many()

    def _invalid(self, facts: dict[str, Any]) -> InvalidRows:
        what = "in conflict" if facts["reason"] == "conflict" else "no valid command"
        return InvalidRows(
            f"dispatch {self._dispatch_id!r}: a row is {what}: {facts['error']} "
            f"(command id {facts['command_id']!r}); on_invalid = quarantine would set such rows aside",
            count=self._result.rejected,
        )

    def _too_many(self) -> InvalidRows:
        return InvalidRows(
            f"dispatch {self._dispatch_id!r}: more than {self._max_rejects} rows are no valid commands"
            f"{', or in conflict with commands that are in,' if self._result.conflicts else ''} (max_rejects); "
            "what was noted of them can be read as the view 'rejects'",
            count=self._result.rejected,
        )
