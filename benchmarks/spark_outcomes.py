"""The cost of reading outcomes: `python -m benchmarks.spark_outcomes [--rows N] [--entities N] [--rounds N] [--json FILE]`.

A DataFrame is dispatched and drained by two workers. Then its outcomes are read, in turns, so that changes of the machine's speed hit
all cases alike; medians are printed:

* `pages alone`: the tasks fetch the same pages from the server and drop them: what round trips and the server cost.
* `pages, decoded`: they also make Arrow batches of them, which Spark does not get: what decoding adds.
* `the view`: `spark.read…` into Spark's sink that does nothing.
* `counted by status`: the view with an aggregate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.spark import Move, moves, session
from command_bus import CommandBus, HandlerRegistry, SyncCommandBus
from command_bus.embedded import EmbeddedServer
from command_bus.spark import dispatch_dataframe
from command_bus.spark.options import ReadOptions
from command_bus.spark.reading.reader import BatchReader
from command_bus.spark.reading.tasks import ReadPlan, SpanPartition

NAMESPACE = "bench"
DISPATCH = "kept"
registry = HandlerRegistry()


@registry.handles(Move)
async def move(command: Move) -> None:
    """Do nothing."""


def bus() -> CommandBus:
    """Return a bus for the workers."""
    return CommandBus(registry=registry)


def work_off(url: str) -> float:
    """Let two workers drain the namespace, and return the seconds it took."""
    command = [sys.executable, "-m", "command_bus", "worker", f"{__name__ if __name__ != '__main__' else __spec__.name}:bus"]
    environment = {**os.environ, "COMMAND_BUS_URL": url, "COMMAND_BUS_NAMESPACE": NAMESPACE}
    began = time.perf_counter()
    workers = [subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)]
    with SyncCommandBus(url, namespace=NAMESPACE) as bus:
        while bus.stats().depth:
            assert all(worker.poll() is None for worker in workers), "a worker ended by itself"
            time.sleep(0.5)
    seconds = time.perf_counter() - began
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.wait()
    return seconds


def fetching(plan: ReadPlan, *, decoded: bool) -> tuple[int, Callable[[Iterator[Any]], Iterator[Any]]]:
    """Return the number of the view's tasks, and a function that does their part of the work outside of Spark's data source."""
    import pyarrow as pa
    from pyspark import TaskContext

    parts = BatchReader(plan).partitions()

    def fetch(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        part = parts[context.partitionId()]
        assert isinstance(part, SpanPartition)
        for _ in batches:
            pass
        yield pa.record_batch({"rows": [sum(_sizes(plan, part, decoded=decoded))]})

    return len(parts), fetch


def _sizes(plan: ReadPlan, part: SpanPartition, *, decoded: bool) -> Iterator[int]:
    if decoded:
        yield from (batch.num_rows for batch in plan.batches(part))
        return
    outcomes = plan.connection.transport.bulk.outcomes
    for span in part.spans:
        after = span.after
        while after != span.until:
            ids, _ = plan.connection.wait(outcomes.page(span.name, span.shard, after, span.until, plan.options.page))
            after = ids[-1].decode()
            yield len(ids)


def cases(spark: SparkSession, url: str, rows: int) -> dict[str, Callable[[], object]]:
    """Return the cases by name; each reads all outcomes."""
    view = spark.read.format("command_bus").options(url=url, namespace=NAMESPACE, view="outcomes", dispatchId=DISPATCH)
    plan = ReadPlan.build(ReadOptions(view="outcomes", url=url, namespace=NAMESPACE, dispatch_id=DISPATCH))

    def fetched(*, decoded: bool) -> None:
        tasks, fetch = fetching(plan, decoded=decoded)
        counted = spark.range(0, tasks, 1, tasks).mapInArrow(fetch, "rows long").collect()
        assert sum(row.rows for row in counted) == rows

    return {
        "pages alone": lambda: fetched(decoded=False),
        "pages, decoded into Arrow": lambda: fetched(decoded=True),
        "the view": lambda: view.load().write.format("noop").mode("overwrite").save(),
        "the view, counted by status": lambda: view.load().groupBy("status").count().collect(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark_outcomes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--entities", type=int, default=4_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = arguments.rows
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer.start(tcp=True) as server:
        spark = session(folder)
        report = dispatch_dataframe(
            moves(spark, rows, arguments.entities), Move, key=["tail", "seq"], order_by="seq", dispatch_id=DISPATCH,
            url=server.url, namespace=NAMESPACE, outcomes="1 day",
        )  # fmt: skip
        print(report, file=sys.stderr)
        print(f"worked off in {work_off(server.url):.1f} s", file=sys.stderr)
        for number in range(arguments.rounds + 1):
            for name, case in cases(spark, server.url, rows).items():
                began = time.perf_counter()
                case()
                if number:  # in the first round the JVM compiles what is hot
                    seconds.setdefault(name, []).append(time.perf_counter() - began)
            print(f"round {number} of {arguments.rounds} done", file=sys.stderr)
        spark.stop()
    results = [
        {"case": name, "rows_per_s": round(rows / statistics.median(each)), "seconds": round(statistics.median(each), 2)}
        for name, each in seconds.items()
    ]
    for result in results:
        print(f"{result['case']:30} {result['rows_per_s']:>9,} outcomes/s   {result['seconds']} s")
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows, "results": results}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
