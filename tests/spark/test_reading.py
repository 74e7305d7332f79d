"""What became of dispatches, as tables: every view, its partitions and bounds, and outcomes as a stream."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import EqualTo, GreaterThan, IsNotNull, LessThanOrEqual
from redis import Redis

from command_bus import Command, CommandBus, EntityId, Envelope, HandlerRegistry, Reject, RetryPolicy
from command_bus.embedded import EmbeddedServer
from command_bus.serialization.outcome import OutcomeRecord
from command_bus.serialization.reply import Completed, pack_reply
from command_bus.spark import PartitionDispatcher
from command_bus.spark.reading.reader import PushdownReader, reader_of
from command_bus.spark.target import Target
from command_bus.spark.writing import partition as dispatching
from command_bus.spark.writing.writer import commit_dispatch
from command_bus.transport.bulk import Opening
from tests.spark.trucks import Place, until, working

ONCE = RetryPolicy(attempts=1)
DAY = 86_400_000


class Pay(Command[int], entity="account", retry=RetryPolicy(attempts=2, delay=0.001)):
    account: EntityId
    amount: int


class Lock(Command[None], entity="locker", retry=ONCE, on_poison="park"):
    locker: EntityId
    broken: bool = False


class Slow(Command[None], entity="snail", retry=RetryPolicy(attempts=9, delay=3600, max_delay=3600, jitter=0)):
    snail: EntityId
    sick: bool = False


def registry_of(*, let_go: threading.Event | None = None) -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handles(Pay)
    def pay(command: Pay) -> int:
        if command.amount < 0:
            raise Reject("no money", code="poor", details={"short": -command.amount})
        if command.amount == 13:
            raise ValueError("unlucky")
        return command.amount * 2

    @registry.handles(Lock)
    def lock(command: Lock) -> None:
        if command.broken:
            raise RuntimeError("jammed")

    @registry.handles(Slow)
    async def slow(command: Slow) -> None:
        if command.sick:
            raise RuntimeError("sick")
        if let_go is not None:
            await asyncio.to_thread(let_go.wait)

    return registry


@pytest.fixture
def place(server: EmbeddedServer) -> Place:
    return Place(server.url)


class Wide(Place):
    """A namespace with four shards."""

    def bus(self, **arguments: Any) -> CommandBus:
        return super().bus(shards=4, **arguments)


@pytest.fixture
def wide(server: EmbeddedServer) -> Place:
    place = Wide(server.url)

    async def choose() -> None:
        async with place.bus():
            pass

    asyncio.run(choose())
    return place


def target_of(place: Place) -> Target:
    return Target.resolve(**place.where)


def load(place: Place, commands: list[Command[Any]], dispatch_id: str = "d", *, keep_ms: int = DAY, commit: bool = True) -> None:
    """Without Spark: the ids are c0, c1, …"""
    opening = Opening(what="tests", keep_ms=keep_ms)
    with PartitionDispatcher(target_of(place), dispatch_id=dispatch_id, opening=opening) as dispatcher:
        dispatcher.dispatch_batch(Envelope(command, command_id=f"c{number}") for number, command in enumerate(commands))
    if commit:
        commit_dispatch(target_of(place), dispatcher.version, opening, [dispatcher.result])


def read(spark: SparkSession, place: Place, view: str = "outcomes", **options: Any) -> DataFrame:
    given = {name: str(value) for name, value in options.items()}
    return spark.read.format("command_bus").options(**place.where, view=view, **given).load()


def settled(place: Place) -> None:
    until(lambda: place.depth() == 0)


def key_of(place: Place, dispatch_id: str, shard: int = 0) -> str:
    return f"{{{place.namespace}:{shard}}}:b:{dispatch_id}:out"


def settle(place: Place, dispatch_id: str, numbers: range, *, shard: int = 0, at_ms: Callable[[int], int] | None = None) -> None:
    """As if workers had settled commands with these numbers: for reads of many, or at times of one's own."""
    with Redis.from_url(place.url) as client:
        pipeline = client.pipeline(transaction=False)
        for number in numbers:
            reply = pack_reply(f"c{number}", Completed(b"\xc0"))
            record = OutcomeRecord(
                "completed", "Pay", "account", f"a{number % 7}", 1, "w", 1, 1, number, f"1-{number}", reply
            ).pack()
            entry = "*" if at_ms is None else f"{at_ms(number)}-*"
            pipeline.xadd(key_of(place, dispatch_id, shard), {"r": record}, id=entry)
        pipeline.execute()


