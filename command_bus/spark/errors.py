"""Errors that cross Spark, both ways: short when Spark prints ours, ours again when Spark has wrapped them.

An error that a task raises reaches the driver as the text of a `PySparkException`, within stack traces of Java and Python.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType

from pyspark.errors import AnalysisException, PySparkException

from command_bus import errors
from command_bus.errors import CommandBusError, DispatchStalled, InvalidSettings
from command_bus.spark.writing.interpreters import advice

_OURS = re.compile(r"command_bus\.errors\.(\w+): (.+?)(?:\n|$)")
_ACCEPTED = re.compile(r"([\d,]+) rows of it are in")
_WITHOUT_US = re.compile(r"No module named '(?:command_bus|hiredis|msgpack|pyarrow|pydantic|redis)")
_PLAN = re.compile(r";?\n(?:'|== |JVM stacktrace)")  # what follows Spark's reason
_WRAPPED = re.compile(r"(?:ValueError|RuntimeError|Exception): (.+?)(?:\n|$)")


class without_spark_frames:  # noqa: N801 - used as a statement, like contextlib.suppress
    """Context manager that strips our errors of frames and causes, which Spark would print in full.

    A class, because a context manager made of a generator puts the traceback back.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, CommandBusError):
            error.__cause__ = error.__context__ = error.__traceback__ = None


@contextmanager
def unwrapped() -> Generator[None]:
    """Raise what Spark fails with inside as `from_spark` reads it."""
    try:
        yield
    except Exception as error:
        if isinstance(error, PySparkException) or type(error).__module__.startswith("py4j."):
            raise from_spark(error) from None
        raise


def from_spark(error: Exception) -> CommandBusError:
    """Return the error of ours that Spark has wrapped, without the stack traces; or a short one with Spark's reason."""
    text = str(error)
    found = list(_OURS.finditer(text))
    if found:
        kind, message = getattr(errors, found[-1][1], CommandBusError), found[-1][2].strip()
        accepted = _ACCEPTED.search(message)
        if kind is DispatchStalled and accepted is not None:
            return DispatchStalled(message, accepted=int(accepted[1].replace(",", "")))
        return kind(message) if issubclass(kind, CommandBusError) else CommandBusError(message)
    if _WITHOUT_US.search(text):
        return InvalidSettings(
            f"Spark's workers run a Python without command_bus, or without what it needs. {advice()} (on a cluster, see docs/spark.md: Where it runs)"
        )
    if isinstance(error, AnalysisException):
        return InvalidSettings(f"Spark refuses these rows or columns: {_PLAN.split(text)[0].strip()[:1000]}")
    wrapped = list(_WRAPPED.finditer(text))
    return CommandBusError(f"Spark failed: {wrapped[-1][1] if wrapped else text[:2000]}")
