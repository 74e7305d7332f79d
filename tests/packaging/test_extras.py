"""Each extra alone: an environment of what it brings and nothing else, without the zone files of the system, runs a command and its own part.

The developers' environment has everything. So what an extra forgets to name is found here, not by its users. Nothing is installed: links
to the files of the distributions that are here make such an environment in a moment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from command_bus.embedded import EmbeddedServer
from tests.selection import quick

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OPTIONAL = PROJECT["optional-dependencies"]
OURS = "command-bus"

COMMAND = """
import asyncio, sys
from command_bus import Command, CommandBus, EntityId, HandlerRegistry
class Take(Command[int], entity="shelf"):
    shelf: EntityId
registry = HandlerRegistry()
@registry.handles(Take)
async def take(command: Take) -> int:
    return 7
async def main():
    async with CommandBus(sys.argv[1], namespace=sys.argv[2], registry=registry) as bus, bus.worker():
        assert await bus.call(Take(shelf="a")) == 7
asyncio.run(main())
"""

PROGRAMS = {
    "": """
        from command_bus import cron, every
        from command_bus.errors import MissingExtra
        assert every(30)
        try:
            cron("0 2 * * *")
        except MissingExtra:
            pass
        """,
    "export": """
        import asyncio, sys, tempfile
        from command_bus import CommandBus
        from command_bus.export import Export
        async def main():
            async with CommandBus(sys.argv[1], namespace=sys.argv[2]) as bus:
                with tempfile.TemporaryDirectory() as folder:
                    assert (await Export(bus, folder).run()).gaps == []
        asyncio.run(main())
        """,
    "di": """
        from command_bus.container import Container
        Container().bus()
        """,
    "cli": """
        import sys
        from command_bus.cli import main
        sys.argv = ["command-bus", "stats", "--url", sys.argv[1], "--namespace", sys.argv[2]]
        main()
        """,
    "embedded": """
        from command_bus.embedded import EmbeddedServer
        with EmbeddedServer.start():
            pass
        """,
    "fastapi": """
        from fastapi import FastAPI
        from command_bus import CommandBus
        from command_bus.integrations.starlette import bus_lifespan
        FastAPI(lifespan=bus_lifespan(CommandBus(sys.argv[1])))
        """,
    "fast": """
        import uvloop
        uvloop.run(main())
        """,
    "nats": """
        from command_bus.notifications.nats import NatsNotifier
        import nats
        NatsNotifier(lambda: nats.connect("nats://127.0.0.1:1"))
        """,
    "otel": """
        import command_bus.telemetry.tracing
        """,
    "prometheus": """
        from command_bus.telemetry.metrics import PrometheusMetrics
        PrometheusMetrics()
        """,
    "schedules": """
        from command_bus import cron
        assert cron("0 2 * * *") and cron("0 2 * * *", tz="Europe/Berlin").after(0, 0)
        """,
    "sql": """
        from sqlalchemy import create_engine
        from command_bus import CommandContext
        from command_bus.sql import Inbox, metadata
        engine = create_engine("sqlite://")
        metadata.create_all(engine)
        with engine.connect() as connection, Inbox().once(connection, CommandContext(command_id="c-1")) as once:
            assert once.remember(1) == 1 and not once.repeated
        """,
    "webhooks": """
        from command_bus import CommandBus
        from command_bus.webhooks import Webhooks, new_secret
        Webhooks(CommandBus(sys.argv[1])), new_secret()
        """,
    "dashboard": """
        import uvicorn
        from command_bus import CommandBus
        from command_bus.dashboard import dashboard, loopback
        dashboard(CommandBus(sys.argv[1]), users=loopback("viewer"))
        """,
    "gateway": """
        import uvicorn
        from command_bus import CommandBus
        from command_bus.gateway import Grant, gateway, new_token, tokens
        gateway(CommandBus(sys.argv[1]), allow=tokens({"ci": Grant(new_token(), ("look",))}))
        """,
    "spark": """
        import pandas
        from command_bus.spark import PartitionDispatcher, Target, command_id, dispatch_dataframe, reconcile
        import command_bus.spark.reconciliation.page
        """,
    "testing": """
        import pytest, lupa
        from command_bus.testing import TestBus
        import command_bus.testing.plugin
        """,
}
"""A program for each extra, behind the one that runs a command. The first is for none."""


def requirements(texts: Iterable[str], extras: Iterable[str] = ()) -> set[tuple[str, str]]:
    """Return distributions, each with an extra or none, that requirements need where the program runs."""
    found: set[tuple[str, str]] = set()
    for text in texts:
        each = Requirement(text)
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras or ("",)):
            found |= {(each.name, extra) for extra in ("", *each.extras)}
    return found


def closure(extra: str) -> set[str]:
    """Return the names of all distributions that an extra brings."""
    done: set[tuple[str, str]] = set()
    todo = {(OURS, ""), (OURS, extra)}
    while todo - done:
        each = (todo - done).pop()
        done.add(each)
        name, wanted = each
        ours = OPTIONAL.get(wanted, PROJECT["dependencies"])
        todo |= requirements(ours if name == OURS else distribution(name).requires or (), (wanted,))
    return {name for name, _ in done} - {OURS}


def environment(folder: Path, extra: str) -> Path:
    """Return a folder of links to what an extra brings, and to this project."""
    for name in closure(extra):
        found = distribution(name)
        for file in found.files or ():
            if file.parts[0] in ("..", "__pycache__") or file.suffix == ".pyc":
                continue
            place = Path(str(found.locate_file(file)))
            site = place.parents[len(file.parts) - 1]
            packages = [site / each for each in reversed(file.parents) if (site / each / "__init__.py").exists()]
            whole = (packages or [place])[
                0
            ]  # a package with what is compiled of it; distributions share those without an __init__
            link = folder / whole.relative_to(site)
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.exists():
                link.symlink_to(whole.resolve())
    (folder / "command_bus").symlink_to(ROOT / "command_bus")
    about = folder / "command_bus-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {OURS}\nVersion: {PROJECT['version']}\n")
    return folder


@pytest.fixture(scope="module")
def url() -> Iterable[str]:
    with EmbeddedServer.start(tcp=True) as server:
        yield server.url


def test_each_extra_has_a_program() -> None:
    assert set(PROGRAMS) - {""} == set(OPTIONAL) - {"all", "demo", "demo-spark", "dev"}


@pytest.mark.parametrize("extra", quick(PROGRAMS, ["", "sql", "gateway", "prometheus"]))
def test_an_extra_needs_nothing_that_it_does_not_bring(tmp_path: Path, url: str, extra: str) -> None:
    try:
        place = environment(tmp_path, extra)
    except PackageNotFoundError as error:
        pytest.skip(f"{error} is not installed here")
    program = COMMAND + "\n".join(line.removeprefix("        ") for line in PROGRAMS[extra].splitlines())
    paths = f"import sys; sys.path[:] = [{str(place)!r}, *(each for each in sys.path if 'site-packages' not in each)]\n"
    variables = {"PATH": os.environ["PATH"], "PYTHONTZPATH": "", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", paths + program, url, f"extra-{extra}"],
        capture_output=True, text=True, timeout=50, env=variables, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
