"""The one way from a `Target` to an open bus, and from the errors of the work on it to an exit code.

    options, environment → settings → what the namespace recorded → open bus → work → exit code

The command line has no settings of its own: it adopts the shard count and the lanes that the namespace was created with. So it
refuses a namespace that no worker or sender has opened yet. Otherwise a misspelt name would create one.
"""

from __future__ import annotations

import getpass
import logging
import os
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from typer import Exit

from command_bus.cli import PROGRAM
from command_bus.cli.options import Target
from command_bus.cli.terminal import ExitCode, print_error
from command_bus.errors import CommandBusError, CommandTimeout, InvalidSettings, TransportUnavailable

if TYPE_CHECKING:
    from command_bus.bus import CommandBus
    from command_bus.setting_values import SettingValues
    from command_bus.settings import BusSettings

T = TypeVar("T")
_PATIENCE = 5.0  # seconds to wait for the server, at most: a person waits


def run_command(work: Callable[[], Awaitable[T]], *, sends: bool = False, logs: bool = False) -> T:
    """Run a command's work, and turn the library's errors into one line and an exit code.

    Args:
        work: Makes what is awaited; its result is returned.
        sends: Whether a lost answer leaves open whether a command was accepted. Other work can simply be repeated.
        logs: Whether this is a server, which logs as `configure_logging` was told. What others warn of `doctor` reports.

    Raises:
        typer.Exit: The work failed.
    """
    import asyncio

    if not logs:
        logging.getLogger("command_bus").setLevel(logging.ERROR)
    try:
        return asyncio.run(_awaited(work))
    except TransportUnavailable as error:
        print_error(error.message)
        raise Exit(ExitCode.UNKNOWN if sends and error.outcome_unknown else ExitCode.UNREACHABLE) from None
    except CommandTimeout as error:
        print_error(f"{error.code}: {error.message}")
        raise Exit(ExitCode.UNKNOWN) from None
    except InvalidSettings as error:
        print_error(error.message)
        raise Exit(ExitCode.USAGE) from None
    except CommandBusError as error:
        print_error(f"{error.code}: {error.message}" if error.message else type(error).__name__)
        raise Exit(ExitCode.FAILED) from None
    except KeyboardInterrupt:
        raise Exit(ExitCode.INTERRUPTED) from None
    except BrokenPipeError:  # the reader of the pipe, such as `head`, has ended
        sys.stderr.close()
        raise Exit(ExitCode.DONE) from None


def on_bus(
    target: Target, act: Callable[[CommandBus], Awaitable[T]], *, may_begin: bool = False, sends: bool = False, logs: bool = False
) -> T:
    """Do one thing on the target's open bus, as `open_bus` and `run_command`, and return its result."""

    async def work() -> T:
        async with open_bus(target, may_begin=may_begin) as bus:
            return await act(bus)

    return run_command(work, sends=sends, logs=logs)


def act_on_bus(target: Target, title: str, what: str, act: Callable[[CommandBus], Awaitable[T]], *, why: str = "") -> T:
    """Do one thing on the target's open bus, as `on_bus`, and write it into the audit log: before it is done, and what came of it.

    A log that cannot be written (a server that is full, a user without the right) keeps nothing from being done: it is said.

    Args:
        target: The bus.
        title: What is done, as the dashboard's acts are called.
        what: To what.
        act: Does it.
        why: The reason that was given.
    """
    from asyncio import CancelledError

    from command_bus.admin.selection import BulkStep

    async def audited(bus: CommandBus) -> T:
        who = f"{operator_name()} (command line)"

        async def write(outcome: str = "", ref: str = "") -> str:
            try:
                return await bus.audit.write(who, title, what, why, outcome=outcome, ref=ref)
            except CommandBusError as error:
                print_error(f"the audit log could not be written: {error.message}")
                return ""

        ref = await write()
        try:
            result: T = await act(bus)
        except (CommandBusError, CancelledError) as error:
            if ref:
                await write("stopped" if isinstance(error, CancelledError) else f"failed: {error.message}", ref)
            raise
        if ref:
            changed: object = result
            is_idle = not any(changed.values()) if isinstance(changed, dict) else changed is False
            await write(str(changed) if isinstance(changed, BulkStep) else "nothing to change" if is_idle else "done", ref)
        return result

    return on_bus(target, audited)


