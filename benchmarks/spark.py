"""The cost of the Spark pipeline: `python -m benchmarks.spark [--rows N] [--entities N] [--rounds N] [--json FILE] [--plot FILE]`.

Every case dispatches the same cached DataFrame (8 columns, about 120 bytes packed) to the same private server, in turns within one run, so
that changes of the machine's speed hit all of them alike; medians are printed. Two lower bounds are measured too:

* `foreachPartition`: redis-py pipelines of XADD in chunks of the same size, as written by hand. It guarantees nothing: no ids, no
  order, no dedup, no fence, no limit, no summary.
* `arrow, packed`: Arrow batches packed row by row and sent by a script that only does XADD: the cost without any service.

`full service` is `dispatch_dataframe` with its own choice of tasks: ids in the JVM, shuffle and sort, validation, dedup, fence, depth limits,
summary. Its rate is also printed as a ratio to those two, in the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgpack
import redis
from pydantic import Field
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from benchmarks.figures import figures_of
from benchmarks.judging import judged
from benchmarks.report import table_of_targets
from benchmarks.targets import BARE_ARROW, BY_HAND, FULL_SERVICE, SPARK
from command_bus import Command, EntityId
from command_bus.embedded import EmbeddedServer
from command_bus.spark import command_id, dispatch_dataframe
from command_bus.spark.options import WriteOptions
from command_bus.spark.target import Target
from command_bus.spark.writing.command_lookup import named_command
from command_bus.spark.writing.writer import WritePlan
from command_bus.transport.ports.bulk import Version

CHUNK = 500


class Move(Command[None], entity="aircraft", name="bench.move"):
    tail: EntityId
    seq: Annotated[int, Field(ge=0)]
    origin: Annotated[str, Field(max_length=3)]
    dest: Annotated[str, Field(max_length=3)]
    ts: int
    delay: int
    minutes: Annotated[int, Field(ge=0)]
    distance: Annotated[float, Field(ge=0)]


FIELDS = list(Move.model_fields)


def session(folder: str) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("command_bus benchmark")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.local.dir": folder,
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def moves(spark: SparkSession, rows: int, entities: int) -> DataFrame:
    """Return rows in the order of time, as in a log: those of each entity are spread over all of them."""
    number = F.col("id")
    frame = spark.range(0, rows, 1, 8).select(
        F.concat(F.lit("N"), F.lpad((number % entities).cast("string"), 6, "0")).alias("tail"),
        (number / entities).cast("long").alias("seq"),
        F.element_at(F.array(*map(F.lit, ("EWR", "JFK", "LGA"))), (number % 3 + 1).cast("int")).alias("origin"),
        F.element_at(F.array(*map(F.lit, ("ORD", "ATL", "SFO", "LAX"))), (number % 4 + 1).cast("int")).alias("dest"),
        (number * 60 + 1_357_000_000).alias("ts"),
        (number % 97 - 20).cast("int").alias("delay"),
        (number % 300).cast("int").alias("minutes"),
        (number % 2500).cast("double").alias("distance"),
    )
    return frame.cache()


def by_hand(url: str, name: str) -> Callable[[Iterator[Any]], None]:
    """Return a sender without any guarantee: the lower bound."""

    def send(rows: Iterator[Any]) -> None:
        client = redis.Redis.from_url(url)
        pipeline = client.pipeline(transaction=False)
        for row in rows:
            fields: Any = {"e": msgpack.packb(row.asDict())}
            pipeline.xadd(f"{name}:{row.tail}", fields)
            if len(pipeline) >= CHUNK:
                pipeline.execute()
        pipeline.execute()
        client.close()

    return send


BARE = """
for i = 1, #ARGV, 2 do redis.call('XADD', KEYS[tonumber(ARGV[i])], '*', 'e', ARGV[i + 1]) end
return #ARGV / 2
"""


def bare(url: str, name: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a sender that packs rows and calls a script once per chunk: the cost without any service."""
    import pyarrow as pa

    from command_bus.serialization.native import Packer

    def send(batches: Iterator[Any]) -> Iterator[Any]:
        client = redis.Redis.from_url(url)
        script = client.register_script(BARE)
        count = 0
        for batch in batches:
            pack = Packer(buf_size=1024).pack
            columns = [batch.column(field).to_pylist() for field in FIELDS]
            rows = [(row[0], pack(dict(zip(FIELDS, row, strict=True)))) for row in zip(*columns, strict=True)]
            for start in range(0, len(rows), CHUNK):
                boxes: dict[str, int] = {}
                args: list[Any] = []
                for tail, payload in rows[start : start + CHUNK]:
                    args += (boxes.setdefault(f"{name}:{tail}", len(boxes) + 1), payload)
                script(keys=list(boxes), args=args)
            count += batch.num_rows
        client.close()
        yield pa.record_batch({"rows": [count]})

    return send