def numbers_in(rows: list[Row]) -> list[int]:
    return [int(row["command_id"][1:]) for row in rows]


class TestOutcomes:
    def test_each_command_has_an_outcome_with_its_result_or_reason(self, spark: SparkSession, wide: Place) -> None:
        load(
            wide,
            [Pay(account=f"a{number % 5}", amount=number) for number in range(12)]
            + [Pay(account="a9", amount=-4), Pay(account="a9", amount=13)],
        )
        before = datetime.now(UTC) - timedelta(minutes=1)
        with working(wide, registry_of()):
            settled(wide)
        rows = {row["command_id"]: row for row in read(spark, wide, dispatchId="d").collect()}
        assert len(rows) == 14
        assert {rows[f"c{number}"]["status"] for number in range(12)} == {"completed"}
        assert [rows[f"c{number}"]["result"] for number in range(12)] == [str(number * 2) for number in range(12)]
        denied, unlucky = rows["c12"], rows["c13"]
        assert (denied["status"], denied["error_type"], denied["error_message"]) == ("rejected", "poor", "no money")
        assert json.loads(denied["result"]) == {"short": 4}
        assert (unlucky["status"], unlucky["attempt"], unlucky["error_type"]) == ("dead_lettered", 2, "ValueError")
        assert (unlucky["error_message"], unlucky["result"]) == ("unlucky", None)
        for row in rows.values():
            assert (row["dispatch_id"], row["command"], row["entity_type"]) == ("d", "Pay", "account")
            assert (
                before
                <= row["accepted_at"].replace(tzinfo=UTC)
                <= row["started_at"].replace(tzinfo=UTC)
                <= row["finished_at"].replace(tzinfo=UTC)
            )
            assert row["worker"]
            assert row["fence"] > 0
        fences: dict[str, list[int]] = {}
        for row in sorted(rows.values(), key=lambda row: tuple(map(int, row["message"].split("-")))):
            fences.setdefault(row["entity"], []).append(row["fence"])
        assert all(sorted(each) == each for each in fences.values()), "an entity's commands started in the order of acceptance"
        assert len({row["shard"] for row in rows.values()}) > 1

    def test_all_dispatches_are_read_unless_one_is_named(self, spark: SparkSession, place: Place) -> None:
        for name in ("one", "two:{}\n%", "three"):
            load(place, [Pay(account=name, amount=1)], name)
        with working(place, registry_of()):
            settled(place)
        assert {row["dispatch_id"] for row in read(spark, place).collect()} == {"one", "two:{}\n%", "three"}
        assert [row["dispatch_id"] for row in read(spark, place, dispatchId="two:{}\n%").collect()] == ["two:{}\n%"]

    def test_many_are_read_once_each_in_as_many_tasks_as_are_asked_for(self, spark: SparkSession, wide: Place) -> None:
        load(wide, [], "d")
        start = 1_795_000_000_000
        for shard in range(4):  # three bursts, days apart
            settle(
                wide,
                "d",
                range(shard * 3000, shard * 3000 + 3000),
                shard=shard,
                at_ms=lambda number: start + number % 3000 // 1000 * DAY + number,
            )
        frame = read(spark, wide, dispatchId="d", minPartitions=10, pageSize=100)
        assert frame.rdd.getNumPartitions() >= 10
        assert sorted(numbers_in(frame.collect())) == list(range(12_000))
        sizes = [row["count"] for row in frame.groupBy(F.spark_partition_id()).count().collect()]
        assert max(sizes) <= 12_000 / 10 * 2
        assert read(spark, wide, dispatchId="d").rdd.getNumPartitions() == 1

    def test_a_task_reads_what_was_there_when_it_was_planned(self, place: Place) -> None:
        load(place, [], "d")
        settle(place, "d", range(100))
        reader = reader_of({**place.where, "pagesize": "7"})
        parts = reader.partitions()
        settle(place, "d", range(100, 200))
        first, again = (
            [row["command_id"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()] for _ in range(2)
        )
        assert first == again == [f"c{number}" for number in range(100)]

    def test_times_bound_it_from_the_first_up_to_without_the_last(self, spark: SparkSession, place: Place) -> None:
        load(place, [], "d")
        noon = 1_795_262_400_000
        settle(place, "d", range(60), at_ms=lambda number: noon + number * 1000)

        def found(**bounds: Any) -> list[int]:
            return numbers_in(read(spark, place, **bounds).collect())

        assert found(startingTimestamp=noon + 10_000, endingTimestamp=noon + 12_000) == [10, 11]
        assert found(startingTimestamp="2026-11-21T12:00:58Z") == [58, 59]
        assert found(endingTimestamp="2026-11-21T13:00:02+01:00") == [0, 1]
        assert found(startingTimestamp=noon + DAY) == found(endingTimestamp=noon - DAY) == []

    def test_filters_are_pushed_down_where_spark_may(self, spark: SparkSession, place: Place) -> None:
        noon = 1_795_262_400_000
        for name in ("a", "b", "c"):
            load(place, [], name)
            settle(place, name, range(30), at_ms=lambda number: noon + number * 1000)
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")

        def found(condition: str, view: str = "outcomes") -> list[Row]:
            return (
                read(spark, place, view, pushdown="true").where(condition).collect()
            )  # each from a DataFrame of its own: see docs

        try:
            rows = found(
                "dispatch_id in ('a', 'b', 'x') and attempt = 1 and finished_at > timestamp '2026-11-21 12:00:05' "
                "and finished_at <= timestamp '2026-11-21 12:00:07'"
            )
            assert sorted((row["dispatch_id"], row["command_id"]) for row in rows) == [
                ("a", "c6"), ("a", "c7"), ("b", "c6"), ("b", "c7")
            ]  # fmt: skip
            assert [row["dispatch_id"] for row in found("dispatch_id = 'c' and command_id = 'c3'")] == ["c"]
            assert found("dispatch_id = 'x'") == found("dispatch_id = 'a' and dispatch_id = 'b'") == []
            assert len(found("1 = 1")) == 90
            assert [row["dispatch_id"] for row in found("dispatch_id = 'b'", "dispatches")] == ["b"]
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        assert read(spark, place).where("dispatch_id = 'a'").count() == 30, "and without it Spark filters"

    def test_what_is_pushed_down_is_not_read(self, place: Place) -> None:
        noon = 1_795_262_400_000
        for name in ("a", "b"):
            load(place, [], name)
            settle(place, name, range(30), at_ms=lambda number: noon + number * 1000)
        reader = reader_of({**place.where, "pushdown": "true"})
        assert isinstance(reader, PushdownReader)
        moment = datetime(2026, 11, 21, 12, tzinfo=UTC)
        filters = [
            EqualTo(("dispatch_id",), "b"), GreaterThan(("finished_at",), moment + timedelta(seconds=5, microseconds=5)),
            LessThanOrEqual(("finished_at",), moment + timedelta(seconds=8)), IsNotNull(("finished_at",)),
        ]  # fmt: skip
        assert list(reader.pushFilters(filters)) == filters[1:], "Spark looks at times again, as it knows microseconds"
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        assert [(row["dispatch_id"], row["command_id"]) for batch in batches for row in batch.to_pylist()] == [
            ("b", "c5"), ("b", "c6"), ("b", "c7"), ("b", "c8")
        ]  # fmt: skip

    def test_what_was_trimmed_is_told(self, spark: SparkSession, place: Place) -> None:
        load(place, [], "d")
        settle(place, "d", range(500))
        with Redis.from_url(place.url) as client:
            gone = client.xtrim(key_of(place, "d"), maxlen=200, approximate=False)
        assert gone == 300
        assert read(spark, place, dispatchId="d").count() == 200
        [row] = read(spark, place, "dispatches").collect()
        assert (row["outcomes"], row["trimmed"]) == (200, 300)
        with pytest.raises(PySparkException, match="300 outcomes are kept no more"):
            read(spark, place, dispatchId="d", failOnDataLoss="true").count()

    def test_a_record_of_another_version_is_a_row(self, spark: SparkSession, place: Place) -> None:
        load(place, [], "d")
        settle(place, "d", range(2))
        with Redis.from_url(place.url) as client:
            client.xadd(key_of(place, "d"), {"r": b"\x92\x02x"})
        assert Counter(row["status"] for row in read(spark, place).collect()) == {"completed": 2, "unreadable": 1}

    def test_sql_reads_it(self, spark: SparkSession, place: Place) -> None:
        load(place, [Pay(account="a", amount=1), Pay(account="a", amount=-1)])
        with working(place, registry_of()):
            settled(place)
        spark.sql(f"""CREATE OR REPLACE TEMPORARY VIEW became USING command_bus
                      OPTIONS (url '{place.url}', namespace '{place.namespace}', view 'outcomes', dispatchId 'd')""")
        found = spark.sql("SELECT status, count(*) AS n FROM became GROUP BY status ORDER BY status").collect()
        spark.catalog.dropTempView("became")
        assert found == [Row(status="completed", n=1), Row(status="rejected", n=1)]


class TestErrors:
    @pytest.mark.parametrize(
        ("view", "options", "message"),
        [
            ("outcomes", {"dispatchIdd": "d"}, "did you mean dispatchId"),
            ("outcome", {}, "there are outcomes, deadLetters, rejects, entities, dispatches"),
            ("entities", {"dispatchId": "d"}, "not with entities"),
        ],
    )
    def test_wrong_options_are_named_at_once(
        self, spark: SparkSession, place: Place, view: str, options: dict[str, str], message: str
    ) -> None:
        with pytest.raises(AnalysisException, match=message):
            read(spark, place, view, **options)

    @pytest.mark.parametrize("view", ["outcomes", "rejects", "dispatches"])
    def test_an_unknown_dispatch_is_an_error_not_an_empty_table(self, spark: SparkSession, place: Place, view: str) -> None:
        load(place, [], "known")
        with pytest.raises(PySparkException, match="dispatchId = 'unknown': no such dispatch is known") as caught:
            read(spark, place, view, dispatchId="unknown").collect()
        assert "\tat " not in str(caught.value)
        assert "secret" not in str(caught.value)
        assert len(str(caught.value)) < 2000

    def test_so_is_one_that_keeps_no_outcomes(self, spark: SparkSession, place: Place) -> None:
        load(place, [Pay(account="a", amount=1)], keep_ms=0)
        with pytest.raises(PySparkException, match="keeps no outcomes"):
            read(spark, place, dispatchId="d").collect()
        assert read(spark, place, "rejects", dispatchId="d").collect() == []
        assert read(spark, place).collect() == []

    def test_outcomes_may_outlive_their_dispatch(self, spark: SparkSession, place: Place) -> None:
        settle(place, "gone", range(3))
        assert read(spark, place, dispatchId="gone").count() == 3

    def test_limits_of_streams_are_not_for_batches(self, spark: SparkSession, place: Place) -> None:
        with pytest.raises(PySparkException, match=r"for spark\.readStream"):
            read(spark, place, maxOffsetsPerTrigger=5).collect()

    def test_an_empty_namespace_is_empty(self, spark: SparkSession, place: Place) -> None:
        for view in ("outcomes", "deadLetters", "rejects", "entities", "dispatches"):
            assert read(spark, place, view).collect() == []


class TestOtherViews:
    def test_dead_letters(self, spark: SparkSession, wide: Place) -> None:
        load(wide, [Pay(account="a", amount=13), Lock(locker="l", broken=True), Lock(locker="l")])
        load(wide, [Pay(account="b", amount=13)], "kept-none", keep_ms=0)
        with working(wide, registry_of()):
            until(lambda: read(spark, wide, "deadLetters").count() == 3)
        rows = {(row["dispatch_id"], row["command_id"]): row for row in read(spark, wide, "deadLetters").collect()}
        assert set(rows) == {("d", "c0"), ("d", "c1"), (None, "c0")}
        pay, lock = rows["d", "c0"], rows["d", "c1"]
        assert (pay["command"], pay["entity_type"], pay["entity"], pay["reason"], pay["attempts"]) == (
            "Pay",
            "account",
            "a",
            "failed",
            2,
        )
        assert (pay["error_type"], pay["error_message"], pay["parked"]) == ("ValueError", "unlucky", False)
        assert json.loads(pay["payload"]) == {"account": "a", "amount": 13}
        assert "unlucky" not in pay["payload"]
        assert "in pay" in pay["traceback"]
        assert pay["accepted_at"] <= pay["first_started_at"] <= pay["failed_at"]
        assert (lock["parked"], lock["entity"]) == (True, "l")
        assert {row["command_id"] for row in read(spark, wide, "deadLetters", dispatchId="d").collect()} == {"c0", "c1"}
        assert read(spark, wide, "deadLetters", endingTimestamp=1).count() == 0
        assert read(spark, wide, "deadLetters", startingTimestamp=1).count() == 3
        outcomes = Counter(row["status"] for row in read(spark, wide, dispatchId="d").collect())
        assert outcomes == {"dead_lettered": 1, "parked": 1}

    def test_rejects(self, spark: SparkSession, place: Place) -> None:
        with PartitionDispatcher(target_of(place), dispatch_id="d") as dispatcher:
            for number in range(450):
                dispatcher.reject(
                    dispatching.Reject.of(
                        command_id=f"c{number}",
                        command="Pay",
                        entity="a",
                        reason="invalid",
                        error="amount: text",
                        row={"amount": f"{number} é"},
                    )
                )
        rows = sorted(
            read(spark, place, "rejects", dispatchId="d", pageSize=100).collect(), key=lambda row: int(row["command_id"][1:])
        )
        assert [row["command_id"] for row in rows] == [f"c{number}" for number in range(450)]
        assert rows[3].asDict() == {
            "dispatch_id": "d", "command_id": "c3", "command": "Pay", "entity": "a", "reason": "invalid", "error": "amount: text",
            "row": '{"amount": "3 é"}',
        }  # fmt: skip
        assert read(spark, place, "rejects").count() == 450

    def test_entities(self, spark: SparkSession, wide: Place) -> None:
        let_go = threading.Event()
        load(
            wide,
            [
                Slow(snail="runs"),
                Slow(snail="runs"),
                Slow(snail="sick", sick=True),
                Lock(locker="parked", broken=True),
                Lock(locker="parked"),
            ],
        )
        with stopped(wide, ("snail", "paused"), ("snail", "idle")), working(wide, registry_of(let_go=let_go)):
            until(lambda: {row["state"] for row in read(spark, wide, "entities").collect()} >= {"running", "retrying", "parked"})
            load(wide, [Slow(snail="paused")], "e")
            found = read(spark, wide, "entities").collect()
            let_go.set()
        rows = {row["entity"]: row for row in found}
        assert len(rows) == len(found), "once each, though some are in several keys"
        assert {name: (row["state"], row["depth"], row["entity_type"]) for name, row in rows.items()} == {
            "runs": ("running", 2, "snail"), "sick": ("retrying", 1, "snail"), "parked": ("parked", 2, "locker"),
            "paused": ("paused", 1, "snail"), "idle": ("paused", 0, "snail"),
        }  # fmt: skip
        assert rows["idle"]["oldest_accepted_at"] is None
        assert rows["runs"]["oldest_accepted_at"] > datetime.now(UTC).replace(tzinfo=None) - timedelta(minutes=2)
        assert (rows["runs"]["attempt"], rows["sick"]["attempt"], rows["paused"]["attempt"]) == (1, 1, 0)
        assert rows["runs"]["mailbox"] == "snail:runs"

    def test_entities_wait_without_workers_and_many_are_told_once_each(self, spark: SparkSession, wide: Place) -> None:
        load(wide, [Pay(account=f"a{number}", amount=1) for number in range(3000)])
        frame = read(spark, wide, "entities")
        assert frame.rdd.getNumPartitions() == 4
        rows = frame.collect()
        assert sorted(row["entity"] for row in rows) == sorted(f"a{number}" for number in range(3000))
        assert {(row["state"], row["depth"], row["attempt"]) for row in rows} == {("waiting", 1, 0)}

    def test_dispatches(self, spark: SparkSession, wide: Place) -> None:
        load(wide, [Pay(account=f"a{number}", amount=number) for number in range(20)], "done")
        with working(wide, registry_of()):
            settled(wide)
        load(wide, [Pay(account="a", amount=1)], "open", commit=False)
        load(wide, [Pay(account="a", amount=1)], "bare", keep_ms=0)
        rows = {row["dispatch_id"]: row for row in read(spark, wide, "dispatches").collect()}
        shown = {
            name: tuple(
                row[column]
                for column in ("state", "version", "added", "duplicates", "rejected", "outcomes", "trimmed", "pending", "what")
            )
            for name, row in rows.items()
        }
        assert shown == {
            "done": ("committed", 0, 20, 0, 0, 20, 0, 0, "tests"),
            "open": ("open", None, 1, 0, 0, 0, 0, 1, "tests"),
            "bare": ("committed", 0, 1, 0, 0, None, None, None, "tests"),
        }
        done = rows["done"]
        assert done["opened_at"] <= done["committed_at"] < done["outcomes_until"] < done["remembered_until"]
        assert json.loads(done["summary"])["partitions"][0]["added"] == 20
        assert rows["open"]["committed_at"] is None
        assert [row["dispatch_id"] for row in read(spark, wide, "dispatches", dispatchId="bare").collect()] == ["bare"]


@contextmanager
def stopped(place: Place, *entities: tuple[str, str]) -> Iterator[None]:
    """While these are paused."""

    async def change(verb: str) -> None:
        async with place.bus() as bus:
            for kind, name in entities:
                await getattr(bus.entity(kind, name), verb)()

    asyncio.run(change("pause"))
    yield
    asyncio.run(change("resume"))


class Streamed:
    """A streaming query over outcomes, whose micro-batches are kept as lists of numbers."""

    def __init__(
        self, spark: SparkSession, place: Place, folder: Path, after: Callable[[], None] | None = None, **options: Any
    ) -> None:
        self._after = after
        self.batches: list[list[int]] = []
        self.dispatches: Counter[str] = Counter()
        given = {name: str(value) for name, value in options.items()}
        self._frame = spark.readStream.format("command_bus").options(**place.where, view="outcomes", **given).load()
        self._folder = folder

    def run(self, **trigger: Any) -> Streamed:
        """To the end of what there is."""
        query = self._start(trigger or {"availableNow": True})
        assert query.awaitTermination(60)
        return self

    @contextmanager
    def running(self) -> Iterator[Any]:
        query = self._start({"processingTime": "100 milliseconds"})
        try:
            yield query
        finally:
            query.stop()

    @property
    def numbers(self) -> list[int]:
        return [number for batch in self.batches for number in batch]

    def _start(self, trigger: dict[str, Any]) -> Any:
        def keep(batch: DataFrame, _: int) -> None:
            rows = batch.collect()
            self.batches.append(sorted(numbers_in(rows)))
            self.dispatches.update(row["dispatch_id"] for row in rows)
            if self._after is not None:
                self._after()

        writer = self._frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(self._folder))
        return writer.trigger(**trigger).start()


