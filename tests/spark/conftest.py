"""One Spark session and one server for all tests of this folder. If Spark cannot run, each file is reported as skipped."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from command_bus.embedded import EmbeddedServer
from tests.spark.presence import what_is_missing
from tests.spark.trucks import Namespace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {
    # The session starts in half the time, and runs of a second gain nothing from the slow, thorough compiler.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    # A batch that does not match its schema gives a clear error, instead of failing deep within the JVM.
    "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
}


class Unavailable(pytest.Module):
    """A file that is not imported, because something is missing: one test, which tests/conftest.py marks as skipped."""

    def collect(self):
        yield pytest.Function.from_parent(self, name="all_tests", callobj=lambda: None)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return Unavailable.from_parent(parent, path=module_path) if what_is_missing() else None


@pytest.hookimpl(tryfirst=True)  # before the hook of tests/conftest.py, which sees to what is marked
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("spark")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start a local session on two threads, in which a task may fail once. All its files go into temporary folders.

    Executors run this Python and can import `command_bus`, `examples` and `tests`. A test that changes settings restores them.
    """
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master("local[2,2]").appName("tests")
    for name, value in {
        **SETTINGS,
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }.items():
        builder = builder.config(name, value)
    with pytest.MonkeyPatch.context() as patch:  # the JVM hands its environment on to executors; other tests keep theirs
        patch.setenv("PYSPARK_PYTHON", sys.executable)  # else executors run the first python3 on PATH
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """Start a real server, at `server.url` on a port of this machine: any process can reach it, whatever its user and folder."""
    with EmbeddedServer.start(tcp=True) as running:
        yield running


@pytest.fixture
def namespace(server: EmbeddedServer) -> Namespace:
    return Namespace(server.url)


@pytest.fixture
def four_shards(server: EmbeddedServer) -> Namespace:
    from tests.spark.outcomes import FourShards  # needs PySpark

    namespace = FourShards(server.url)

    async def choose() -> None:
        async with namespace.bus():
            pass

    asyncio.run(choose())
    return namespace
