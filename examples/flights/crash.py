"""Tasks that fail on purpose: the Python process of each of Spark's tasks is killed once, in the middle of its writing.

SIGKILL, because an exception is the gentle way to fail: it lets the writer finish its batch, report and close. A process that is
killed has sent an unknown part of its rows and reports nothing. Spark gives the partition to another one, which starts again.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.flights.commands import Arrive, Depart, Movement

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["MARKS", "crashing", "doomed", "marks_in"]

MARKS = "FLIGHTS_CRASH_MARKS"
"""Environment variable: a folder that all tasks see, where a mark says that a partition has failed before. Empty at the start."""
_MARK = "killed-in-partition-"


def marks_in(folder: Path) -> int:
    """Return how many tasks were killed."""
    return len(list(folder.glob(f"{_MARK}*")))


def doomed(rows: DataFrame, after: int) -> DataFrame:
    """Add a column `fatal` to the arranged rows: true for the `after`th of its partition, which kills the task."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    place = F.monotonically_increasing_id().bitwiseAND((1 << 33) - 1)  # above these bits it is the partition's number
    return rows.withColumn("fatal", place == after - 1)


def crashing(row: Mapping[str, Any]) -> Movement:
    """Make the command of a row, or kill this process: the `mapper` of a write, so it runs right where the tasks write."""
    if row["fatal"] and _first_attempt():
        os.kill(os.getpid(), signal.SIGKILL)
    kind = Depart if row["command"] == Depart.spec().name else Arrive
    return kind.model_validate({name: row[name] for name in kind.model_fields})


def _first_attempt() -> bool:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "a mapper runs in a task"
    mark = Path(os.environ[MARKS]) / f"{_MARK}{context.partitionId()}"
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
