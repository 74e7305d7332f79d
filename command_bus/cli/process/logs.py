"""Logging of the program. Only the program configures logging; the library leaves that to the application.

Every record that is logged while a handler runs names its command, also records of other libraries and other threads.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any

from command_bus.cli.options import LogFormat, LogLevel
from command_bus.errors import InvalidSettings
from command_bus.messages.context import Running, current_command
from command_bus.serialization.limits import printable
from command_bus.settings import BusSettings

_STANDARD = frozenset({*vars(logging.makeLogRecord({})), "asctime", "message", "taskName"})


def configure_logging(level: LogLevel | None, style: LogFormat) -> None:
    """Log to standard error. The application is imported later and may configure logging otherwise.

    Args:
        level: Lowest level that is logged; None: that of the settings in the environment.
        style: Format of a record.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style is LogFormat.JSON else TextFormatter())
    logging.basicConfig(level=(level or _level_of_environment()).upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)


def log_as(level: LogLevel | None, settings: BusSettings) -> None:
    """Log from the level on that the application gave its bus in code, unless the command line names one."""
    if level is None and settings.log_level != _level_of_environment():
        logging.getLogger().setLevel(settings.log_level.upper())


def _level_of_environment() -> str:
    try:
        return BusSettings().log_level
    except InvalidSettings:  # the bus will say what is wrong with them
        return str(BusSettings.model_fields["log_level"].default)


class TextFormatter(logging.Formatter):
    """A line for people: time in UTC, level, process, logger, message, and the command whose handler runs.

    A sender who chooses text that is logged, such as an id or an error, cannot forge a line: the further lines of a message are indented,
    and characters that cannot be printed are escaped.
    """

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s [%(process)d] %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Format the line, without a traceback."""
        line = super().formatMessage(record)
        if (running := current_command.get()) is not None:
            line += f" [{printable(running.name)} {printable(running.command_id)} of {_entity(running)}]"
        return line if line.isprintable() else "\n    ".join(map(_printable_line, line.split("\n")))


class JsonFormatter(logging.Formatter):
    """One JSON object per line. The fields of a logging call's `extra` are added to it.

    python-json-logger would not make it shorter: it turns a message that is a dict into fields instead of text, and writes control characters
    and marks of direction as they are, so the fields and the escapes would still be written here.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format the record as JSON; values that JSON lacks become text."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        if (running := current_command.get()) is not None:
            entry |= {
                "command": running.name,
                "command_id": running.command_id,
                "correlation_id": running.correlation_id,
                "entity": _entity(running),
                "attempt": running.attempt,
                "worker": running.worker,
            }
            if (tracing := sys.modules.get("command_bus.telemetry.tracing")) is not None:
                entry |= tracing.trace_ids()
        entry |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            entry["stack"] = record.stack_info
        text = json.dumps(entry, ensure_ascii=False, default=str)
        return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _printable_line(line: str) -> str:
    """Return a line that is safe to print; tabs are kept."""
    return "\t".join(map(printable, line.split("\t")))


def _entity(running: Running) -> str:
    from command_bus.transport.mailboxes import mailbox_label

    return mailbox_label(running.mailbox)
