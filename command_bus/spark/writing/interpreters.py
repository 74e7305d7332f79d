"""Which Python runs on executors: found out in the driver, before a job fails for it.

Spark runs `PYSPARK_PYTHON`, by default the first `python3` on PATH. On one machine (a local master) the driver's own Python is as near,
and has what the driver imports.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from command_bus.errors import InvalidSettings

__all__ = ["advice", "check_interpreter", "choose_interpreter"]

_CHOICE = "PYSPARK_PYTHON"
_PROBE = "import sys, command_bus.spark.writing.partition; print('%d.%d' % sys.version_info[:2])"


def choose_interpreter(spark: SparkSession) -> None:
    """Let a local session run the driver's Python, unless somebody has chosen another."""
    context = _local_context(spark)
    if context is not None and _CHOICE not in os.environ:
        context.pythonExec = sys.executable


def check_interpreter(spark: SparkSession) -> None:
    """See that the Python which a local session runs can import this library.

    Raises:
        InvalidSettings: It cannot, or is of another version than the driver's; the message has the line to export.
    """
    context = _local_context(spark)
    if context is None:
        return
    chosen = str(context.pythonExec)
    found = shutil.which(chosen)
    if found is not None and Path(found).absolute() == Path(sys.executable).absolute():
        return
    shipped = getattr(context, "_python_includes", None)
    if shipped or context.getConf().get("spark.submit.pyFiles", ""):
        return  # what was shipped may hold it
    fault = "there is no such program" if found is None else _fault(found)
    if fault is not None:
        raise InvalidSettings(f"Spark's workers run {chosen} here ({_CHOICE}): {fault}. {advice()}")


def advice() -> str:
    """What to do where executors run another Python."""
    return f"Before the session is made, say: export {_CHOICE}={sys.executable}"


@lru_cache(maxsize=8)
def _fault(program: str) -> str | None:
    try:
        done = subprocess.run([program, "-c", _PROBE], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it cannot be run ({error})"
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return f"it cannot import command_bus ({lines[-1] if lines else 'no reason given'})"
    mine = f"{sys.version_info[0]}.{sys.version_info[1]}"
    other = done.stdout.strip()
    return None if other == mine else f"it is Python {other}, the driver's is {mine}"


def _local_context(spark: SparkSession) -> Any | None:
    """The context of a session whose executors are on this machine; None of others, and of Spark Connect, which has none."""
    try:
        context: Any = spark.sparkContext
        return context if str(context.master).startswith("local") else None
    except Exception:  # noqa: BLE001 - PySpark has no one error for what Connect lacks
        return None
