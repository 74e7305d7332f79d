"""Settings of all tests: nothing from the developer's environment reaches them, property tests have no deadline, Spark may be absent."""

from __future__ import annotations

import gc
import logging
import os
import zlib
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings

from command_bus.serialization.odd_values import odd_values
from command_bus.testing.plugin import (  # by hand: the plugin is found by itself only where the project is installed
    command_bus,
    command_bus_app,
    command_bus_options,
    command_bus_registry,
    command_bus_server,
)
from tests.selection import leave_out, pytest_deselected, pytest_sessionfinish, pytest_terminal_summary, pytest_testnodedown
from tests.spark.presence import what_is_missing

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

__all__ = [
    "command_bus",
    "command_bus_app",
    "command_bus_options",
    "command_bus_registry",
    "command_bus_server",
    "pytest_deselected",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_testnodedown",
]

# Before anything is collected, so that subprocesses inherit it too. COMMAND_BUS_TEST_… is for the tests themselves.
for _name in list(os.environ):
    if _name == "REDIS_URL" or (_name.startswith("COMMAND_BUS_") and not _name.startswith("COMMAND_BUS_TEST_")):
        del os.environ[_name]

# They start processes with sessions of their own.
OWN_SESSIONS = tuple(
    f"tests/spark/test_{name}" for name in ("discovery.py", "examples.py::TestRuns", "proofs.py", "quickstart.py")
)

SPARK_SESSIONS = 2
"""Among which the other files of tests/spark are divided. With one, its process is busy when all others have ended."""

# The few tests on these go to one process each: together they are a dozen servers, which are never idle.
SEVERAL = () if "COMMAND_BUS_TEST_SERVERS" in os.environ else ("sentinel", "cluster")

# Their tests share what a fixture of the module makes: it is dear, or the last change it.
ONE_STAGE = (
    "tests/packaging/test_distributions.py",
    "tests/packaging/test_integrations.py",
    "tests/integration/test_cli_json.py",
    "tests/integration/test_topologies.py",
    "tests/integration/test_operator_cli.py",
    "tests/integration/test_cli_mistakes.py",
    "tests/dashboard/",
    "tests/gateway/",
)

# A slow example on a busy machine is no failure; pytest-timeout ends what hangs. Developers explore new examples with every run, CI repeats
# the same ones: a change must not fail to land by what another change brought.
settings.register_profile(
    "command_bus",
    deadline=None,
    derandomize="CI" in os.environ,
    phases=[
        Phase.explicit,
        Phase.reuse,
        Phase.generate,
        Phase.target,
        Phase.shrink,
    ],  # not `explain`: it traces lines, for minutes
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("command_bus")


@pytest.fixture(autouse=True)
def _same_loggers() -> Iterator[None]:
    """Restore loggers that a command line changed, at the end of its test."""
    logger = logging.getLogger("command_bus")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def _no_odd_values() -> None:
    """Forget the odd values that earlier tests of this process have counted: they show in its metrics."""
    odd_values.__init__()  # type: ignore[misc]


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Give each test to any free process; tests that share a Spark session or a fixture of their module go to one, and first.

    Not by the marks of `--dist loadgroup`: pytest-xdist 3.8 writes the group into an attribute that pytest 9.2 does not read any more.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist says nothing of its types
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(ONE_STAGE):
                return nodeid.partition("::")[0]
            if several := next((name for name in SEVERAL if f"[{name}" in nodeid or f"-{name}" in nodeid), None):
                return several
            shared = nodeid.startswith("tests/spark/") and not nodeid.startswith(OWN_SESSIONS)
            return f"spark {zlib.crc32(nodeid.partition('::')[0].encode()) % SPARK_SESSIONS}" if shared else nodeid

    return Groups(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage meanwhile, nor ever look again at what stays: each process has thirty thousand tests, and is busy with them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what others run; skip tests marked `spark` where there can be no session."""
    leave_out(config, items)
    for item in items:
        if item.get_closest_marker("spark"):
            if not item.get_closest_marker("timeout"):  # the first of them starts the session, on a busy machine not in seconds
                item.add_marker(pytest.mark.timeout(180))
            if missing := what_is_missing():
                item.add_marker(pytest.mark.skip(reason=f"Spark cannot run here: {missing}"))
