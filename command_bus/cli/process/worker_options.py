"""The options of `worker`, as a value that is passed from the supervisor to its processes."""

from __future__ import annotations

from dataclasses import dataclass, field

from command_bus.cli.options import LogFormat, LogLevel


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Options of `command-bus worker`, which `--help` describes; None leaves a value to the application.

    Attributes:
        health_port: Port for probes and scrapers; 0 is any free port, None is no port. With several processes the supervisor serves this
            port, and each process serves one of its own, for the supervisor.
        include: Further modules with handlers to import.
        stuck_after: Seconds for which the event loop may be blocked until the process counts as stuck.
        command_log: Folder for one line for each settled command.
        channel: In a process that a supervisor started, the file descriptor of their channel.
        reload: Whether the supervisor restarts the processes when the application's files change.
    """

    import_string: str
    processes: int = 1
    concurrency: int | None = None
    grace: float | None = None
    namespace: str | None = None
    url: str | None = field(default=None, repr=False)
    production: bool = False
    burst: bool = False
    log_level: LogLevel | None = None
    log_format: LogFormat = LogFormat.TEXT
    channel: int | None = None
    reload: bool = False
    health_port: int | None = None
    health_host: str = "0.0.0.0"  # noqa: S104 - probes come from outside the container
    stuck_after: float = 10.0
    include: tuple[str, ...] = ()
    command_log: str | None = None

    def environment(self) -> dict[str, str]:
        """Return the environment variables for the application. It creates its bus itself, so options reach its settings this way."""
        named = {"COMMAND_BUS_URL": self.url, "COMMAND_BUS_NAMESPACE": self.namespace}
        return {name: value for name, value in named.items() if value is not None}

    def child_arguments(self, channel: int) -> list[str]:
        """Return the arguments of one process of several. URL and namespace are passed by `environment`: all users can read arguments."""
        words = [
            "worker",
            self.import_string,
            "--log-format",
            self.log_format,
            "--channel",
            str(channel),
        ]
        for name, value in (
            ("--log-level", self.log_level),
            ("--concurrency", self.concurrency),
            ("--grace", self.grace),
            ("--stuck-after", self.stuck_after),
            ("--command-log", self.command_log),
        ):
            if value is not None:
                words += [name, str(value)]
        for module in self.include:
            words += ["--include", module]
        if self.health_port is not None:
            words += ["--health-port", "0", "--health-host", "127.0.0.1"]  # for the supervisor, which serves the public port
        for name, given in (("--production", self.production), ("--burst", self.burst)):
            if given:
                words.append(name)
        return words
