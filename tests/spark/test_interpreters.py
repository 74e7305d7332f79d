"""The Python of executors: the driver's own on one machine, and a clear error if it lacks the library."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from command_bus import InvalidSettings
from command_bus.embedded import EmbeddedServer
from command_bus.spark import dispatch_dataframe, register
from command_bus.spark.errors import from_spark
from tests.spark.trucks import Move, Namespace, journeys


@pytest.fixture
def context(spark: SparkSession) -> Iterator[Any]:
    """Return the session's context, and restore its interpreter after the test."""
    context: Any = spark.sparkContext
    before = context.pythonExec
    yield context
    context.pythonExec = before
    register(spark)


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """Return a Python without any package."""
    program = tmp_path / "python3"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    program.chmod(0o755)
    return str(program)


def test_a_local_session_runs_the_drivers_python(spark: SparkSession, context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    context.pythonExec = "python3"  # what Spark takes by itself: the first on PATH
    register(spark)
    assert context.pythonExec == sys.executable


def test_a_session_made_after_the_import_runs_it_too(spark: SparkSession, context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The builder alone does it: a job that only uses `df.write.format("command_bus")` calls nothing of ours."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    context.pythonExec = "python3"
    assert SparkSession.builder.getOrCreate() is spark
    assert context.pythonExec == sys.executable


@pytest.mark.slow
def test_another_python_is_kept_and_checked(
    spark: SparkSession, context: Any, server: EmbeddedServer, bare: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = Namespace(server.url)
    for chosen, text in (
        (
            bare,
            f"Spark's workers run {bare} here (PYSPARK_PYTHON): it cannot import command_bus (ModuleNotFoundError: No module named",
        ),
        ("/no/such/python", "there is no such program"),
    ):
        monkeypatch.setenv("PYSPARK_PYTHON", chosen)
        context.pythonExec = chosen
        with pytest.raises(InvalidSettings) as caught:
            dispatch_dataframe(journeys(spark, 1, 1), Move, key="seq", order_by="seq", dispatch_id="d", **namespace.options)
        assert text in str(caught.value)
        assert f"Before the session is made, say: export PYSPARK_PYTHON={sys.executable}" in str(caught.value)
        assert context.pythonExec == chosen
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    context.pythonExec = sys.executable
    dispatch_dataframe(journeys(spark, 1, 1), Move, key="seq", order_by="seq", dispatch_id="d", **namespace.options)


def test_import_errors_of_executors_are_translated() -> None:
    error = from_spark(PySparkException("Traceback …\nModuleNotFoundError: No module named 'command_bus'\n\tat org.apache…"))
    assert isinstance(error, InvalidSettings)
    assert "Spark's workers run a Python without command_bus" in str(error)
    assert "export PYSPARK_PYTHON=" in str(error)
