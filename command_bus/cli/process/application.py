"""What the program learns of an application, as a value: shown at the start, checked against the options."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from command_bus.errors import InvalidSettings

if TYPE_CHECKING:
    from command_bus.bus import CommandBus
    from command_bus.cli.process.options import WorkerOptions

__all__ = ["Application", "check_options"]


@dataclass(frozen=True, slots=True)
class Application:
    """A loaded application.

    Attributes:
        name: `MODULE:ATTRIBUTE`, as it was given.
        namespace: Of its bus.
        url: Of its server, with the password; None for the development server.
        server: The same for people, without the password.
        handlers: The wire names that it handles.
        concurrency: Entities per process at a time.
        grace: Seconds that handlers get to finish.
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
        """What there is to know of a bus before it is opened."""
        from command_bus.settings import redacted

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
        """The reverse of `plain`."""
        handlers: list[str] = values["handlers"]
        plain: dict[str, Any] = {**values, "handlers": tuple(handlers)}
        return cls(**plain)

    def to_dict(self) -> dict[str, Any]:
        """As data for JSON."""
        return asdict(self)

    def start_line(self, processes: int) -> str:
        """What a worker says first."""
        share = f"{self.concurrency} entities at a time" + (f" in each of {processes} processes" if processes > 1 else "")
        return f"{self.name}: namespace {self.namespace!r} on {self.server}, {share}; handles {', '.join(self.handlers)}"


def check_options(application: Application, options: WorkerOptions) -> None:
    """Refuse what must not be started.

    Raises:
        InvalidSettings: Options and application disagree, it handles nothing, or with `--production` no server is named.
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
