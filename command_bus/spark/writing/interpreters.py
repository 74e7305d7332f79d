"""The Python that executors run, checked on the driver before a job fails because of it.

Spark runs `PYSPARK_PYTHON`, by default the first `python3` on PATH. With a local master the driver's own Python is available too, and
can import all that the driver imports.
"""

from __future__ import annotations

import base64
import os
import pickle
import shutil
import subprocess
import sys
from functools import lru_cache
from io import BytesIO
from operator import getitem
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from command_bus.errors import InvalidSettings
from command_bus.messages.message import Message
from command_bus.spark.writing.named_imports import PICKLE, are_restricted

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


_PICKLED = "pickle:"


def pickled(thing: Any) -> str:
    """Return an object as text, pickled by value, so that executors need not import the module of a notebook.

    Raises:
        InvalidSettings: It holds something that cannot leave this process.
    """
    from pyspark import cloudpickle

    base: Any = cloudpickle.CloudPickler  # it has no types

    class Pickler(base):  # type: ignore[misc]
        """Pickles `Command[int]` as a subscription, instead of by the module that made it first.

        It also leaves out what pydantic keeps of the function in which a model is defined: all its variables, such as a Spark session.
        """

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type) and issubclass(obj, Message):
                generic: Any = obj.__pydantic_generic_metadata__
                if generic["origin"] is not None:
                    return getitem, (generic["origin"], generic["args"])
            reduced: Any = super().reducer_override(obj)
            if isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) > 2:  # else it has no state
                reduced[2][0].pop("__pydantic_parent_namespace__", None)
            return reduced

    buffer = BytesIO()
    try:
        Pickler(buffer).dump(thing)
    except Exception as error:
        raise InvalidSettings(
            f"{thing!r} cannot be sent to executors ({type(error).__name__}: {error}): make its locks, connections and sessions where it runs"
        ) from error
    return _PICKLED + base64.b64encode(buffer.getvalue()).decode()


def is_pickled(text: str) -> bool:
    """Return whether a text is a pickled object."""
    return text.startswith(_PICKLED)


def unpickled(text: str) -> Any:
    """Return a pickled object. It comes from the user's own driver, so it is trusted like the user's code.

    Raises:
        InvalidSettings: COMMAND_BUS_SPARK_PICKLE=no forbids it, for places where options may come from other people.
    """
    if are_restricted():
        raise InvalidSettings(
            f"{PICKLE} forbids classes and functions by value here: give 'package.module:name', which executors can import"
        )
    return pickle.loads(base64.b64decode(text.removeprefix(_PICKLED)))  # noqa: S301 - the driver's own option
