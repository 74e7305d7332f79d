"""A local Spark session for the examples: small, quiet, and not there for long.

A machine that runs the example may lack Java or PySpark; that is found out here, before anything else starts, and said in one line.
What Spark, its JVM and its Python processes write to the terminal goes to a file instead: a task that is killed on purpose fills
pages, and none of it is for the reader of the example.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["NoSpark", "ask", "java_problem", "require_spark", "spark_session"]

T = TypeVar("T")
_ROOT = Path(__file__).resolve().parents[2]
_JAVA = 17  # the oldest that Spark 4 runs on
_TRIES = 4  # of a task, as on a cluster; a local session would fail a job at its first failing task
_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    # A JVM that lives for a minute gains nothing from the slow, thorough compiler, and shares two cores with Redis and the workers.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


class NoSpark(RuntimeError):
    """This machine cannot run Spark; the message says what is missing."""


def require_spark() -> None:
    """See that Spark can run here.

    Raises:
        NoSpark: PySpark or a Java that can run it is missing.
    """
    if find_spec("pyspark") is None:
        raise NoSpark("PySpark is not installed (pip install 'command-bus[spark]')")
    if (problem := java_problem()) is not None:
        raise NoSpark(problem)


@contextmanager
def spark_session(name: str, log: Path, *, partitions: int, settings: dict[str, str] | None = None) -> Generator[SparkSession]:
    """Open a session on two threads of this machine, and stop it at the end.

    Args:
        name: Of the application.
        log: Where everything goes that Spark would write to the terminal.
        partitions: Of a shuffle.
        settings: Spark's, added to the example's own.

    """
    from pyspark.sql import SparkSession

    # Executors would take the first `python3` on PATH, and would not find the example.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    builder = SparkSession.builder.master(f"local[2,{_TRIES}]").appName(name)
    for key, value in {**_QUIET, "spark.sql.shuffle.partitions": str(partitions), **(settings or {})}.items():
        builder = builder.config(key, value)
    log.parent.mkdir(parents=True, exist_ok=True)
    with _stderr_to(log):
        spark = builder.getOrCreate()
    # Spark takes Ctrl-C for itself. The example wants it as any program gets it: it cancels Spark's jobs itself.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield spark
    finally:
        spark.stop()


async def ask(spark: SparkSession, function: Callable[..., T], *arguments: object) -> T:
    """Call what asks Spark and blocks, in a thread. Cancelled, it cancels Spark's jobs: else the thread, and this process, go on."""

    def work() -> T:
        # Spark looks for data sources in the session of the thread; making a DataFrame gives a new thread its session.
        spark.createDataFrame([], "nothing INT")
        return function(*arguments)

    try:
        return await asyncio.to_thread(work)
    except asyncio.CancelledError:
        spark.sparkContext.cancelAllJobs()
        raise


def java_problem() -> str | None:
    """Return why Spark finds no Java, or None if it does. It looks where Spark looks: in JAVA_HOME, else on PATH."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    wanted = f"Spark needs Java {_JAVA} or later"
    if java is None:
        return f"{wanted}: none is on PATH and JAVA_HOME is not set"
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return f"{wanted}: {java} does not run" + (" (JAVA_HOME names it)" if home else "")
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    if version is None or int(version[1]) < _JAVA:
        return f"{wanted}: {java} is " + (f"Java {version[1]}" if version else "something else")
    return None


@contextmanager
def _stderr_to(log: Path) -> Generator[None]:
    """Point the process's standard error to the file; programs started in the block keep it."""
    kept = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
