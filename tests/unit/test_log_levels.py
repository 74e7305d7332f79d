"""The level that the program logs: the command line's, else the one of the bus in code, else that of the environment, else `info`."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from command_bus.cli.options import LogFormat, LogLevel
from command_bus.cli.process.logs import configure_logging, log_as
from command_bus.settings import BusSettings


@pytest.fixture(autouse=True)
def _root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)


@pytest.mark.parametrize(
    ("option", "code", "variable", "level"),
    [
        (None, None, None, "INFO"),
        (None, None, "debug", "DEBUG"),
        (None, None, "no level", "INFO"),
        (None, "warning", None, "WARNING"),
        (None, "warning", "debug", "WARNING"),
        (LogLevel.ERROR, None, "debug", "ERROR"),
        (LogLevel.ERROR, "warning", None, "ERROR"),
        (LogLevel.ERROR, "warning", "debug", "ERROR"),
    ],
)
def test_who_says_the_level(
    monkeypatch: pytest.MonkeyPatch, option: LogLevel | None, code: str | None, variable: str | None, level: str
) -> None:
    if variable is not None:
        monkeypatch.setenv("COMMAND_BUS_LOG_LEVEL", variable)
    configure_logging(option, LogFormat.TEXT)
    if variable != "no level":
        log_as(option, BusSettings() if code is None else BusSettings.model_validate({"log_level": code}))
    assert logging.getLevelName(logging.getLogger().level) == level


def test_an_application_that_configures_logging_itself_is_left_alone() -> None:
    configure_logging(None, LogFormat.TEXT)
    logging.getLogger().setLevel("ERROR")
    log_as(None, BusSettings())
    assert logging.getLogger().level == logging.ERROR
