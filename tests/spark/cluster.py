"""A standalone cluster on the loopback interface: Spark's own master and workers, from the pip package.

The package has no start scripts, and its `spark-class` needs its own folder in the environment. All processes run in groups of their
own and end with the `with` block; Spark's Python processes end with their executors. Two workers on two addresses (127.0.0.1,
127.0.0.2) count as two hosts, without which Spark never speculates.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.spark.conftest import ROOT, SETTINGS
from tests.spark.presence import what_is_missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Cluster", "Footprint", "executors", "processes_below", "session"]

PATIENCE = 120.0
HOST = "127.0.0.1"


class Cluster:
    """A master, and one worker per host.

    Args:
        folder: The folder for logs and work.
        hosts: The address of each worker.
        cores: Cores of each worker.
        memory: Memory of each worker, as Spark writes it.
    """

    def __init__(self, folder: Path, hosts: Sequence[str] = (HOST, HOST), *, cores: int = 1, memory: str = "2g") -> None:
        self.folder = folder
        self.url = ""
        self._hosts, self._cores, self._memory = hosts, cores, memory
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        missing = what_is_missing()
        if missing is not None:
            raise SystemExit(f"Spark cannot run here: {missing}")
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pids(self) -> list[int]:
        """Process ids of the master and the workers."""
        return [process.pid for process in self._running]

    def stop(self) -> None:
        """Stop all processes."""
        for process in reversed(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in reversed(self._running):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _start(self) -> None:
        where = ["--port", "0", "--webui-port", "0"]
        log = self._run("master", "org.apache.spark.deploy.master.Master", "--host", HOST, *where)
        self._until(log, "I have been elected leader")
        found = re.search(r"Starting Spark master at (spark://\S+)", log.read_text())
        assert found is not None, log.read_text()
        self.url = found[1]
        size = ["--cores", str(self._cores), "--memory", self._memory, "--work-dir", str(self.folder / "work")]
        logs = [
            self._run(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", self.url, "--host", host, *where, *size)
            for number, host in enumerate(self._hosts)
        ]
        for log in logs:
            self._until(log, "Successfully registered")

    def _run(self, name: str, main: str, *arguments: str) -> Path:
        import pyspark

        home = Path(pyspark.__file__).parent
        log = self.folder / f"{name}.log"
        environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": HOST, "SPARK_DAEMON_MEMORY": "256m"}
        # The job decides what an executor may import, not the environment that started the cluster.
        for variable in ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            environment.pop(variable, None)
        with log.open("wb") as output:
            process = subprocess.Popen(
                [home / "bin" / "spark-class", main, *arguments], cwd=self.folder, env=environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        self._running.append(process)
        return log

    def _until(self, log: Path, said: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while said not in log.read_text():
            ended = [process.args for process in self._running if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise RuntimeError(f"{log.name} did not say {said!r} in time: {log.read_text()[-2000:]}")
            time.sleep(0.05)


@contextlib.contextmanager
def session(cluster: Cluster, name: str, **settings: str) -> Iterator[SparkSession]:
    """Start a session on the cluster, whose executors run this Python and can import from this checkout."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(ROOT)  # of the planning processes on the driver
    given = {
        **SETTINGS,
        "spark.executor.memory": "1g",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.local.dir": str(cluster.folder / "local"),
        "spark.sql.warehouse.dir": str(cluster.folder / "warehouse"),
        **settings,
    }
    builder = SparkSession.builder.master(cluster.url).appName(name)
    for key, value in given.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


def processes_below(pids: Sequence[int]) -> dict[int, str]:
    """Return all descendants of these processes, with their command lines."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found: dict[int, str] = {}
    known = set(pids)
    while fresh := {pid for pid, parent in parents.items() if parent in known} - known:
        known |= fresh
        for pid in fresh:
            with contextlib.suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return found


def executors(cluster: Cluster) -> list[int]:
    """Return the JVMs that run tasks."""
    return [pid for pid, line in processes_below(cluster.pids).items() if "CoarseGrainedExecutorBackend" in line]


class Footprint(threading.Thread):
    """Context manager that samples the memory of the executors' processes, and keeps the peak of each."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(name="footprint", daemon=True)
        self._cluster = cluster
        self._over = threading.Event()
        self._peaks: dict[str, dict[int, int]] = {"python": {}, "java": {}}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        while not self._over.wait(0.2):
            for pid, line in processes_below(self._cluster.pids).items():
                kind = "python" if "pyspark" in line and "java" not in line.partition(" ")[0] else "java"
                with contextlib.suppress(OSError, AttributeError):
                    status = Path(f"/proc/{pid}/status").read_text()
                    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
                    if peak is not None and ("CoarseGrained" in line or kind == "python"):
                        self._peaks[kind][pid] = max(self._peaks[kind].get(pid, 0), int(peak[1]))

    def megabytes(self, kind: str) -> list[int]:
        """Return the peak of each process (`python` or `java`), the greatest first."""
        return sorted((kilobytes // 1024 for kilobytes in self._peaks[kind].values()), reverse=True)


def main(use: Callable[[Cluster], None]) -> None:
    """Run a cluster by hand, until Ctrl-C."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder)) as cluster:
        use(cluster)


if __name__ == "__main__":

    def _wait(cluster: Cluster) -> None:
        print(f"{cluster.url} with two workers; logs in {cluster.folder}; Ctrl-C ends it", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()

    main(_wait)
