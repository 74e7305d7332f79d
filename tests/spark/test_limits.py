"""Writers wait while a limit is reached, and give up with a report."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType
from redis import Redis

from command_bus import (
    DispatchStalled,
    HandlerRegistry,
)
from command_bus.embedded import EmbeddedServer
from command_bus.spark import dispatch_dataframe
from command_bus.spark.options import WriteOptions
from command_bus.spark.writing.writer import BatchWriter, WritePlan
from tests.selection import quick
from tests.spark.trucks import Move, Namespace, journeys, until, working
from tests.spark.writes import MOVE, ROWS_OF_MOVES, with_ids, write


@pytest.fixture
def full(namespace: Namespace) -> Iterator[Namespace]:
    """Start a server of its own, whose memory limit the test may change."""
    with EmbeddedServer.start(tcp=True) as server:
        yield Namespace(server.url)


@pytest.mark.slow
def test_writers_wait_for_workers(spark: SparkSession, namespace: Namespace) -> None:
    registry, seen, most = HandlerRegistry(), list[tuple[str, int]](), [0]

    @registry.handles(Move)
    def move(command: Move) -> int:
        most[0] = max(most[0], namespace.depth())
        seen.append((str(command.truck), command.seq))
        return 0

    rows = journeys(spark, trucks=10, each=40)
    with working(namespace, registry, concurrency=2):
        report = dispatch_dataframe(
            rows,
            Move,
            key=["truck", "seq"],
            order_by="seq",
            dispatch_id="d",
            max_backlog=30,
            batch_size=20,
            partitions=2,
            **namespace.options,
        )
        until(lambda: len(seen) == 400, 60)
    assert (report.added, report.duplicates) == (400, 0)
    assert report.waited > 0
    assert most[0] <= 30
    for truck in range(10):
        assert [seq for name, seq in seen if name == f"t{truck}"] == list(range(40))


@pytest.mark.slow
async def test_a_stalled_dispatch_reports_and_is_completed_later(spark: SparkSession, namespace: Namespace) -> None:
    rows = journeys(spark, trucks=2, each=30)

    def dispatch(**options: Any) -> Any:
        return dispatch_dataframe(
            rows,
            Move,
            key=["truck", "seq"],
            order_by="seq",
            dispatch_id="d",
            partitions=1,
            batch_size=10,
            **options,
            **namespace.options,
        )

    with pytest.raises(DispatchStalled) as caught:
        dispatch(max_backlog=25, max_wait=0.5)
    assert caught.value.accepted == 25  # by the first attempt; the task that Spark runs again adds nothing
    text = str(caught.value)
    assert "nothing could be added for 0.5 s (total limit), 25 rows of it are in their mailboxes. Are workers running?" in text
    assert len(text) < 300
    assert namespace.depth() == 25
    for mailbox in namespace.seqs().values():
        assert mailbox == list(range(len(mailbox)))
    report = dispatch()
    assert (report.state, report.added, report.duplicates, report.resent) == ("committed", 60, 0, 25)
    assert namespace.seqs() == {"t0": list(range(30)), "t1": list(range(30))}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_stalled_job_warns_the_driver(
    spark: SparkSession, namespace: Namespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("command_bus.spark.writing.progress._LOG_EVERY", 1.0)
    with caplog.at_level(logging.INFO, "command_bus.spark"), pytest.raises(DispatchStalled):
        dispatch_dataframe(
            journeys(spark, trucks=2, each=30), Move, key=["truck", "seq"], order_by="seq", dispatch_id="d", partitions=1,
            max_backlog=25, max_wait=9, **namespace.options,
        )  # fmt: skip
    said = [(each.levelname, each.getMessage()) for each in caplog.records]
    first = next(text for level, text in said if level == "WARNING")
    assert first.startswith(f"no worker lives in namespace {namespace.name!r} on ")
    (stall, *_) = [text for level, text in said if "nothing could be added for 8 s" in text]
    assert stall.startswith(
        "dispatch 'd', partition 0: nothing could be added for 8 s (total limit); no worker lives there; it gives up in 1 s"
    )
    assert any(level == "INFO" and text == "dispatch 'd': 25 rows sent, 0 rows/s" for level, text in said)


def test_the_format_warns_before_the_write_without_workers(
    spark: SparkSession, namespace: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    """The writer is made here, as Spark makes it in a process of its own."""
    options = WriteOptions.parse({**namespace.options, "command": MOVE, "dispatchId": "d"})
    with caplog.at_level(logging.WARNING, "command_bus.spark"):
        BatchWriter(WritePlan.build(options, StructType.fromDDL(ROWS_OF_MOVES)))
    (said,) = [each.getMessage() for each in caplog.records]
    assert said.startswith(f"no worker lives in namespace {namespace.name!r} on ")


@pytest.mark.slow
def test_the_format_raises_the_same_error(spark: SparkSession, namespace: Namespace) -> None:
    with pytest.raises(PythonException) as caught:
        write(with_ids(journeys(spark, trucks=2, each=30)), namespace, maxBacklog=25, maxWait="300 ms")
    assert "DispatchStalled: dispatch 'd', partition" in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert "\tat " not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("from_the_start", quick([True, False], [False]))
def test_a_server_out_of_memory_is_waited_for(spark: SparkSession, full: Namespace, from_the_start: bool) -> None:
    rows = journeys(spark, trucks=20, each=50).withColumn("note", F.repeat("truck", 900))
    with Redis.from_url(full.url, decode_responses=True) as client:
        if not from_the_start:  # room for some hundred of a thousand
            client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + 2_000_000)
        else:
            dispatch_dataframe(rows.limit(1), Move, key="seq", order_by="seq", dispatch_id="0", **full.options)
            client.config_set("maxmemory", 1)
        refused: list[int] = []

        def relieve() -> None:
            until(lambda: _refusals(client) > 10, 60)
            refused.append(_refusals(client))
            client.config_set("maxmemory", 0)

        helper = threading.Thread(target=relieve)
        helper.start()
        report = dispatch_dataframe(
            rows, Move, key=["truck", "seq"], order_by="seq", dispatch_id="d", partitions=2, batch_size=50, **full.options
        )
        helper.join()
    assert refused
    assert (report.added, report.duplicates, report.resent) == (1000, 0, 0)
    ids = Counter(each.command_id for each in full.landed())
    assert set(ids.values()) == {1}
    assert len(ids) == 1000 + from_the_start
    if not from_the_start:
        assert full.seqs() == {f"t{truck}": list(range(50)) for truck in range(20)}
        assert report.waited > 0


def _refusals(client: Redis) -> int:
    """Return how often the server was out of memory."""
    return int(client.info("errorstats").get("errorstat_OOM", {"count": 0})["count"])
