"""The pytest plugin (entry point `command_bus`). All fixtures are synchronous, so they work with any runner of async tests.

A coroutine test that uses `command_bus` and has no marker for a runner is run by pytest-asyncio, in any mode.

The package is imported inside the fixtures, because a plugin is loaded before coverage begins to measure.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from command_bus.bus import CommandBus
    from command_bus.embedded import EmbeddedServer
    from command_bus.handlers.registry import HandlerRegistry
    from command_bus.testing.bus import TestBus
    from command_bus.testing.conformance.fixtures import PromiseSandbox
    from command_bus.testing.verdict import Verdict
    from command_bus.transport.redis.connection.factory import ClientFactory

_VERDICTS = pytest.StashKey[list["Verdict"]]()
_PROPERTY, _OPTION = "crash_certificate", "--crash-certificate"


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


@pytest.fixture
def crash_certificate(request: pytest.FixtureRequest) -> Callable[..., Verdict]:
    """Return `command_bus.testing.crash_certificate`; what it finds stands in the page and the JUnit file of this test run."""
    from command_bus.testing.certificate import crash_certificate as certify

    verdicts = request.node.stash.setdefault(_VERDICTS, [])

    def certified(*args: Any, **options: Any) -> Verdict:
        verdict = certify(*args, **{"name": request.node.name} | options)
        verdicts.append(verdict)
        return verdict

    return certified


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--crash-certificate`."""
    parser.getgroup("command_bus").addoption(
        _OPTION,
        metavar="PATH",
        help="Write a page, .html or .md, of all crash certificates, and fail each test whose certificate is not clean.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check the name of the page before anything runs."""
    path = config.getoption(_OPTION, None)
    if path is not None and Path(path).suffix not in (".html", ".md"):
        raise pytest.UsageError(f"{_OPTION} writes .html or .md, not {path!r}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Put verdicts into the report; fail a test that forgot to look at one."""
    try:
        result = yield
    finally:
        verdicts = item.stash.get(_VERDICTS, [])
        for verdict in verdicts:
            if not verdict:  # pytest cuts the message of an assertion
                item.add_report_section("call", "crash certificate", str(verdict))
        item.user_properties += [(_PROPERTY, json.dumps(verdict.data())) for verdict in verdicts]
    if item.config.getoption(_OPTION, None) is not None and not all(verdicts):
        pytest.fail("\n".join(str(verdict) for verdict in verdicts if not verdict), pytrace=False)
    return result


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Write the page of all certificates, and a line for each into the terminal."""
    path = config.getoption(_OPTION, None)
    if path is None:
        return
    from command_bus.testing.certificate_page import github_lines, page

    reports = [report for kind in ("passed", "failed", "xfailed", "xpassed") for report in terminalreporter.getreports(kind)]
    found = [
        json.loads(value)
        for report in reports
        if report.when == "call"
        for name, value in report.user_properties
        if name == _PROPERTY
    ]
    Path(path).write_text(page(found, Path(path).suffix), encoding="utf-8")
    terminalreporter.section("crash certificates")
    for verdict in found:
        terminalreporter.write_line(verdict["summary"])
    terminalreporter.write_line(
        f"certificates in {path}: {len(found)}" if found else "no test asked for one: nothing was certified"
    )
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in github_lines(found):
            terminalreporter.write_line(line)


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
