"""Streaming queries into commands: a repeated micro-batch changes nothing, after whatever crash."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from command_bus import HandlerRegistry
from command_bus.spark import command_id_of, dispatch_batch_writer
from tests.spark.conftest import ROOT
from tests.spark.stream_app import MOVES, arrivals, start
from tests.spark.trucks import Move, Namespace, until, working

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

TRUCKS, EACH = 10, 20  # of one file


class Port:
    """A folder in which files arrive, and a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "arrivals"
        self.folder.mkdir()
        self.checkpoint = folder / "checkpoint"
        self.files = 0

    def arrive(self, files: int, *, backwards: bool = False) -> None:
        """Write the next numbers of all trucks."""
        for _ in range(files):
            numbers = range(self.files * EACH, (self.files + 1) * EACH)
            rows = [{"truck": f"t{truck}", "seq": seq, "load": 1.0} for seq in numbers for truck in range(TRUCKS)]
            file = self.folder / f"{self.files}.json"
            file.write_text("\n".join(map(json.dumps, reversed(rows) if backwards else rows)))
            os.utime(file, (1e9 + self.files, 1e9 + self.files))  # they are read in the order of their times
            self.files += 1

    def forget_last_commit(self) -> int:
        """Remove the last commit, as if the query had crashed before it; return its number."""
        last = max(int(file.name) for file in (self.checkpoint / "commits").iterdir() if file.name.isdecimal())
        for file in (self.checkpoint / "commits").glob(f"*{last}*"):
            file.unlink()
        return last

    @property
    def expected(self) -> dict[str, list[int]]:
        return {f"t{truck}": list(range(self.files * EACH)) for truck in range(TRUCKS)}

    def all_landed(self, namespace: Namespace) -> None:
        """Check that every row is in its mailbox once, in order."""
        assert namespace.seqs() == self.expected
        ids = [each.command_id for each in namespace.landed()]
        assert sorted(ids) == sorted(command_id_of([truck, str(seq)]) for truck, seqs in self.expected.items() for seq in seqs)
        assert namespace.depth() == len(ids)


@pytest.fixture
def port(tmp_path: Path) -> Port:
    return Port(tmp_path)


def finish(query: StreamingQuery) -> list[int]:
    """Run a query to its end, and return the numbers of its micro-batches that had rows."""
    assert query.awaitTermination(60)
    return [progress.batchId for progress in query.recentProgress if progress.numInputRows]


def dispatches(spark: SparkSession, namespace: Namespace) -> list[tuple[Any, ...]]:
    rows = spark.read.format("command_bus").options(**namespace.options, view="dispatches").load()
    return [tuple(row) for row in rows.select("dispatch_id", "state", "version", "added").collect()]


@pytest.mark.slow
def test_a_replayed_micro_batch_adds_nothing(spark: SparkSession, namespace: Namespace, port: Port) -> None:
    port.arrive(2)
    query = start(arrivals(spark, port.folder), namespace, port.checkpoint)
    assert finish(query) == [0, 1]
    port.all_landed(namespace)
    assert dispatches(spark, namespace) == [(f"stream-{query.id}", "committed", 1, 400)]
    assert port.forget_last_commit() == 1
    port.arrive(1)
    assert finish(start(arrivals(spark, port.folder), namespace, port.checkpoint)) == [1, 2]
    port.all_landed(namespace)
    registry, seen = HandlerRegistry(), list[tuple[str, int]]()

    @registry.handles(Move)
    async def move(command: Move) -> int:
        seen.append((str(command.truck), command.seq))
        return 0

    with working(namespace, registry):
        until(lambda: len(seen) == 600)
    assert port.forget_last_commit() == 2
    assert finish(start(arrivals(spark, port.folder), namespace, port.checkpoint)) == [2]
    assert namespace.depth() == 0  # though all had been settled and gone
    assert dispatches(spark, namespace) == [(f"stream-{query.id}", "committed", 2, 600)]


@pytest.mark.slow
def test_a_killed_query_continues_from_its_checkpoint(spark: SparkSession, namespace: Namespace, port: Port) -> None:
    port.arrive(3)
    arguments = [namespace.url, namespace.name, str(port.folder), str(port.checkpoint), json.dumps({"maxBacklog": "300"})]
    app = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.stream_app", *arguments],
        cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until(lambda: namespace.depth() == 300 or app.poll() is not None, 100)
    finally:
        os.killpg(app.pid, signal.SIGKILL)  # the driver and its JVM, amid the second of three micro-batches
        app.wait()
    assert namespace.depth() == 300
    assert [state for _, state, version, _ in dispatches(spark, namespace) if version == 0] == ["open"]
    assert finish(start(arrivals(spark, port.folder), namespace, port.checkpoint)) == [1, 2]
    port.all_landed(namespace)


@pytest.mark.slow
def test_foreach_batch_replays_add_nothing(spark: SparkSession, namespace: Namespace, port: Port) -> None:
    write = dispatch_batch_writer(
        Move, dispatch_id="trucks", key=["truck", "seq"], order_by="seq", partitions=2, **namespace.options
    )

    def write_and_fail(batch: DataFrame, number: int) -> None:
        write(batch, number)
        if number == 1:
            raise RuntimeError("after the write")

    def run(function: Any, checkpoint: Path = port.checkpoint) -> StreamingQuery:
        rows = spark.readStream.schema(MOVES).option("maxFilesPerTrigger", 1).json(str(port.folder))
        stream = rows.writeStream.foreachBatch(function).option("checkpointLocation", str(checkpoint))
        return stream.trigger(availableNow=True).start()

    port.arrive(3, backwards=True)
    with pytest.raises(StreamingQueryException, match="after the write"):
        finish(run(write_and_fail))
    assert namespace.depth() == 400
    assert finish(run(write)) == [1, 2]
    port.all_landed(namespace)
    assert dispatches(spark, namespace) == [("trucks", "committed", 2, 600)]
    with pytest.raises(StreamingQueryException, match="belongs to another writer"):  # whose batches 0 … 2 would count as done
        finish(run(write, port.checkpoint.with_name("another")))
    port.all_landed(namespace)


@pytest.mark.slow
def test_two_queries_cannot_share_a_dispatch(spark: SparkSession, namespace: Namespace, port: Port) -> None:
    port.arrive(1)
    rows = arrivals(spark, port.folder)
    assert finish(start(rows, namespace, port.checkpoint, dispatchId="mine")) == [0]
    with pytest.raises(StreamingQueryException) as caught:
        finish(start(rows, namespace, port.checkpoint.with_name("another"), dispatchId="mine"))
    text = str(caught.value)
    assert (
        "DispatchConflict: dispatch 'mine' belongs to another writer (a streaming query, say): give this one an id of its own"
        in text
    )
    port.all_landed(namespace)