class TestStream:
    @pytest.mark.slow
    def test_a_limit_cuts_micro_batches_and_a_restart_goes_on(self, spark: SparkSession, wide: Place, tmp_path: Path) -> None:
        load(wide, [], "d")
        settle(wide, "d", range(900), shard=1)
        settle(wide, "d", range(900, 1000), shard=3)
        first = Streamed(spark, wide, tmp_path, dispatchId="d", maxOffsetsPerTrigger=400).run()
        assert [len(batch) for batch in first.batches if batch] == [400, 400, 200]
        assert set(range(900, 1000)) < set(first.batches[0]), "the small stream does not wait for the large one"
        assert sorted(first.numbers) == list(range(1000))
        settle(wide, "d", range(1000, 1100), shard=1)
        again = Streamed(spark, wide, tmp_path, dispatchId="d", maxOffsetsPerTrigger=400).run()
        assert sorted(again.numbers) == list(range(1000, 1100))
        assert Streamed(spark, wide, tmp_path, dispatchId="d").run().numbers == []

    @pytest.mark.slow
    def test_a_micro_batch_that_fails_is_read_again_as_it_was(self, spark: SparkSession, place: Place, tmp_path: Path) -> None:
        load(place, [], "d")
        settle(place, "d", range(100))
        seen: list[list[int]] = []

        def fail(batch: DataFrame, _: int) -> None:
            seen.append(sorted(numbers_in(batch.collect())))
            raise RuntimeError("before the commit")

        frame = spark.readStream.format("command_bus").options(**place.where, maxOffsetsPerTrigger="60").load()
        query = (
            frame.writeStream.foreachBatch(fail).option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        )
        with pytest.raises(StreamingQueryException):
            query.awaitTermination(60)
        settle(place, "d", range(100, 150))
        again = Streamed(spark, place, tmp_path, maxOffsetsPerTrigger=60).run()
        assert seen == [list(range(60))] == again.batches[:1]
        assert again.numbers == list(range(150))

    @pytest.mark.slow
    def test_dispatches_that_come_later_are_picked_up(self, spark: SparkSession, place: Place, tmp_path: Path) -> None:
        streamed = Streamed(spark, place, tmp_path)
        with streamed.running() as query, working(place, registry_of()):
            for name in ("one", "two"):
                load(place, [Pay(account=f"a{number}", amount=number) for number in range(50)], name)
                until(lambda name=name: streamed.dispatches[name] == 50)
            until(lambda: query.lastProgress and query.lastProgress.sources[0].numInputRows == 0)
            source = query.lastProgress.sources[0]
            assert json.loads(source.endOffset) == json.loads(source.latestOffset)
        assert streamed.dispatches == {"one": 50, "two": 50}

    def test_what_is_there_when_it_starts_is_all_that_available_now_reads(
        self, spark: SparkSession, place: Place, tmp_path: Path
    ) -> None:
        load(place, [], "d")
        settle(place, "d", range(100))
        numbers = count(100)
        streamed = Streamed(
            spark, place, tmp_path, after=lambda: settle(place, "d", range(next(numbers), 110)), maxOffsetsPerTrigger=30
        ).run()
        assert streamed.numbers == list(range(100))

    @pytest.mark.slow
    def test_it_may_begin_at_a_time(self, spark: SparkSession, place: Place, tmp_path: Path) -> None:
        load(place, [], "d")
        noon = 1_795_262_400_000
        settle(place, "d", range(60), at_ms=lambda number: noon + number * 1000)
        begun = Streamed(spark, place, tmp_path, startingTimestamp=noon + 40_000, maxOffsetsPerTrigger=7).run()
        assert [batch for batch in begun.batches if batch] == [list(range(40, 47)), list(range(47, 54)), list(range(54, 60))]

    @pytest.mark.slow
    def test_outcomes_that_were_trimmed_unread_stop_it_unless_it_may_go_on(
        self, spark: SparkSession, place: Place, tmp_path: Path
    ) -> None:
        load(place, [], "d")
        settle(place, "d", range(100))
        assert len(Streamed(spark, place, tmp_path).run().numbers) == 100
        settle(place, "d", range(100, 200))
        with Redis.from_url(place.url) as client:
            client.xtrim(key_of(place, "d"), maxlen=100, approximate=False)
        assert Streamed(spark, place, tmp_path / "copy").run().numbers == list(range(100, 200)), "a new query missed nothing"
        with Redis.from_url(place.url) as client:
            client.xtrim(key_of(place, "d"), maxlen=90, approximate=False)
        with pytest.raises(StreamingQueryException, match="10 outcomes of 'd' were trimmed before this query came to them"):
            Streamed(spark, place, tmp_path).run()
        assert Streamed(spark, place, tmp_path, failOnDataLoss="false").run().numbers == list(range(110, 200))
        assert Streamed(spark, place, tmp_path).run().numbers == []

    @pytest.mark.slow
    def test_a_stream_that_ended_and_began_again_is_read(self, spark: SparkSession, place: Place, tmp_path: Path) -> None:
        load(place, [], "d")
        settle(place, "d", range(10))
        assert len(Streamed(spark, place, tmp_path).run().numbers) == 10
        with Redis.from_url(place.url) as client:
            client.delete(key_of(place, "d"))
        settle(place, "d", range(10, 18))
        assert Streamed(spark, place, tmp_path).run().numbers == list(range(10, 18))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"view": "entities"}, "changes in place"),
            ({"endingTimestamp": "5"}, "a stream does not end"),
            ({"pushdown": "true"}, "no filters"),
        ],
    )
    def test_what_cannot_be_streamed_says_so(
        self, spark: SparkSession, place: Place, tmp_path: Path, options: dict[str, str], message: str
    ) -> None:
        frame = spark.readStream.format("command_bus").options(**place.where, **options).load()
        query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
        with pytest.raises(StreamingQueryException, match=message):
            query.awaitTermination(60)
