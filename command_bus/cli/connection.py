"""Where a command of the operator's goes: options that all of them share, and the one way to an open bus.

    --app, --url, --namespace, environment → settings → what the namespace recorded → open bus → work → exit code

The three options may stand before the command's name or after it. `placed` adds them to a command, which gets them as one `Place`.

The command line has no settings of its own: it takes over the shard count and the lanes that the namespace was made with. So a
namespace that nobody has opened yet is refused, rather than made by a typing error.
"""

from __future__ import annotations

import gc
import inspect
import logging
import os
import shlex
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from command_bus.cli import PROGRAM
from command_bus.cli.process.options import Outcome
from command_bus.cli.terminal import confirmed, print_error
from command_bus.errors import CommandBusError, CommandTimeout, InvalidSettings, TransportUnavailable

if TYPE_CHECKING:
    from command_bus.bus import CommandBus
    from command_bus.settings import BusSettings, SettingValues

__all__ = [
    "App",
    "Json",
    "Namespace",
    "Place",
    "Url",
    "Yes",
    "confirm_or_exit",
    "connected",
    "execute",
    "given_before",
    "import_bus",
    "placed",
    "settings_of",
]

T = TypeVar("T")
_PATIENCE = 5.0  # seconds for the server: a person waits

Url = Annotated[
    str | None, typer.Option(show_default=False, help="Server [default: COMMAND_BUS_URL, REDIS_URL, or this project's `dev`].")
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", show_default=False, help="Fleet [default: COMMAND_BUS_NAMESPACE].")
]
App = Annotated[
    str | None,
    typer.Option(metavar="MODULE[:ATTRIBUTE]", show_default=False, help="Use the bus, classes and settings of an application."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@dataclass(frozen=True)
class Place:
    """Where to go."""

    url: str | None = field(default=None, repr=False)
    namespace: str | None = None
    app: str | None = None

    @classmethod
    def named(cls, context: typer.Context) -> Place:
        """Return the place that the command line names: the last word counts, so an option behind the command's name goes before one ahead."""
        found: dict[str, str] = {}
        at: Any = context
        while at is not None:
            for name in ("url", "namespace", "app"):
                if at.params.get(name) is not None:
                    found.setdefault(name, at.params[name])
            at = at.parent
        return cls(**found)

    def command(self, *words: str) -> str:
        """Return a whole command line of this program that goes to the same place, for pasting; passwords in a URL are left out."""
        from command_bus.settings import redacted

        url = None if self.url is None else redacted(self.url)
        given = (("--url", url), ("--namespace", self.namespace), ("--app", self.app))
        return shlex.join([PROGRAM, *words, *(word for option, value in given if value is not None for word in (option, value))])


def given_before(context: typer.Context, *, url: Url = None, namespace: Namespace = None, app: App = None) -> None:
    """Take the options of a place before a command's name; `Place.named` finds them there."""


def placed(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the options of a place, which it gets as its argument `place`."""
    signature = inspect.signature(command, eval_str=True)
    options = inspect.signature(given_before, eval_str=True).parameters
    own = [each for each in signature.parameters.values() if each.name != "place"]
    parameters = [options["context"], *own, *(options[name] for name in ("url", "namespace", "app"))]

    def run(context: typer.Context, **given: Any) -> None:
        place = Place.named(context)
        if place.app is None:
            import_bus()
        command(place=place, **{name: value for name, value in given.items() if name in signature.parameters})

    run.__doc__ = command.__doc__
    run.__name__ = command.__name__
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def import_bus() -> None:
    """Import what every command needs that goes to a server."""
    with _quick_imports():
        import_module("command_bus.bus")
        import_module("command_bus.transport.redis.namespace")


@contextmanager
def _quick_imports() -> Generator[None]:
    """Import what a short program needs, and no more; with `--app`, everything is as the application wants it.

    What else takes a quarter of the time: the collector looks through what was imported again and again, and finds nothing to collect.
    pydantic reads the metadata of every installed package, for plugins. redis-py loads OpenTelemetry where it is installed.
    """
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    modules: dict[str, Any] = sys.modules
    unwanted = {"opentelemetry"} - modules.keys()
    modules.update(dict.fromkeys(unwanted))  # None is how an import is refused
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        for name in unwanted:
            del modules[name]


def execute(work: Callable[[], Awaitable[T]], *, sends: bool = False) -> T:
    """Run a command's work; what this library raises on purpose becomes one line and an exit code.

    Args:
        work: What to do.
        sends: Whether an answer that is lost leaves open what happened; all else can simply be asked again.

    Raises:
        typer.Exit: With that code.
    """
    import asyncio

    logging.getLogger("command_bus").setLevel(logging.ERROR)  # a worker warns of the server's settings; here `doctor` does
    try:
        return asyncio.run(_awaited(work))
    except TransportUnavailable as error:
        print_error(error.message)
        raise typer.Exit(Outcome.UNKNOWN if sends and error.outcome_unknown else Outcome.UNREACHABLE) from None
    except CommandTimeout as error:
        print_error(f"{error.code}: {error.message}")
        raise typer.Exit(Outcome.UNKNOWN) from None
    except InvalidSettings as error:
        print_error(error.message)
        raise typer.Exit(Outcome.USAGE) from None
    except CommandBusError as error:
        print_error(f"{error.code}: {error.message}" if error.message else type(error).__name__)
        raise typer.Exit(Outcome.FAILED) from None
    except KeyboardInterrupt:
        raise typer.Exit(Outcome.INTERRUPTED) from None
    except BrokenPipeError:  # the reader of a pipe has had enough
        sys.stderr.close()
        raise typer.Exit(Outcome.DONE) from None


@asynccontextmanager
async def connected(place: Place) -> AsyncGenerator[CommandBus]:
    """An open bus at that place.

    Raises:
        InvalidSettings: There is no such place.
        TransportUnavailable: The server cannot be reached.
    """
    try:
        bus = await _of_app(place) if place.app is not None else await _of_settings(place)
        await bus.open()
    except TransportUnavailable as error:  # nothing was sent yet
        raise TransportUnavailable(error.message) from error
    async with bus:
        yield bus


def confirm_or_exit(question: str, *, yes: bool) -> None:
    """Ask whoever sits there; without terminal and `--yes` nothing is done.

    Raises:
        typer.Exit: It is not to be done.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        print_error(f"{question} There is nobody to ask: pass --yes")
        raise typer.Exit(Outcome.USAGE)
    if not confirmed(question):
        raise typer.Exit(Outcome.FAILED)


def settings_of(place: Place) -> BusSettings:
    """The settings from the environment, for this place.

    Raises:
        InvalidSettings: No server is named, and none of this project runs.
    """
    from command_bus.settings import BusSettings

    given: SettingValues = {}
    if place.url is not None:
        given["url"] = place.url
    if place.namespace is not None:
        given["namespace"] = place.namespace
    settings = BusSettings(**given)
    if settings.server_url is None:
        settings = BusSettings(url=_development_server(), namespace=settings.namespace)
    if settings.dispatch_timeout > _PATIENCE:
        settings = settings.model_copy(update={"dispatch_timeout": _PATIENCE})
    return settings


async def _of_settings(place: Place) -> CommandBus:
    from command_bus.bus import CommandBus
    from command_bus.handlers.registry import HandlerRegistry
    from command_bus.transport.redis.connection.credentials import connection_options
    from command_bus.transport.redis.namespace import recorded_choices

    settings = settings_of(place)
    url = settings.server_url or ""
    choices = await recorded_choices(url, settings.namespace, settings.dispatch_timeout, connection_options(settings))
    if not choices:
        raise InvalidSettings(
            f"there is no namespace {settings.namespace!r} on this server: no worker or sender has opened it yet (--namespace, COMMAND_BUS_NAMESPACE)"
        )
    return CommandBus(settings=settings, registry=HandlerRegistry(), **choices)


async def _of_app(place: Place) -> CommandBus:
    from command_bus.cli.loading import bus_from, load

    target = place.app or ""
    named = {"COMMAND_BUS_URL": place.url, "COMMAND_BUS_NAMESPACE": place.namespace}
    os.environ.update({name: value for name, value in named.items() if value is not None})
    try:
        bus = await bus_from(target, load(target))
    except CommandBusError:
        raise
    except Exception as error:
        raise InvalidSettings(f"{target} cannot be loaded: {type(error).__name__}: {error}") from error
    for what, given, its in (("url", place.url, bus.settings.server_url), ("namespace", place.namespace, bus.settings.namespace)):
        if given is not None and given != its:
            raise InvalidSettings(f"--{what} is not that of {target}: leave one of them out")
    return bus


def _development_server() -> str:
    """The URL of this project's development server; it is started only if one has left something behind.

    Raises:
        InvalidSettings: None runs, and there is nothing to show.
    """
    from command_bus.embedded.development_server import URL_VARIABLE, shared_server
    from command_bus.embedded.folders import SOCKET, meeting_place, project_folder
    from command_bus.embedded.probe import state_of
    from command_bus.embedded.project_data import kept_folder
    from command_bus.embedded.server import unix_url

    if inherited := os.environ.get(URL_VARIABLE):
        return inherited
    address = meeting_place(project_folder()) / SOCKET
    if state_of(address) != "ready":
        if kept_folder(project_folder()).is_dir():
            return shared_server()
        raise InvalidSettings(
            f"no server is named and no development server of this project runs: pass --url, set COMMAND_BUS_URL, or start `{PROGRAM} dev`"
        )
    return unix_url(address)


async def _awaited(work: Callable[[], Awaitable[T]]) -> T:
    return await work()
