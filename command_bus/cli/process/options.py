"""What a worker was asked for on the command line, as a value that goes from process to process."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["LogFormat", "LogLevel", "WorkerOptions"]


class LogLevel(StrEnum):
    """From which level on log records are shown."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """Lines for people, or one JSON object per line."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """See `command-bus worker --help`; None leaves it to the application.

    Attributes:
        health_port: Where probes and scrapers are answered; 0 is any free port, None is nowhere. Of several processes the supervisor answers
            there, and each process answers it on a port of its own.
        include: Modules with handlers, imported besides the application's.
        stuck_after: Seconds without a turn of the event loop after which a process counts as stuck.
        channel: In a process of a supervisor, the file descriptor that they talk over.
        reload: Whether the supervisor starts the processes anew when the application's files change.
    """

    import_string: str
    processes: int = 1
    concurrency: int | None = None
    grace: float | None = None
    namespace: str | None = None
    url: str | None = field(default=None, repr=False)
    production: bool = False
    burst: bool = False
    log_level: LogLevel = LogLevel.INFO
    log_format: LogFormat = LogFormat.TEXT
    channel: int | None = None
    reload: bool = False
    health_port: int | None = None
    health_host: str = "0.0.0.0"  # noqa: S104 - probes come from outside the container
    stuck_after: float | None = None
    include: tuple[str, ...] = ()

    def environment(self) -> dict[str, str]:
        """What the application's settings are to read: it makes its bus itself, so this is how they reach it."""
        named = {"COMMAND_BUS_URL": self.url, "COMMAND_BUS_NAMESPACE": self.namespace}
        return {name: value for name, value in named.items() if value is not None}

    def child_arguments(self, channel: int) -> list[str]:
        """The arguments of one process of several. What `environment` has is passed there: arguments can be read by everyone."""
        words = [
            "worker",
            self.import_string,
            "--log-level",
            self.log_level,
            "--log-format",
            self.log_format,
            "--channel",
            str(channel),
        ]
        for name, value in (("--concurrency", self.concurrency), ("--grace", self.grace), ("--stuck-after", self.stuck_after)):
            if value is not None:
                words += [name, str(value)]
        for module in self.include:
            words += ["--include", module]
        if self.health_port is not None:
            words += ["--health-port", "0", "--health-host", "127.0.0.1"]  # for the supervisor, which answers for all
        for name, given in (("--production", self.production), ("--burst", self.burst)):
            if given:
                words.append(name)
        return words
