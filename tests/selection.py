"""Selection of the tests of a run, and its report of what was left out.

`make test` leaves out what is marked `slow`, and runs a test of the conformance suite on some of the servers; `make test-all` runs everything
everywhere.

COMMAND_BUS_TEST_SERVERS names the servers: `memory,valkey` runs each test on both, `memory|valkey` on one of them, in turn, `all` on every one.
By default each test runs on one single server, one of twelve in memory as well, and one of twelve on Sentinel or Cluster.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import pytest

from command_bus.embedded import find_server_binary
from command_bus.errors import CommandBusError
from scripts.redis62 import BINARY as REDIS_62

__all__ = ["SERVERS", "choices", "quick", "turn"]

ALL = "memory,valkey,redis,redis62,sentinel,cluster"
_NOWHERE = "nowhere"
IN_TURN = f"memory{11 * f'|{_NOWHERE}'},valkey|redis|redis62,sentinel|cluster{22 * f'|{_NOWHERE}'}"
_LEFT_OUT = pytest.StashKey[Counter[str]]()


def choices(text: str) -> list[list[str]]:
    """Return the groups of servers that a text names: a test runs on one server of each."""
    return [group.split("|") for group in (ALL if text == "all" else text).split(",")]


def turn(group: Sequence[str], test: str, here: Callable[[str], bool]) -> str:
    """Return the server of a group that a test runs on: always the same on one machine, and another for another test."""
    present = [server for server in group if here(server)] or list(group)
    return present[zlib.crc32(f"{group[0]} {test}".encode()) % len(present)]


def quick(values: Iterable[Any], chosen: Iterable[Any]) -> list[Any]:
    """Return all values as parameters of a test; `make test` runs the chosen ones, `make test-all` the others too."""
    some = set(chosen)
    return [value if value in some else pytest.param(value, marks=pytest.mark.slow) for value in values]


GROUPS = choices(os.environ.get("COMMAND_BUS_TEST_SERVERS", IN_TURN))
SERVERS = [server for group in GROUPS for server in group if server != _NOWHERE]


@cache  # each process of pytest-xdist asks a quarter of a million times
def _is_here(server: str) -> bool:
    if server == "redis62":
        return REDIS_62.exists()
    if server == "valkey":
        try:
            return find_server_binary().exists()
        except CommandBusError:
            return False
    return server in ("memory", _NOWHERE) or shutil.which("redis-server") is not None


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect conformance tests for servers whose turn it is not, unless they are named with their server."""
    if any("[" in argument for argument in config.args):
        return
    others = [item for item in items if not _is_its_turn(item)]
    if others:
        left = set(map(id, others))
        items[:] = [item for item in items if id(item) not in left]
        config.hook.pytest_deselected(items=others)


def _is_its_turn(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    server = call.params.get("sandbox") if call is not None else None
    group = next((group for group in GROUPS if server in group), None)
    if group is None or call is None:
        return True
    name, _, parameters = item.nodeid.partition("[")
    rest = [part for part in parameters.rstrip("]").split("-") if part != server]
    return bool(server == turn(group, "-".join([name, *rest]), _is_here))


# Tests left out are reported at the end of the run, also by the processes of pytest-xdist.


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Count tests left out because they are slow or because of their server, not those excluded with -k."""
    for item in items:
        found = item.config.stash.setdefault(_LEFT_OUT, Counter[str]())
        if item.get_closest_marker("slow"):
            found[item.nodeid.partition("[")[0].replace("::", " ", 1).replace("::", ".")] += 1
        elif not _is_its_turn(item):
            found[""] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand the counts to the process that reports."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = dict(session.config.stash.get(_LEFT_OUT, None) or {})


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_testnodedown(node: Any) -> None:
    """Take them: every process leaves out the same."""
    counted = getattr(node, "workeroutput", {}).get("left_out")
    if counted is not None:
        node.config.stash[_LEFT_OUT] = Counter[str](counted)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name what was left out."""
    found = config.stash.get(_LEFT_OUT, None) or Counter[str]()
    elsewhere = found.pop("", 0)
    if not found and not elsewhere:
        return
    terminalreporter.section("left out; `make test-all` runs it")
    for name, count in sorted(found.items()):
        terminalreporter.line(f"{name}{f' ({count})' if count > 1 else ''}")
    if elsewhere:
        terminalreporter.line(f"{elsewhere} runs of conformance tests on further servers")
