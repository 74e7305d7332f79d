"""The pytest plugin (entry point `command_bus`). All fixtures are synchronous, so they work with any runner of async tests.

A coroutine test that uses `command_bus` and has no marker for a runner is run by pytest-asyncio, in any mode.

The package is imported inside the fixtures, because a plugin is loaded before coverage begins to measure.
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
    from command_bus.testing.conformance.fixtures import PromiseSandbox
    from command_bus.transport.redis.connection.factory import ClientFactory


@pytest.fixture
def command_bus_registry() -> HandlerRegistry | None:
    """Return the handlers of `command_bus`; override it to return your registry. Default: that of the application's bus, else `@handles`."""
    return None


@pytest.fixture
def command_bus_app() -> CommandBus | None:
    """Return the application's bus; override it to return the bus that your code imports or its container creates."""
    return None


@pytest.fixture
def command_bus_options() -> dict[str, Any]:
    """Return options for a bus of `command_bus`'s own (if `command_bus_app` returns None): settings, middleware, a lifespan."""
    return {}


@pytest.fixture
def command_bus(
    command_bus_registry: HandlerRegistry | None, command_bus_app: CommandBus | None, command_bus_options: dict[str, Any]
) -> Iterator[TestBus]:
    """Provide a `TestBus`: a bus and a worker with an in-memory server, virtual time and simulated crashes.

    Until the end of the test every bus that the program opens talks to this server. A bus that was open before refuses to send.
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
    """Provide a real server for this test run (extra `embedded`); use a separate namespace in each test."""
    from command_bus.embedded import EmbeddedServer

    with EmbeddedServer.start() as server:
        yield server


@pytest.fixture
def command_bus_sandbox(command_bus_clients: ClientFactory) -> PromiseSandbox:
    """Return the sandbox of a promise (`command_bus.testing.conformance`); override `command_bus_clients`, or this for another transport."""
    from command_bus.testing.conformance.fixtures import PromiseSandbox

    return PromiseSandbox(command_bus_clients)


@pytest.hookimpl(wrapper=True, trylast=True)  # the innermost: before pytest-asyncio looks for its mark
def pytest_pycollect_makeitem(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Mark coroutine tests that use the fixture for pytest-asyncio."""
    made = yield
    if collector.config.pluginmanager.has_plugin("asyncio"):
        for item in made if isinstance(made, Iterable) else [made]:
            if _is_unmarked(item):
                item.add_marker(pytest.mark.asyncio)
    return made


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Fail with a message that names what is missing; pytest's own message does not."""
    if _is_unmarked(pyfuncitem) and not pyfuncitem.config.pluginmanager.has_plugin("asyncio"):
        pytest.fail(
            "this test is a coroutine, and nothing here runs coroutines: pip install pytest-asyncio, "
            "or mark the test with @pytest.mark.anyio",
            pytrace=False,
        )


def _is_unmarked(item: object) -> bool:
    """Return whether it is a coroutine test with our fixture and without a marker for a runner."""
    if not isinstance(item, pytest.Function) or "command_bus" not in item.fixturenames:
        return False
    said = any(item.get_closest_marker(name) for name in ("asyncio", "anyio", "trio")) or "anyio_backend" in item.fixturenames
    return inspect.iscoroutinefunction(item.obj) and not said
