"""Imports of the program: most of a command's time is imports, so each command loads only its own modules."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("typer")

from command_bus import CommandBus, HandlerRegistry
from command_bus.embedded import EmbeddedServer
from tests.selection import quick

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]

# Of extras, and large: an operator's command needs none of them.
NEVER = {
    "dependency_injector", "fakeredis", "fastapi", "lupa", "matplotlib", "numpy", "opentelemetry", "pandas", "prometheus_client", "pyarrow",
    "pyspark", "pytest", "rich", "starlette", "uvloop",
}  # fmt: skip
# Of the package: what runs handlers, and what serves other purposes.
NOT_OURS = re.compile(r"command_bus\.(worker\.(worker|entity_run|executor|lifecycle|threads)|spark|telemetry|testing|sync)\b")
HELP = {"app", "lazy_commands", "options", "streams", "terminal"}
SHARED = HELP | {"commands", "completion", "connection", "output"}
LOADS = {
    ("stats",): {"commands.inspect"},
    ("stats", "--json"): {"commands.inspect"},
    ("entities",): {"commands.inspect"},
    ("workers",): {"commands.inspect"},
    ("introspect",): {"commands.inspect"},
    ("top", "--once"): {"commands.inspect", "commands.top"},
    ("entity", "account:a-1"): {"commands.entity", "commands.entity_view", "times"},
    ("pause", "account"): {"commands.control", "times"},
    ("resume", "account"): {"commands.control", "times"},
    ("dlq", "list"): {"commands.dlq", "times"},
    ("recount",): {"commands.control", "times"},
    ("audit",): {"commands.audit"},
    ("events", "list"): {"commands.events"},
    ("doctor",): {
        "commands.doctor",
        "doctor",
        "doctor.diagnosis",
        "doctor.stored_checks",
    },
    ("types", "list"): {"commands.types"},
}


INSPECTORS = {("stats", "--json"), ("entities",), ("workers",), ("introspect",)}
"""Those that load what `stats` loads."""


@pytest.fixture
async def environment(server: EmbeddedServer) -> AsyncIterator[dict[str, str]]:
    namespace = f"imports-{secrets.token_hex(4)}"
    async with CommandBus(server.url, namespace=namespace, registry=HandlerRegistry()):
        yield {**os.environ, "PYTHONPATH": str(ROOT), "COMMAND_BUS_URL": server.url, "COMMAND_BUS_NAMESPACE": namespace}


def loaded(environment: dict[str, str], *arguments: str) -> set[str]:
    """Run the program in a process and return the modules that it imported."""
    code = (
        "import sys\nfrom command_bus.cli import main\n"
        f"try:\n    main({list(arguments)!r})\nexcept SystemExit as stop:\n    assert stop.code in (0, 1, None), stop.code\n"
        "print('LOADED', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=30)
    return set(done.stdout.rpartition("LOADED")[2].split())


@pytest.mark.parametrize("arguments", quick(LOADS, LOADS.keys() - INSPECTORS), ids=" ".join)
async def test_a_command_loads_only_its_own_modules(environment: dict[str, str], arguments: tuple[str, ...]) -> None:
    found = loaded(environment, *arguments)
    assert "command_bus.bus" in found
    assert not {name.partition(".")[0] for name in found} & NEVER
    assert not sorted(filter(NOT_OURS.match, found))
    ours = {name.removeprefix("command_bus.cli.") for name in found if name.startswith("command_bus.cli.")}
    assert ours <= SHARED | LOADS[arguments]


async def test_help_loads_no_command(environment: dict[str, str]) -> None:
    found = loaded(environment, "--help")
    assert {name for name in found if name.startswith("command_bus.cli.")} == {f"command_bus.cli.{name}" for name in HELP}


async def test_applications_can_import_everything(environment: dict[str, str], tmp_path: Path) -> None:
    """Only the program itself leaves modules out for speed."""
    (tmp_path / "traced_shop.py").write_text(
        "import opentelemetry.context\nfrom command_bus import CommandBus\nbus = CommandBus()\n"
    )
    environment = {**environment, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    found = loaded(environment, "stats", "--app", "traced_shop")
    assert {"traced_shop", "opentelemetry.context"} <= found
