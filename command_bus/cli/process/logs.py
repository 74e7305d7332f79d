"""Logging of the program: the only place that configures it, because the library must leave that to its user.

What is logged while a handler runs names its command, whoever logs it and in whichever thread.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any

from command_bus.cli.process.options import LogFormat, LogLevel
from command_bus.messages.context import Running, current_command
from command_bus.serialization.text import printable

__all__ = ["JsonFormatter", "TextFormatter", "configure_logging"]

_STANDARD = frozenset({*vars(logging.makeLogRecord({})), "asctime", "message", "taskName"})


def configure_logging(level: LogLevel, style: LogFormat) -> None:
    """Log to standard error. The application is imported later and may configure logging otherwise."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style is LogFormat.JSON else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)


class TextFormatter(logging.Formatter):
    """A line for people: time in UTC, level, process, logger, message, and the command whose handler runs.

    Whoever chooses what is logged, an id or the text of an error, writes no line of his own: the further lines of a message are indented,
    and what cannot be printed is escaped.
    """

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s [%(process)d] %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line, without a traceback."""
        line = super().formatMessage(record)
        if (running := current_command.get()) is not None:
            line += f" [{printable(running.name)} {printable(running.command_id)} of {_entity(running)}]"
        return line if line.isprintable() else "\n    ".join(map(_legible, line.split("\n")))


class JsonFormatter(logging.Formatter):
    """One JSON object per line; what a logging call passes as `extra` becomes fields of it."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON; values that JSON lacks are shown as text."""
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


def _legible(line: str) -> str:
    """A line as it may be shown; tabs are left."""
    return "\t".join(map(printable, line.split("\t")))


def _entity(running: Running) -> str:
    from command_bus.transport.mailboxes import mailbox_label

    return mailbox_label(running.mailbox)
