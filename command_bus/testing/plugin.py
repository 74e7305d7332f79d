"""The pytest plugin (entry point `command_bus`): fixtures, all synchronous, so that any way of running async tests will do.

A coroutine test that asks for `command_bus`, and does not say how it is to be run, is run by pytest-asyncio, whatever its mode.

The package is imported within the fixtures: a plugin is loaded before coverage begins to measure.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from command_bus.bus import CommandBus
    from command_bus.embedded import EmbeddedServer
    from command_bus.handlers.registry import HandlerRegistry
    from command_bus.testing.bus import TestBus

__all__ = ["command_bus", "command_bus_app", "command_bus_options", "command_bus_registry", "command_bus_server"]


@pytest.fixture
def command_bus_registry() -> HandlerRegistry | None:
    """The handlers of `command_bus`: override it to return a registry of your own. By default the application's bus's, or `@handles`."""
    return None


@pytest.fixture
def command_bus_app() -> CommandBus | None:
    """The application's bus: override it to return the one that your code imports, or that its container makes."""
    return None


@pytest.fixture
def command_bus_options() -> dict[str, Any]:
    """Options of the bus in `command_bus`, where `command_bus_app` gives none: override it to return settings, middleware, a lifespan."""
    return {}


@pytest.fixture
def command_bus(
    command_bus_registry: HandlerRegistry | None, command_bus_app: CommandBus | None, command_bus_options: dict[str, Any]
) -> Iterator[TestBus]:
    """A `TestBus`: a bus and a worker over a server in memory, in virtual time, with crashes to order.

    Until the end of the test every bus that the program opens talks to this server, and one that was open before refuses to send.
    """
    from command_bus.testing.bus import TestBus

    bus = TestBus(command_bus_registry, bus=command_bus_app, **command_bus_options)
    bus.claim_all()
    yield bus
    bus.release()
    if bus.refused:
        pytest.fail(bus.refused[0], pytrace=False)


@pytest.fixture(scope="session")
def command_bus_server() -> Iterator[EmbeddedServer]:
    """A real server of this test run alone (extra `embedded`); give each test a namespace of its own."""
    from command_bus.embedded import EmbeddedServer

    with EmbeddedServer.start() as server:
        yield server


@pytest.hookimpl(wrapper=True, trylast=True)  # the innermost: before pytest-asyncio looks for its mark
def pytest_pycollect_makeitem(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Mark coroutine tests of the fixture for pytest-asyncio."""
    made = yield
    if collector.config.pluginmanager.has_plugin("asyncio"):
        for item in made if isinstance(made, Iterable) else [made]:
            if _is_unmarked(item):
                item.add_marker(pytest.mark.asyncio)
    return made


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Say what is missing before pytest says less."""
    if _is_unmarked(pyfuncitem) and not pyfuncitem.config.pluginmanager.has_plugin("asyncio"):
        pytest.fail(
            "this test is a coroutine, and nothing here runs coroutines: pip install pytest-asyncio, "
            "or mark the test with @pytest.mark.anyio",
            pytrace=False,
        )


def _is_unmarked(item: object) -> bool:
    """Whether it is a coroutine test with our fixture that does not say how it is to be run."""
    if not isinstance(item, pytest.Function) or "command_bus" not in item.fixturenames:
        return False
    said = any(item.get_closest_marker(name) for name in ("asyncio", "anyio", "trio")) or "anyio_backend" in item.fixturenames
    return inspect.iscoroutinefunction(item.obj) and not said
