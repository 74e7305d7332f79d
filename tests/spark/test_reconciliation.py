"""Reconciliation of real runs: with every status, while workers run, and after losses."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from redis import Redis

from command_bus import Command, EntityId, Envelope, HandlerRegistry, InvalidSettings, NotReconciled, Reject, RetryPolicy
from command_bus.spark import DispatchReport, Reconciliation, dispatch_dataframe, reconcile
from command_bus.spark.reconciliation.dispatch_state import commands_in_mailboxes
from command_bus.spark.target import Target
from tests.spark.trucks import Move, Namespace, journeys, until, working


class Post(Command[int], entity="box", retry=RetryPolicy(attempts=2, delay=0.001, jitter=0)):
    box: EntityId
    seq: int
    what: str


class Hang(Command[None], entity="hook", retry=RetryPolicy(attempts=1), on_poison="park"):
    hook: EntityId
    seq: int
    what: str


def handlers(*, mended: threading.Event | None = None) -> HandlerRegistry:
    registry = HandlerRegistry()
    tried: Counter[tuple[str, int]] = Counter()

    @registry.handles(Post)
    def post(command: Post) -> int:
        tried[command.box, command.seq] += 1
        if command.what == "refuse":
            raise Reject("too heavy", code="heavy")
        if command.what == "shaky" and tried[command.box, command.seq] == 1:
            raise ConnectionError("once")
        if command.what == "poison" and (mended is None or not mended.is_set()):
            raise ValueError("cannot be posted")
        return command.seq

    @registry.handles(Hang)
    def hang(command: Hang) -> None:
        if command.what == "poison" and (mended is None or not mended.is_set()):
            raise ValueError("too wide")

    @registry.handles(Move)
    def move(command: Move) -> int:
        return command.seq

    return registry


def posts(spark: SparkSession, *whats: str | None, box: str = "b1") -> DataFrame:
    """Return one row per text, in order, in one box."""
    return spark.createDataFrame([(box, number, what) for number, what in enumerate(whats)], "box string, seq int, what string")


def dispatched(namespace: Namespace, rows: DataFrame, command: type[Command[Any]] = Post, **options: Any) -> DispatchReport:
    entity = "truck" if command is Move else "hook" if command is Hang else "box"
    given = {"key": [entity, "seq"], "order_by": "seq", "dispatch_id": "d", "outcomes": "1 day"} | namespace.options | options
    return dispatch_dataframe(rows, command, **given)


def reconciled(namespace: Namespace, commands: DataFrame, dispatch_id: str = "d", **columns: str) -> Reconciliation:
    """Reconcile by the id and the rows alone."""
    given: dict[str, Any] = namespace.options | columns
    return reconcile(dispatch_id=dispatch_id, commands=commands, **given)


def counts_of(ledger: Reconciliation) -> dict[str, int]:
    return {name: count for name, count in ledger.counts.items() if count}


def seqs(ledger: Reconciliation, name: str) -> list[int]:
    frame = ledger.frame(name)
    assert frame.count() == ledger.counts[name]
    return sorted(row["order_by"] for row in frame.collect())


def mailbox(namespace: Namespace, name: str) -> str:
    """Return the key of a mailbox in any shard."""
    with Redis.from_url(namespace.url) as client:
        (key,) = client.scan_iter(f"{{{namespace.name}:*}}:m:{name}", count=10_000)
        return key.decode()


def outcome_keys(namespace: Namespace) -> list[str]:
    with Redis.from_url(namespace.url) as client:
        return [key.decode() for key in client.scan_iter(f"{{{namespace.name}:*}}:b:d:out", count=10_000)]


@pytest.mark.slow
def test_a_run_with_every_status_is_reconciled(spark: SparkSession, namespace: Namespace, tmp_path: Any) -> None:
    whats = ["fine", "refuse", "shaky", "poison", None, "fine"]
    report = dispatched(namespace, posts(spark, *whats).union(posts(spark, *["fine"] * 4, box="b2")))
    with working(namespace, handlers()):
        ledger = reconcile(report, timeout=60)
    assert counts_of(ledger) == {"completed": 7, "rejected": 1, "dead_lettered": 1, "quarantined": 1}
    assert ledger.ok
    assert ledger.settled
    assert not ledger.notes
    ledger.raise_if_wrong()
    assert "right: every row is accounted for" in str(ledger)
    assert (seqs(ledger, "rejected"), seqs(ledger, "quarantined"), seqs(ledger, "missing")) == ([1], [4], [])
    rejected, letter, bad = (ledger.frame(name).first() for name in ("rejected", "dead_lettered", "quarantined"))
    assert (rejected["command"], rejected["entity"], rejected["error_type"], rejected["error_message"]) == (
        "Post", "b1", "heavy", "too heavy",
    )  # fmt: skip
    assert (letter["error_type"], letter["attempt"], letter["outcomes"]) == ("ValueError", 2, 1)
    assert letter["accepted_at"] <= letter["started_at"] <= letter["finished_at"]
    assert (bad["entity"], bad["error_type"]) == ("b1", "invalid")
    assert "what" in bad["error_message"]
    assert sorted(row["attempt"] for row in ledger.frame("completed").collect()) == [1] * 6 + [2]
    page = ledger.write(tmp_path / "out")
    text = page.read_text()
    assert page.name == "reconciliation-d.html"
    assert "Right: every row is accounted for" in text
    assert all(shown in text for shown in ("box:b1", "box:b2", "ValueError", "cannot be posted", "too heavy", "attempt 2"))
    with pytest.raises(InvalidSettings, match="completed, rejected"):
        ledger.frame("lost")


@pytest.mark.slow
def test_waiting_commands_are_pending(spark: SparkSession, namespace: Namespace) -> None:
    report = dispatched(namespace, posts(spark, "fine", "poison", "fine", "fine").withColumnRenamed("box", "hook"), Hang)
    assert counts_of(reconcile(report)) == {"pending": 4}
    mended = threading.Event()
    with working(namespace, handlers(mended=mended)):
        held = reconcile(report, timeout=1)
        assert counts_of(held) == {"completed": 1, "parked": 1, "pending": 2}
        assert held.ok
        assert not held.settled
        assert "2 pending" in str(held)
        assert [(row["order_by"], row["entity"]) for row in held.frame("pending").orderBy("order_by").collect()] == [
            (2, "b1"),
            (3, "b1"),
        ]
        mended.set()
        asyncio.run(replay_all(namespace))
        done = reconcile(report, timeout=60)
    assert counts_of(done) == {"completed": 4}
    assert done.ok


async def replay_all(namespace: Namespace) -> None:
    async with namespace.bus() as bus:
        letters = [letter async for letter in bus.dead_letters.list()]
        for letter in letters:
            await bus.dead_letters.replay(letter.id)


@pytest.mark.slow
def test_a_replayed_dead_letter_may_complete_late(spark: SparkSession, namespace: Namespace) -> None:
    report = dispatched(namespace, posts(spark, "fine", "poison", "fine"))
    mended = threading.Event()
    with working(namespace, handlers(mended=mended)):
        assert counts_of(reconcile(report, timeout=60)) == {"completed": 2, "dead_lettered": 1}
    mended.set()
    asyncio.run(replay_all(namespace))
    assert counts_of(reconcile(report)) == {"completed": 2, "pending": 1}
    with working(namespace, handlers(mended=mended)):
        done = reconcile(report, timeout=60)
    assert counts_of(done) == {"completed": 3}
    assert done.ok
    assert done.frame("completed").where("outcomes = 2").first()["order_by"] == 1


@pytest.mark.slow
def test_a_lost_command_is_missing_despite_other_commands(spark: SparkSession, namespace: Namespace) -> None:
    """The entity has as many commands as before: only their ids show that one is gone."""
    report = dispatched(namespace, posts(spark, "fine", "fine", "fine"))
    key = mailbox(namespace, "box:b1")
    with Redis.from_url(namespace.url) as client:
        entries: Any = client.xrange(key)
        client.xdel(key, entries[1][0])

    async def others() -> None:
        async with namespace.bus() as bus:
            await bus.dispatch(Post(box="b1", seq=77, what="fine"))

    asyncio.run(others())
    ledger = reconcile(report)
    assert counts_of(ledger) == {"pending": 2, "missing": 1}
    assert seqs(ledger, "missing") == [1]
    assert ledger.frame("missing").first()["entity"] == "b1"
    assert not ledger.ok
    assert "1 commands were accepted, but have no outcome" in str(ledger)
    with pytest.raises(NotReconciled, match="wrong: 1 missing") as caught:
        ledger.raise_if_wrong()
    assert caught.value.counts["missing"] == 1
    with working(namespace, handlers()):
        done = reconcile(report, timeout=3)
    assert counts_of(done) == {"completed": 2, "missing": 1}


@pytest.mark.slow
def test_a_second_outcome_is_duplicated(spark: SparkSession, namespace: Namespace) -> None:
    report = dispatched(namespace, posts(spark, "fine", "fine", "refuse"))
    with working(namespace, handlers()):
        assert reconcile(report, timeout=60).ok
    (key,) = outcome_keys(namespace)
    with Redis.from_url(namespace.url) as client:
        entries: Any = client.xrange(key)
        client.xadd(key, entries[0][1])
    ledger = reconcile(report)
    assert counts_of(ledger) == {"completed": 2, "rejected": 1, "duplicated": 1}
    assert seqs(ledger, "duplicated") == [0]
    assert not ledger.ok


@pytest.mark.slow
def test_rows_that_ran_out_of_order_are_reported(spark: SparkSession, namespace: Namespace) -> None:
    report = dispatched(namespace, posts(spark, *["fine"] * 5), order_by=None, partitions=1)
    with working(namespace, handlers()):
        assert reconcile(report, timeout=60).ok
    backwards = report.commands.withColumn("backwards", -F.col("seq"))
    ledger = reconciled(namespace, backwards, entity_column="box", order_by="backwards")
    assert counts_of(ledger) == {"completed": 5, "out_of_order": 4}
    assert seqs(ledger, "out_of_order") == [-4, -3, -2, -1]
    assert {row["why"] for row in ledger.frame("out_of_order").collect()} == {
        "ran after a command of its entity that is later by order_by"
    }
    with pytest.raises(NotReconciled, match="4 out of order"):
        ledger.raise_if_wrong()


@pytest.mark.slow
def test_trimmed_outcomes_are_no_proof(spark: SparkSession, namespace: Namespace, tmp_path: Any) -> None:
    report = dispatched(namespace, posts(spark, *["fine"] * 5))
    with working(namespace, handlers()):
        assert reconcile(report, timeout=60).ok
    (key,) = outcome_keys(namespace)
    with Redis.from_url(namespace.url) as client:
        client.xtrim(key, maxlen=3, approximate=False)
    ledger = reconcile(report)
    assert counts_of(ledger) == {"completed": 3, "forgotten": 2}
    assert not ledger.ok
    assert "not proven: 2 forgotten" in str(ledger)
    assert "Outcomes are kept no more (2;" in ledger.notes[0]
    assert seqs(ledger, "forgotten") == [0, 1]
    with Redis.from_url(namespace.url) as client:
        client.delete(key)
    assert counts_of(reconcile(report)) == {"missing": 5}  # younger than a day: nothing can have run out of time


@pytest.mark.slow
def test_expired_outcomes_are_no_proof(spark: SparkSession, namespace: Namespace) -> None:
    report = dispatched(namespace, posts(spark, *["fine"] * 3), outcomes="1 s", remember_for="1 h")
    with working(namespace, handlers()):
        until(lambda: namespace.depth() == 0)
    until(lambda: not outcome_keys(namespace))
    ledger = reconcile(report)
    assert counts_of(ledger) == {"forgotten": 3}
    assert "(an unknown number;" in ledger.notes[0]


def test_a_dispatch_without_outcomes_cannot_be_reconciled(spark: SparkSession, namespace: Namespace) -> None:
    report = dispatched(namespace, posts(spark, "fine"), outcomes=None)
    with pytest.raises(InvalidSettings, match='outcomes="7 days"'):
        reconcile(report)
    with pytest.raises(InvalidSettings, match="nothing is known of dispatch 'other'"):
        reconciled(namespace, report.commands, "other")


def test_wrong_arguments_are_refused(spark: SparkSession, namespace: Namespace) -> None:
    rows = posts(spark, "fine")
    with pytest.raises(InvalidSettings, match="no column 'command_id' \\(see command_bus"):
        reconciled(namespace, rows)
    with pytest.raises(InvalidSettings, match="no column 'when'; there are box"):
        reconciled(namespace, rows.withColumn("command_id", F.lit("c")), order_by="when")
    with pytest.raises(InvalidSettings, match="needs a report"):
        reconcile(dispatch_id="d")  # type: ignore[call-overload]
    report = dispatched(namespace, rows)
    with pytest.raises(InvalidSettings, match="knows all from its report"):
        reconcile(report, order_by="seq")  # type: ignore[call-overload]


@pytest.mark.slow
def test_rows_of_another_table_are_reported(spark: SparkSession, namespace: Namespace) -> None:
    report = dispatched(namespace, posts(spark, "fine", "fine"))
    with working(namespace, handlers()):
        assert reconcile(report, timeout=60).ok
    other = report.commands.where("seq = 0").unionByName(report.commands.limit(1).withColumn("command_id", F.lit("never sent")))
    ledger = reconciled(namespace, other)
    assert counts_of(ledger) == {"completed": 1, "missing": 1, "unexpected": 1}
    assert ledger.frame("unexpected").first()["entity"] == "b1"
    assert ["All accepted commands are accounted for" in note for note in ledger.notes] == [True, False]


@pytest.mark.slow
def test_dropped_rows_are_not_missing(spark: SparkSession, namespace: Namespace) -> None:
    report = dispatched(namespace, posts(spark, "fine", None, "fine"), on_invalid="drop")
    with working(namespace, handlers()):
        ledger = reconcile(report, timeout=60)
    assert counts_of(ledger) == {"completed": 2, "dropped": 1}
    assert ledger.ok


@pytest.mark.slow
def test_commands_settled_around_the_read_are_not_missing(
    spark: SparkSession, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One box is emptied just before the mailboxes are read and the other just after: reading outcomes first would miss one."""
    report = dispatched(namespace, posts(spark, "fine", "fine").union(posts(spark, "fine", "fine", box="b2")))

    async def pause(paused: bool) -> None:
        async with namespace.bus() as bus:
            scope = bus.entity("box", "b2")
            await (scope.pause() if paused else scope.resume())

    def look(*arguments: Any) -> DataFrame:
        until(lambda: namespace.depth() == 2)
        found = commands_in_mailboxes(*arguments)
        assert found.count() == 2
        asyncio.run(pause(False))
        until(lambda: namespace.depth() == 0)
        return found

    asyncio.run(pause(True))
    began = threading.Event()

    def begin(*arguments: Any) -> DataFrame:
        began.set()
        return look(*arguments)

    monkeypatch.setattr("command_bus.spark.reconciliation.reconciliation.commands_in_mailboxes", begin)
    ledgers: list[Reconciliation] = []
    caller = threading.Thread(target=lambda: ledgers.append(reconcile(report)))
    caller.start()
    assert began.wait(60)
    with working(namespace, handlers()):
        caller.join()
    assert counts_of(ledgers[0]) == {"completed": 4}