def sender(url: str, columns: list[str]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a sender that does what a task of the data source does, without the commit."""
    import pyarrow as pa

    options = WriteOptions(command=named_command(Move), url=url, namespace="again", dispatch_id="again")
    plan = WritePlan(options, Target(url, "again"), tuple(columns))

    def send(batches: Iterator[Any]) -> Iterator[Any]:
        result = plan.run(batches, Version("again"))
        yield pa.record_batch({"added": [result.added], "duplicates": [result.duplicates]})

    return send


class Benchmark:
    """Runs the cases in turns."""

    def __init__(self, spark: SparkSession, url: str, frame: DataFrame, rows: int) -> None:
        self.spark, self.url, self.frame, self.rows = spark, url, frame, rows
        self.client = redis.Redis.from_url(url)
        self.seconds: dict[str, list[float]] = {}
        self.server_us: dict[str, list[float]] = {}

    def measure(self, name: str, work: Callable[[], Any]) -> Any:
        before = self._cpu()
        began = time.perf_counter()
        result = work()
        self.seconds.setdefault(name, []).append(time.perf_counter() - began)
        self.server_us.setdefault(name, []).append((self._cpu() - before) / self.rows * 1e6)
        return result

    def _cpu(self) -> float:
        info: Any = self.client.info("cpu")
        return float(info["used_cpu_sys"]) + float(info["used_cpu_user"])

    def round(self) -> None:
        self.client.flushall()
        self.measure(BY_HAND, lambda: self.frame.foreachPartition(by_hand(self.url, "hand")))
        self.client.flushall()
        arrow = self.frame.mapInArrow(bare(self.url, "bare"), "rows long")
        self.measure(BARE_ARROW, arrow.collect)
        self.client.flushall()
        full = self.measure(FULL_SERVICE, lambda: self._dispatch("full"))
        assert full.added == self.rows
        self.client.flushall()
        self.measure("full service, outcomes asked for", lambda: self._dispatch("kept", outcomes="1 day"))
        self.client.flushall()
        arranged = (
            self.frame.withColumn("command_id", command_id("tail", "seq")).repartition(8, "tail").sortWithinPartitions("seq")
        )
        task = sender(self.url, arranged.columns)
        assert self._counted(arranged, task) == (self.rows, 0)  # a job that failed before its commit
        assert self.measure("every row sent again: all duplicates", lambda: self._counted(arranged, task)) == (0, self.rows)

    @staticmethod
    def _counted(arranged: DataFrame, task: Any) -> tuple[int, int]:
        results = arranged.mapInArrow(task, "added long, duplicates long").collect()
        return sum(row.added for row in results), sum(row.duplicates for row in results)

    def _dispatch(self, name: str, **options: Any) -> Any:
        return dispatch_dataframe(
            self.frame, Move, key=["tail", "seq"], order_by="seq", dispatch_id=name, url=self.url, namespace="bench",
            batch_size=CHUNK, **options,
        )  # fmt: skip

    def results(self) -> list[dict[str, Any]]:
        return [
            {
                "case": name,
                "rows_per_s": round(self.rows / statistics.median(seconds)),
                "spread": [round(self.rows / max(seconds)), round(self.rows / min(seconds))],
                "server_us_per_row": round(statistics.median(self.server_us[name]), 2),
            }
            for name, seconds in self.seconds.items()
        ]


def plot(results: list[dict[str, Any]], path: Path, rows: int, entities: int) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 0.6 * len(results) + 1.2))
    names = [result["case"] for result in results][::-1]
    rates = [result["rows_per_s"] / 1000 for result in results][::-1]
    bars = axes.barh(names, rates, color=["#4c72b0" if "full" in name else "#b0b8c4" for name in names])
    axes.bar_label(bars, [f"{rate:,.0f}k/s" for rate in rates], padding=4)
    axes.set_xlim(0, max(rates) * 1.15)
    axes.set_xlabel("thousand rows a second, median")
    axes.set_title(
        f"{rows:,} rows, {entities:,} entities, local[2]: Spark, its Python workers and the server on two cores", fontsize=9
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--entities", type=int, default=4_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer.start() as server:
        spark = session(folder)
        frame = moves(spark, arguments.rows, arguments.entities)
        frame.count()
        benchmark = Benchmark(spark, server.url, frame, arguments.rows)
        for number in range(arguments.rounds + 1):
            benchmark.round()
            if number == 0:  # the first round warms up the JVM
                benchmark.seconds.clear()
                benchmark.server_us.clear()
            print(f"round {number} of {arguments.rounds} done", file=sys.stderr)
        results = benchmark.results()
        spark.stop()
    for result in results:
        low, high = result["spread"]
        print(
            f"{result['case']:48} {result['rows_per_s']:>9,}/s   ({low:,} to {high:,})   server {result['server_us_per_row']} µs a row"
        )
    rates = figures_of({result["case"]: [{"per_s": result["rows_per_s"]}] for result in results})
    print("\n".join(table_of_targets(judged(SPARK, rates, {}))))
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"rows": arguments.rows, "entities": arguments.entities, "results": results}, indent=2) + "\n"
        )
    if arguments.plot:
        plot(results, arguments.plot, arguments.rows, arguments.entities)
    return 0


if __name__ == "__main__":
    sys.exit(main())
