"""Errors that cross Spark: ours lose their frames, Spark's become ours again."""

from __future__ import annotations

import traceback

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from command_bus import CommandBusError, DispatchStalled, InvalidSettings
from command_bus.spark.errors import unwrapped, without_spark_frames


def fail() -> None:
    try:
        int("x")
    except ValueError as error:
        raise InvalidSettings("seq is no number") from error


def test_our_errors_lose_frames_and_causes() -> None:
    with pytest.raises(InvalidSettings) as caught, without_spark_frames():
        fail()
    error = caught.value
    assert not traceback.extract_tb(error.__traceback__)
    assert error.__cause__ is None
    assert error.__context__ is None


def test_other_errors_keep_them() -> None:
    with pytest.raises(ValueError, match="invalid literal") as caught, without_spark_frames():
        int("x", base=10)
    assert caught.value.__traceback__ is not None


def test_an_error_of_ours_is_unwrapped() -> None:
    text = (
        "Job aborted\n\tat java\ncommand_bus.errors.DispatchStalled: stalled, 1,250 rows of it are in their mailboxes.\n\tat java"
    )
    with pytest.raises(DispatchStalled) as caught, unwrapped():
        raise PySparkException(text)
    assert caught.value.accepted == 1250
    assert "\tat" not in str(caught.value)


def test_another_error_is_shortened() -> None:
    with pytest.raises(CommandBusError, match=r"^Spark failed: no such table$"), unwrapped():
        raise PySparkException("Job aborted\nValueError: no such table\n\tat java")
