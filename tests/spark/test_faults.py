"""Tasks that die, repeated jobs, overlapping attempts: whatever Spark does twice, each row is one command, in order."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from command_bus import CommandBusError, DispatchFenced, HandlerRegistry
from command_bus.messages.outgoing import Envelope
from command_bus.spark import PartitionDispatcher, Target, command_id, command_id_of, dispatch_dataframe
from command_bus.spark.writing.writer import commit_dispatch
from command_bus.transport.ports.bulk import Opening, Version
from tests.spark.trucks import Move, Namespace, journeys, until, working

MOVE = f"{Move.__module__}:Move"
TRUCKS, EACH = 20, 50
ALL = {f"t{truck}": list(range(EACH)) for truck in range(TRUCKS)}
IDS = {command_id_of([truck, str(seq)]) for truck, seqs in ALL.items() for seq in seqs}


@pytest.fixture(autouse=True)
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Make batches small: else a task would have all of its rows in one, encoded before anything is sent."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "50")
    yield
    spark.conf.set(name, before or "10000")


def arranged(spark: SparkSession) -> DataFrame:
    """Return a thousand rows in two partitions, with ids, as `dispatch_dataframe` arranges them."""
    rows = journeys(spark, TRUCKS, EACH).withColumn("command_id", command_id("truck", "seq"))
    return rows.repartition(2, "truck").sortWithinPartitions("seq")


def write(rows: DataFrame, namespace: Namespace, **options: str) -> None:
    given = {**namespace.options, "command": MOVE, "dispatchId": "d", "batchSize": "20", **options}
    rows.write.format("command_bus").options(**given).mode("append").save()


def stumble(rows: DataFrame, namespace: Namespace, falls: Callable[[], bool]) -> DataFrame:
    """Return the same rows from a source that fails when half of a task's rows are through and some of them are in mailboxes.

    The write that follows is in the same task. Rows are large, because Spark passes them on 64 kB at a time.
    """
    fat = rows.withColumn("note", F.repeat("truck", 500))

    def through(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen = 0
        for batch in batches:
            if seen >= 250 and falls():
                until(lambda: namespace.depth() >= 100)
                raise RuntimeError("the source is broken")
            seen += batch.num_rows
            yield batch

    return fat.mapInArrow(through, fat.schema)


def first_time(folder: str) -> bool:
    """Return True for the first call of each partition, in whichever process."""
    context = TaskContext.get()
    try:
        Path(folder, f"fell-{0 if context is None else context.partitionId()}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def everything_once_and_in_order(namespace: Namespace) -> None:
    assert namespace.seqs() == ALL
    ids = [each.command_id for each in namespace.landed()]
    assert len(ids) == len(IDS) == namespace.depth()
    assert set(ids) == IDS


@pytest.mark.slow
def test_a_writer_killed_half_way_is_retried(spark: SparkSession, namespace: Namespace, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def command_of(row: dict[str, Any]) -> Move:
        if row["seq"] >= EACH // 2 and first_time(folder):
            os.kill(os.getpid(), signal.SIGKILL)  # the process that encodes and sends
        return Move(truck=row["truck"], seq=row["seq"])

    report = dispatch_dataframe(
        journeys(spark, TRUCKS, EACH), None, mapper=command_of, entity="truck", key=["truck", "seq"], order_by="seq",
        dispatch_id="d", partitions=2, batch_size=20, **namespace.options,
    )  # fmt: skip
    assert len(list(tmp_path.iterdir())) == 2  # both were killed
    assert (report.added, report.rows, report.duplicates) == (1000, 1000, 0)
    assert report.resent >= 300  # some hundred had landed before
    everything_once_and_in_order(namespace)


@pytest.mark.slow
def test_a_task_failed_half_way_is_retried(spark: SparkSession, namespace: Namespace, tmp_path: Path) -> None:
    folder = str(tmp_path)

    write(stumble(arranged(spark), namespace, lambda: first_time(folder)), namespace)
    assert len(list(tmp_path.iterdir())) == 2
    everything_once_and_in_order(namespace)


@pytest.mark.slow
def test_repeating_a_failed_job_completes_it(spark: SparkSession, namespace: Namespace, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    flag = str(broken)
    rows = stumble(arranged(spark), namespace, lambda: Path(flag).exists())
    with pytest.raises(PythonException, match="the source is broken"):
        write(rows, namespace)
    left = namespace.seqs()
    assert 100 <= sum(len(seqs) for seqs in left.values()) < 1000
    assert all(seqs == list(range(len(seqs))) for seqs in left.values())
    broken.unlink()
    write(rows, namespace)
    everything_once_and_in_order(namespace)
    write(rows, namespace)
    with pytest.raises(AnalysisException, match="DispatchConflict: dispatch 'd' was committed before"):
        write(rows.limit(5), namespace)  # not even the same rows: they would be lost without a word
    everything_once_and_in_order(namespace)
    again = dispatch_dataframe(
        arranged(spark).drop("command_id"), Move, key=["truck", "seq"], order_by="seq", dispatch_id="d", **namespace.options
    )
    assert (again.state, again.added) == ("already committed", 1000)


@pytest.mark.slow
def test_repeating_a_drained_job_adds_nothing(spark: SparkSession, namespace: Namespace) -> None:
    registry, seen = HandlerRegistry(), list[tuple[str, int]]()

    @registry.handles(Move)
    async def move(command: Move) -> int:
        seen.append((str(command.truck), command.seq))
        return 0

    with working(namespace, registry):
        for _ in range(2):  # open: nothing is committed, its commands are settled and gone
            with PartitionDispatcher(Target(**namespace.options), dispatch_id="d") as dispatcher:
                dispatcher.dispatch_batch(moves(25))
            until(lambda: len(seen) == 500)
        for _ in range(2):
            write(arranged(spark), namespace)
            until(lambda: len(seen) >= 1000)
    assert {truck: [seq for name, seq in seen if name == truck] for truck in ALL} == ALL
    assert len(seen) == 1000
    assert namespace.depth() == 0


def test_a_writer_adds_nothing_after_the_commit(namespace: Namespace) -> None:
    """A speculative loser or an executor taken for lost does not know that the dispatch is closed."""
    target, opening, version = Target(**namespace.options), Opening(), Version("d")
    zombie = PartitionDispatcher(target, dispatch_id="d", batch_size=20)
    zombie.open()
    zombie.dispatch_batch(moves(10))
    with PartitionDispatcher(target, dispatch_id="d") as winner:
        winner.dispatch_batch(moves(EACH))
    commit_dispatch(target, version, opening, [winner.result])
    assert (winner.result.added, winner.result.duplicates) == (800, 200)
    zombie.dispatch_batch(moves(EACH + 5))  # with rows that no other attempt has
    assert (zombie.result.added, zombie.result.done) == (200, True)
    late = PartitionDispatcher(target, dispatch_id="d")
    late.open()
    assert late.result.done
    assert late.dispatch_batch(moves(EACH + 5)).added == 0
    everything_once_and_in_order(namespace)
    forgotten = PartitionDispatcher(target, dispatch_id="never opened")
    with pytest.raises(DispatchFenced, match="nothing was added"):
        forgotten.dispatch_batch(moves(1))
    everything_once_and_in_order(namespace)


def test_overlapping_attempts_keep_the_order(namespace: Namespace) -> None:
    """Speculation: the same rows in the same order, at the same time, in other chunks."""
    target = Target(**namespace.options)
    results: list[PartitionDispatcher] = []

    def attempt(batch_size: int) -> None:
        with PartitionDispatcher(target, dispatch_id="d", batch_size=batch_size) as dispatcher:
            dispatcher.dispatch_batch(moves(EACH))
        results.append(dispatcher)

    threads = [threading.Thread(target=attempt, args=(size,)) for size in (7, 20, 33, 500)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.result.rows for each in results] == [1000] * 4
    assert sum(each.result.added for each in results) == 1000
    assert sum(each.result.duplicates for each in results) == 3000
    everything_once_and_in_order(namespace)


def test_overlapping_attempts_keep_the_order_at_a_limit(namespace: Namespace) -> None:
    """Each holds back its refused rows, while the other may have sent them."""
    target = Target(**namespace.options)
    registry, seen = HandlerRegistry(), list[tuple[str, int]]()

    @registry.handles(Move)
    async def move(command: Move) -> int:
        seen.append((str(command.truck), command.seq))
        return 0

    failed: list[CommandBusError] = []

    def attempt(batch_size: int) -> None:
        try:
            with PartitionDispatcher(target, dispatch_id="d", batch_size=batch_size, max_backlog=60, max_wait=60) as dispatcher:
                dispatcher.dispatch_batch(moves(EACH))
        except CommandBusError as error:
            failed.append(error)

    threads = [threading.Thread(target=attempt, args=(size,)) for size in (11, 100)]
    for thread in threads:
        thread.start()
    until(lambda: namespace.depth() == 60)  # both are held up
    with working(namespace, registry):
        for thread in threads:
            thread.join()
        until(lambda: len(seen) >= 1000)
    assert not failed
    assert {truck: [seq for name, seq in seen if name == truck] for truck in ALL} == ALL
    assert len(seen) == 1000


def moves(each: int) -> Iterator[Envelope[Move]]:
    """Return the rows of all trucks, up to a number, in the order of the numbers."""
    for seq in range(each):
        for truck in range(TRUCKS):
            name = f"t{truck}"
            yield Envelope(
                Move(truck=name, seq=seq, load=float((seq * TRUCKS + truck) % 100)), command_id=command_id_of([name, str(seq)])
            )
