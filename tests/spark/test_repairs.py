"""Repairs: of an earlier load, the rejected rows are sent that are valid now, each once, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from command_bus import CommandBusError, CommandContext, DispatchConflict, HandlerRegistry, InvalidRows, InvalidSettings
from command_bus.spark import DispatchReport, dispatch_dataframe, dispatch_report, reconcile
from command_bus.spark.writing import writer
from command_bus.transport.redis.bulk.dispatches import RedisBulkDispatches
from tests.spark.trucks import Move, Namespace, working
from tests.spark.writes import MOVES, with_ids, write

KEY = ["truck", "seq"]
registry = HandlerRegistry()


@registry.handles(Move)
async def move(command: Move, context: CommandContext) -> int:
    return command.seq


def loads(spark: SparkSession, *bad: int, rows: int = 20) -> DataFrame:
    """Return rows for two trucks, of which these are no commands."""
    each = [(f"t{seq % 2}", seq, 500.0 + seq if seq in bad else 1.0, None) for seq in range(rows)]
    return spark.createDataFrame(each, MOVES)


def dispatch(rows: DataFrame, namespace: Namespace, name: str = "load", **options: Any) -> DispatchReport:
    given: dict[str, Any] = {"key": KEY, "order_by": "seq", "dispatch_id": name, "outcomes": "1 day", **options}
    return dispatch_dataframe(rows, Move, **given, **namespace.options)


def repair(rows: DataFrame, namespace: Namespace, name: str = "load", **options: Any) -> DispatchReport:
    return dispatch(rows, namespace, name, repair=True, **options)


def counts(report: DispatchReport) -> tuple[int, int, int, int]:
    """Return what a repair has found: rejected, accepted, still rejected, absent."""
    found = report.repair
    assert found is not None
    assert found.rejected == found.accepted + found.still_rejected + found.absent
    return found.rejected, found.accepted, found.still_rejected, found.absent


def all_seqs(namespace: Namespace) -> list[int]:
    return sorted(seq for seqs in namespace.seqs().values() for seq in seqs)


@pytest.mark.slow
@pytest.mark.promise("Mended rows are sent once")
@pytest.mark.parametrize("place", ["namespace", "four_shards"])
def test_only_mended_rows_are_sent(spark: SparkSession, request: pytest.FixtureRequest, place: str) -> None:
    namespace: Namespace = request.getfixturevalue(place)
    first = dispatch(loads(spark, 3, 5, 8, 12), namespace)
    assert (first.added, first.rejected) == (16, 4)
    mended = loads(spark, 8, 12).where("seq <> 12")  # two are mended, one is not, and one is gone
    planned = repair(mended, namespace, dry_run=True)
    assert (planned.state, counts(planned), len(namespace.landed())) == ("dry run", (4, 2, 1, 1), 16)
    for _ in range(3):  # the second and third time there is nothing to do
        report = repair(mended, namespace)
        assert counts(report) == (4, 2, 1, 1)
        assert (report.state, report.added, len(namespace.landed())) == ("committed", 2, 18)
        assert "of 4 ids that 'load' rejected, 2 accepted, 1 still rejected, 1 in none of the rows" in str(report)
    assert {row.reason for row in first.rejects().collect()} == {"repaired", "invalid"}
    assert counts(repair(loads(spark), namespace, dry_run=True)) == (4, 4, 0, 0)
    last, first = repair(loads(spark), namespace), dispatch_report(first.commands, "load", **namespace.options)
    assert (counts(last), all_seqs(namespace)) == ((4, 4, 0, 0), list(range(20)))
    with working(namespace, registry):
        results = [reconcile(each, effects=first.commands.select("command_id"), timeout=60) for each in (last, first)]
    assert [result.counts["completed"] for result in results] == [4, 16]
    for result in results:
        assert (result.ok, result.settled, result.counts["unexpected"]) == (True, True, 0), result
    assert results[1].counts["quarantined"] == 4
    assert results[1].notes == [
        "4 quarantined rows were mended and sent since, by repair=True: reconcile the report of that as well."
    ]


def test_mended_rows_of_an_entity_keep_their_order(spark: SparkSession, namespace: Namespace) -> None:
    bad = (1, 4, 6, 7, 10, 15)
    dispatch(loads(spark, *bad), namespace)
    repair(loads(spark).orderBy(F.desc("seq")), namespace)
    assert [seq for seq in namespace.seqs()["t0"] if seq in bad] == [4, 6, 10]
    assert [seq for seq in namespace.seqs()["t1"] if seq in bad] == [1, 7, 15]


class TestAcceptedOnce:
    """An id that the load rejected and accepted as well is not sent again."""

    def test_a_row_that_was_mended_before_the_load_was_complete(
        self, spark: SparkSession, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(*_: Any, **__: Any) -> bool:
            raise CommandBusError("the driver is lost")

        monkeypatch.setattr(writer, "commit_dispatch", fails)
        with pytest.raises(CommandBusError, match="the driver is lost"):
            dispatch(loads(spark, 3, 5), namespace)
        monkeypatch.undo()
        with pytest.raises(InvalidSettings, match="'load' cannot be repaired: it is not complete: run it again without repair"):
            repair(loads(spark), namespace)
        first = dispatch(loads(spark, 5), namespace)
        assert {row.reason for row in first.rejects().collect()} == {"accepted_otherwise", "invalid"}
        assert (counts(repair(loads(spark), namespace)), all_seqs(namespace)) == ((1, 1, 0, 0), list(range(20)))

    @pytest.mark.parametrize("order", ["load", "-load"])
    def test_a_key_that_two_rows_have(self, spark: SparkSession, namespace: Namespace, order: str) -> None:
        rows = [("a", 1, 1.0, None), ("a", 1, 500.0, None), ("a", 2, 1.0, None), ("a", 2, 2.0, None), ("a", 3, 500.0, None)]
        frame = spark.createDataFrame(rows, MOVES)
        first = dispatch(frame, namespace, order_by=F.expr(order))
        assert (first.added, first.rejected) == (2, 3)
        report = repair(frame.withColumn("load", F.lit(5.0)), namespace)
        assert (counts(report), namespace.seqs()["a"].count(1), len(namespace.landed())) == ((1, 1, 0, 0), 1, 3)

    def test_a_repair_of_dropped_or_conflicting_rows_is_refused(self, spark: SparkSession, namespace: Namespace) -> None:
        dispatch(loads(spark, 3), namespace, on_invalid="drop")
        with pytest.raises(InvalidSettings, match="it dropped its rejected rows"):
            repair(loads(spark), namespace)

    @pytest.mark.slow
    def test_a_repair_may_raise(self, spark: SparkSession, namespace: Namespace) -> None:
        dispatch(loads(spark, 3, 5), namespace)
        with pytest.raises(InvalidRows):
            repair(loads(spark, 5), namespace, on_invalid="raise", partitions=1)
        assert counts(repair(loads(spark), namespace)) == (2, 2, 0, 0)
        assert all_seqs(namespace) == list(range(20))


@pytest.mark.parametrize("step", ["open", "mark_rejects", "commit"])
@pytest.mark.slow
def test_a_crashed_repair_is_completed(
    spark: SparkSession, namespace: Namespace, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    dispatch(loads(spark, 3, 5, 8), namespace)

    async def fails(*_: Any, **__: Any) -> None:
        raise CommandBusError("the driver is lost")

    monkeypatch.setattr(RedisBulkDispatches, step, fails)
    with pytest.raises(CommandBusError, match="the driver is lost"):
        repair(loads(spark, 8), namespace)
    monkeypatch.undo()
    for _ in range(2):
        report = repair(loads(spark, 8), namespace)
        assert (report.state, counts(report), report.added) == ("committed", (3, 2, 1, 0), 2)
    assert all_seqs(namespace) == [seq for seq in range(20) if seq != 8]


@pytest.mark.slow
def test_a_load_of_the_data_source_is_repaired(spark: SparkSession, namespace: Namespace) -> None:
    write(with_ids(loads(spark, 3, 5).coalesce(1).sortWithinPartitions("seq")), namespace, dispatchId="load")
    report = repair(with_ids(loads(spark)), namespace, key=None)
    assert (counts(report), all_seqs(namespace)) == ((2, 2, 0, 0), list(range(20)))


@pytest.mark.slow
def test_what_cannot_be_repaired_is_refused(spark: SparkSession, namespace: Namespace, caplog: pytest.LogCaptureFixture) -> None:
    rows = loads(spark, 3, 5)
    for _ in range(2):
        dispatch(rows, namespace)
    assert "nothing is added this time (repair=True sends rejected rows that are mended)" in caplog.text
    report = repair(loads(spark, 3), namespace)
    assert (report.dispatch_id, counts(report)) == ("load/repair", (2, 1, 1, 0))
    for name, given, text in (
        ("never", {}, "there is no dispatch 'never' at "),
        ("load/repair", {}, "dispatch 'load/repair' cannot be repaired: it is a repair itself: give the id of its load"),
        ("load", {"version": 1}, "repair = True: give True or False, and True without a version"),
    ):
        with pytest.raises(InvalidSettings) as caught:
            repair(rows, namespace, name, **given)
        assert text in str(caught.value)
    with pytest.raises(DispatchConflict, match="dispatch 'load/repair' belongs to another writer"):
        dispatch(rows, namespace, "load/repair")
    dispatch(rows, namespace, "taken")
    dispatch(rows, namespace, "taken/repair")
    with pytest.raises(DispatchConflict, match="dispatch 'taken/repair' belongs to another writer"):
        repair(loads(spark), namespace, "taken")


@pytest.mark.slow
def test_a_stream_is_not_repaired(spark: SparkSession, namespace: Namespace) -> None:
    for version in range(2):
        dispatch(loads(spark, 3).where(f"seq % 2 = {version}"), namespace, version=version)
    with pytest.raises(InvalidSettings, match="it is a stream: send mended rows through the stream"):
        repair(loads(spark), namespace)
