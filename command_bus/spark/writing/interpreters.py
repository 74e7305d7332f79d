"""The Python that executors run, checked on the driver before a job fails because of it.

Spark runs `PYSPARK_PYTHON`, by default the first `python3` on PATH. With a local master the driver's own Python is available too, and
can import all that the driver imports.
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

_CHOICE = "PYSPARK_PYTHON"
_PROBE = "import sys, command_bus.spark.writing.partition; print('%d.%d' % sys.version_info[:2])"


def choose_interpreter(spark: SparkSession) -> None:
    """Make a local session run the driver's Python, unless another one was chosen."""
    context = _local_context(spark)
    if context is not None and _CHOICE not in os.environ:
        context.pythonExec = sys.executable


def check_interpreter(spark: SparkSession) -> None:
    """Check that the Python of a local session's workers can import this library.

    Raises:
        InvalidSettings: It cannot, or its version differs from the driver's; the message has the line to export.
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
        return  # the shipped files may contain it
    fault = "there is no such program" if found is None else _fault(found)
    if fault is not None:
        raise InvalidSettings(f"Spark's workers run {chosen} here ({_CHOICE}): {fault}. {advice()}")


def advice() -> str:
    """Return what to do if executors run another Python."""
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
    """Return the context of a session whose executors are on this machine; None for others, and for Spark Connect, which has no context."""
    try:
        context: Any = spark.sparkContext
        return context if str(context.master).startswith("local") else None
    except Exception:  # noqa: BLE001 - PySpark has no common error for what Connect lacks
        return None
