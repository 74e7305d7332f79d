"""Facts about a loaded application, as a value: logged at the start, and checked against the options."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from command_bus.errors import InvalidSettings

if TYPE_CHECKING:
    from command_bus.bus import CommandBus
    from command_bus.cli.process.worker_options import WorkerOptions


@dataclass(frozen=True, slots=True)
class Application:
    """A loaded application.

    Attributes:
        name: `MODULE:ATTRIBUTE`, as it was given.
        namespace: What its bus is called on the server.
        url: Address of its server, with the password; None for the development server.
        server: Name of that for people, without a password.
        handlers: The wire names of the commands that it handles.
        concurrency: Entities that a process runs at a time.
        grace: Seconds that handlers get to finish when the worker stops.
    """

    name: str
    namespace: str
    url: str | None = field(repr=False)
    server: str
    handlers: tuple[str, ...]
    concurrency: int
    grace: float

    @classmethod
    def from_bus(cls, bus: CommandBus, options: WorkerOptions) -> Self:
        """Read the facts of a bus that is not open yet."""
        from command_bus.server_urls import redacted

        settings = bus.settings
        url = settings.server_url
        return cls(
            name=options.import_string,
            namespace=settings.namespace,
            url=url,
            server="the development server" if url is None else redacted(url).partition("?")[0],
            handlers=bus.registry.names(),
            concurrency=options.concurrency or settings.concurrency,
            grace=settings.grace if options.grace is None else options.grace,
        )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Make an application of what `to_dict` returned."""
        handlers: list[str] = values["handlers"]
        plain: dict[str, Any] = {**values, "handlers": tuple(handlers)}
        return cls(**plain)

    def to_dict(self) -> dict[str, Any]:
        """Return the application as data for JSON."""
        return asdict(self)

    def start_line(self, processes: int) -> str:
        """Return the first line of a worker's log."""
        share = f"{self.concurrency} entities at a time" + (f" in each of {processes} processes" if processes > 1 else "")
        return f"{self.name}: namespace {self.namespace!r} on {self.server}, {share}; handles {', '.join(self.handlers)}"


def check_options(application: Application, options: WorkerOptions) -> None:
    """Check that the application may be started with these options.

    Raises:
        InvalidSettings: The options contradict the application, it handles nothing, or with `--production` it names no server.
    """
    name = application.name
    if options.url is not None and options.url != application.url:
        raise InvalidSettings(
            f"--url is not the server of {name}, which is {application.server}: leave one of them out, or let the application "
            "read COMMAND_BUS_URL, which --url sets"
        )
    if options.namespace is not None and options.namespace != application.namespace:
        raise InvalidSettings(
            f"--namespace {options.namespace} is not the namespace of {name}, which is {application.namespace}: leave one of "
            "them out, or let the application read COMMAND_BUS_NAMESPACE, which --namespace sets"
        )
    if options.production and application.url is None:
        raise InvalidSettings(f"{name} names no server, and --production refuses the development server: set COMMAND_BUS_URL")
    if not application.handlers:
        raise InvalidSettings(
            f"{name} has no handler: name the modules with @handles, `--include shop.tasks`, or import them where the bus is made"
        )