@pytest.mark.slow
def test_nothing_is_missing_while_workers_run(spark: SparkSession, namespace: Namespace) -> None:
    report = dispatched(namespace, journeys(spark, 20, 150), Move)
    ledgers: list[Reconciliation] = []
    with working(namespace, handlers(), concurrency=4):
        while not ledgers or not ledgers[-1].settled:
            ledgers.append(reconcile(report))
            assert ledgers[-1].ok, str(ledgers[-1])
    assert counts_of(ledgers[-1]) == {"completed": 3000}


@pytest.mark.slow
def test_waiting_is_logged_and_ends(
    spark: SparkSession, namespace: Namespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("command_bus.spark.reconciliation.dispatch_state._LOG_EVERY", 0.1)
    report = dispatched(namespace, posts(spark, "fine", "fine"))
    with caplog.at_level(logging.INFO, "command_bus.spark"):
        assert counts_of(reconcile(report, timeout=0.5)) == {"pending": 2}
    assert "0 of 2 settled" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 3])
def test_commands_in_mailboxes_are_found_by_id(spark: SparkSession, namespace: Namespace, shards: int) -> None:
    """In all shards, in long mailboxes and many, and of this dispatch only."""

    async def choose() -> None:
        async with namespace.bus(shards=shards) as bus:
            await bus.dispatch_batch(
                Envelope(Move(truck=f"t{each % 5}", seq=each), command_id=f"other-{each}") for each in range(50)
            )

    asyncio.run(choose())
    report = dispatched(
        namespace, journeys(spark, 30, 70).unionByName(journeys(spark, 1, 2500).withColumn("truck", F.lit("long"))), Move
    )
    dispatched(namespace, journeys(spark, 30, 2), Move, dispatch_id="another")
    found = commands_in_mailboxes(spark, Target.resolve(**namespace.options), "d", 1)
    assert found.count() == report.added == 30 * 70 + 2500
    assert found.join(report.commands, "command_id", "left_anti").count() == 0
    assert not found.where("parked").count()
