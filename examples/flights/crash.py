"""Tasks that fail on purpose: the Python process of each of Spark's tasks is killed once, in the middle of its writing.

SIGKILL, because an exception is the gentle way to fail: it lets the writer finish its batch, report and close. A process that is
killed has sent an unknown part of its rows and says nothing. Spark gives the partition to another one, which begins anew.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from examples.flights.commands import Arrive, Depart, Movement

__all__ = ["Crashing", "marks_in"]

_MARK = "killed-in-partition-"


def marks_in(folder: Path) -> int:
    """How many tasks were killed."""
    return len(list(folder.glob(f"{_MARK}*")))


class Crashing:
    """Makes the commands of the rows, and kills its own process after some of them.

    It is the `mapper` of a dispatch, so it runs in Spark's tasks, right where they write. A mark in a file system that all tasks
    see says that a partition has failed before.

    Args:
        marks: The folder of the marks; empty at the start.
        after: Rows after which a task is killed.
    """

    def __init__(self, marks: Path, after: int) -> None:
        self._marks = str(marks)
        self._after = after
        self._seen = 0

    def __call__(self, row: Mapping[str, Any]) -> Movement:
        self._seen += 1
        if self._seen == self._after and self._first_attempt():
            os.kill(os.getpid(), signal.SIGKILL)
        kind = Depart if row["command"] == Depart.spec().name else Arrive
        return kind.model_validate({name: row[name] for name in kind.model_fields})

    def _first_attempt(self) -> bool:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "a mapper runs in a task"
        mark = Path(self._marks) / f"{_MARK}{context.partitionId()}"
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True
