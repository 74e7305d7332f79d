"""Which Python executors run: the driver's own on one machine, and a sentence where it is another that lacks the library."""

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
from command_bus.spark.dispatch import typed
from tests.spark.scene import Move, Place, journeys


@pytest.fixture
def context(spark: SparkSession) -> Iterator[Any]:
    """The session's context, of which a test may change the interpreter."""
    context: Any = spark.sparkContext
    before = context.pythonExec
    yield context
    context.pythonExec = before
    register(spark)


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """A Python without any package."""
    program = tmp_path / "python3"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    program.chmod(0o755)
    return str(program)


def test_a_local_session_runs_the_driver_s_python(spark: SparkSession, context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    context.pythonExec = "python3"  # what Spark takes by itself: the first on PATH
    register(spark)
    assert context.pythonExec == sys.executable


def test_so_does_one_that_is_made_after_the_import(spark: SparkSession, context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rests on the builder alone: a job that only says `df.write.format("command_bus")` calls nothing of ours."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    context.pythonExec = "python3"
    assert SparkSession.builder.getOrCreate() is spark
    assert context.pythonExec == sys.executable


def test_another_choice_is_left_alone_and_found_out_before_planning(
    spark: SparkSession, context: Any, server: EmbeddedServer, bare: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(server.url)
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
            dispatch_dataframe(journeys(spark, 1, 1), Move, key="seq", order_by="seq", dispatch_id="d", **place.where)
        assert text in str(caught.value)
        assert f"Before the session is made, say: export PYSPARK_PYTHON={sys.executable}" in str(caught.value)
        assert context.pythonExec == chosen
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    context.pythonExec = sys.executable
    dispatch_dataframe(journeys(spark, 1, 1), Move, key="seq", order_by="seq", dispatch_id="d", **place.where)


def test_what_executors_elsewhere_say_is_translated() -> None:
    error = typed(PySparkException("Traceback …\nModuleNotFoundError: No module named 'command_bus'\n\tat org.apache…"))
    assert isinstance(error, InvalidSettings)
    assert "Spark's workers run a Python without command_bus" in str(error)
    assert "export PYSPARK_PYTHON=" in str(error)
