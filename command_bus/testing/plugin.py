"""The pytest plugin (entry point `command_bus`): fixtures, all synchronous, so that any way of running async tests will do.

The package is imported within the fixtures: a plugin is loaded before coverage begins to measure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from command_bus.bus import CommandBus
    from command_bus.embedded import EmbeddedServer
    from command_bus.registry import HandlerRegistry
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
    """A `TestBus`: a bus and a worker over a server in memory, in virtual time, with crashes to order."""
    from command_bus.testing.bus import TestBus

    bus = TestBus(command_bus_registry, bus=command_bus_app, **command_bus_options)
    yield bus
    bus.release()


@pytest.fixture(scope="session")
def command_bus_server() -> Iterator[EmbeddedServer]:
    """A real server of this test run alone (extra `embedded`); give each test a namespace of its own."""
    from command_bus.embedded import EmbeddedServer

    with EmbeddedServer.start() as server:
        yield server