def operator_name() -> str:
    """Return who uses this terminal, and where."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a user without a name, in a container
        return socket.gethostname()


def run_until_interrupted(
    target: Target, act: Callable[[CommandBus], Awaitable[None]], *, may_begin: bool = False, logs: bool = False
) -> None:
    """Do one thing on the target's open bus that Ctrl-C ends as it should be ended: with exit code 0.

    Args:
        target: The bus.
        act: Goes on until it is cancelled.
        may_begin: As for `open_bus`.
        logs: Whether this is a server, which logs.

    Raises:
        typer.Exit: It failed, or was interrupted.
    """
    try:
        on_bus(target, act, may_begin=may_begin, logs=logs)
    except Exit as ended:
        raise Exit(ExitCode.DONE if ended.exit_code == ExitCode.INTERRUPTED else ended.exit_code) from None


@asynccontextmanager
async def open_bus(target: Target, *, may_begin: bool = False) -> AsyncGenerator[CommandBus]:
    """Open a bus on the target, for as long as the block runs.

    Args:
        target: The bus.
        may_begin: Whether a namespace that was never opened is begun, with the settings of the environment.

    Raises:
        InvalidSettings: No such server, namespace or application is known.
        TransportUnavailable: The server cannot be reached.
    """
    try:
        bus = await bus_of_app(target) if target.app is not None else await _bus_of_settings(target, may_begin=may_begin)
        await bus.open()
    except TransportUnavailable as error:  # nothing was sent yet, so the outcome is known
        raise TransportUnavailable(error.message) from error
    async with bus:
        yield bus


def load_settings(target: Target) -> BusSettings:
    """Return the settings of the environment, with the target's URL and namespace in place of theirs. Requests are given up early.

    Without any URL, the settings name this project's development server.

    Raises:
        InvalidSettings: No server is named, and no development server of this project runs.
    """
    from command_bus.settings import BusSettings

    given: SettingValues = {}
    if target.url is not None:
        given["url"] = target.url
    if target.namespace is not None:
        given["namespace"] = target.namespace
    settings = BusSettings(**given)
    if settings.server_url is None:
        settings = BusSettings(url=_development_server(), namespace=settings.namespace)
    if settings.dispatch_timeout > _PATIENCE:
        settings = settings.model_copy(update={"dispatch_timeout": _PATIENCE})
    return settings


async def _bus_of_settings(target: Target, *, may_begin: bool) -> CommandBus:
    from command_bus.bus import CommandBus
    from command_bus.handlers.registry import HandlerRegistry
    from command_bus.transport.redis.connection.credentials import connection_options
    from command_bus.transport.redis.namespace import recorded_choices

    settings = load_settings(target)
    url = settings.server_url or ""
    choices = await recorded_choices(url, settings.namespace, settings.dispatch_timeout, connection_options(settings))
    if not choices and not may_begin:
        raise InvalidSettings(
            f"there is no namespace {settings.namespace!r} on this server: no worker or sender has opened it yet (--namespace, COMMAND_BUS_NAMESPACE)"
        )
    return CommandBus(settings=settings, registry=HandlerRegistry(), **choices)


async def bus_of_app(target: Target) -> CommandBus:
    """Return the application's bus, not open.

    Raises:
        InvalidSettings: The application cannot be loaded, or has another server or namespace.
    """
    from command_bus.cli.loading import import_object, resolve_bus

    app = target.app or ""
    named = {"COMMAND_BUS_URL": target.url, "COMMAND_BUS_NAMESPACE": target.namespace}
    os.environ.update({name: value for name, value in named.items() if value is not None})
    try:
        bus = await resolve_bus(app, import_object(app))
    except CommandBusError:
        raise
    except Exception as error:
        raise InvalidSettings(f"{app} cannot be loaded: {type(error).__name__}: {error}") from error
    for what, given, own in (
        ("url", target.url, bus.settings.server_url),
        ("namespace", target.namespace, bus.settings.namespace),
    ):
        if given is not None and given != own:
            raise InvalidSettings(f"--{what} is not that of {app}: leave one of them out")
    return bus


def _development_server() -> str:
    """Return the URL of this project's development server. It is started only if an earlier one left data behind.

    Raises:
        InvalidSettings: No server runs, and there is no data to show.
    """
    from command_bus.embedded.development_server import URL_VARIABLE, kept_folder, shared_server
    from command_bus.embedded.folders import SOCKET, meeting_place, project_folder
    from command_bus.embedded.process import state_of
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
