"""Reconciliation: each invariant is broken once by hand, then real runs with every status, while workers work and after losses."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from redis import Redis

from command_bus import Command, EntityId, Envelope, HandlerRegistry, InvalidSettings, NotReconciled, Reject, RetryPolicy
from command_bus.embedded import EmbeddedServer
from command_bus.spark import DispatchReport, Reconciliation, dispatch_dataframe, reconcile
from command_bus.spark.reconciliation.dispatch_state import commands_in_mailboxes
from command_bus.spark.reconciliation.statuses import entry_order, out_of_order, statuses_of
from command_bus.spark.target import Target
from tests.spark.trucks import Move, Place, journeys, until, working

START = 1_790_000_000_000
LOOKED = START + 500_000
OUTCOME = (
    "command_id string, status string, entity_type string, entity string, attempt int, fence long, message string, entry string, "
    "started_at timestamp"
)


@pytest.fixture
def place(server: EmbeddedServer) -> Place:
    return Place(server.url)


# The logic, on tables made by hand.


def outcome(
    command_id: str | None,
    at: int,
    status: str = "completed",
    *,
    fence: int | None = None,
    message: str | None = None,
    entity: str = "a",
) -> tuple[Any, ...]:
    """Settled at this second, by default in the order of its acceptance."""
    started = datetime.fromtimestamp((START + at * 1000 - 5) / 1000, UTC)
    place = f"{START + at}-0" if message is None else message
    return (command_id, status, "truck", entity, 1, at if fence is None else fence, place, f"{START + at * 1000}-0", started)


class HandmadeTables:
    """Tables made by hand, examined: `statuses` by id, and the ids that are duplicated or late."""

    def __init__(
        self,
        spark: SparkSession,
        rows: list[tuple[str | None, Any]],
        outcomes: list[tuple[Any, ...]],
        *,
        rejects: list[tuple[str | None, str]] = [],  # noqa: B006 - only read
        waiting: list[tuple[str, bool]] = [],  # noqa: B006
        order: str = "seq long",
    ) -> None:
        frame = statuses_of(
            spark.createDataFrame(rows, f"command_id string, {order}"),
            spark.createDataFrame(outcomes, OUTCOME),
            spark.createDataFrame(rejects, "command_id string, reason string"),
            spark.createDataFrame(waiting, "command_id string, parked boolean"),
            order_by="seq",
            looked_ms=LOOKED,
        ).cache()
        found = frame.collect()
        self.statuses = {row["command_id"]: row["status"] for row in found}
        self.rows = {row["command_id"]: row["rows"] for row in found}
        self.duplicated = {row["command_id"] for row in found if row["duplicated"]}
        self.late = {row["command_id"]: row["why"].split(" that ")[1] for row in out_of_order(frame).collect()}
        frame.unpersist()


def numbered(*ids: str) -> list[tuple[str | None, Any]]:
    return [(command_id, number) for number, command_id in enumerate(ids)]


def test_every_id_has_one_status(spark: SparkSession) -> None:
    statuses = ["completed", "rejected", "expired", "dead_lettered", "parked", "cancelled", "discarded"]
    found = HandmadeTables(
        spark,
        [*numbered(*statuses, "waits", "bad", "gone", "twin"), ("twin", 99), (None, 1), (None, 2)],
        [
            *(outcome(status, at, status, fence=at * 10) for at, status in enumerate(statuses, 1)),
            outcome("stranger", 99, entity="b"),
        ],
        rejects=[("bad", "invalid"), ("twin", "conflict"), (None, "invalid"), ("completed", "conflict")],
        waiting=[("waits", False), ("twin", False), ("parked", True)],
    )
    assert found.statuses == {status: status for status in statuses} | {
        "waits": "pending",
        "bad": "quarantined",
        "gone": "untraced",
        "twin": "pending",
        "stranger": "unexpected",
        None: "quarantined",
    }
    assert (found.rows["twin"], found.rows[None]) == (2, 2)
    assert not found.duplicated
    assert not found.late


def test_a_conflict_alone_explains_nothing(spark: SparkSession) -> None:
    assert HandmadeTables(spark, numbered("twin"), [], rejects=[("twin", "conflict")]).statuses == {"twin": "untraced"}


def test_whatever_follows_a_final_outcome_is_a_second_effect(spark: SparkSession) -> None:
    twice = ["completed completed", "rejected completed", "completed expired", "completed dead_lettered", "discarded completed"]
    twice += ["dead_lettered completed completed", "cancelled rejected"]
    once = [
        "completed",
        "dead_lettered completed",
        "parked parked completed",
        "expired completed",
        "dead_lettered discarded",
        "parked",
    ]
    outcomes = [outcome(story, at, status, entity=story) for story in once + twice for at, status in enumerate(story.split(), 1)]
    found = HandmadeTables(spark, numbered(*once, *twice), outcomes)
    assert found.statuses == {story: story.split()[-1] for story in once + twice}
    assert found.duplicated == set(twice)


def test_two_final_outcomes_with_the_same_entry_in_two_shards(spark: SparkSession) -> None:
    assert HandmadeTables(spark, numbered("c"), [outcome("c", 1), outcome("c", 1)]).duplicated == {"c"}


@pytest.mark.slow
def test_order_is_held_against_acceptance_and_against_the_column(spark: SparkSession) -> None:
    rows = numbered("a0", "a1", "a2", "b0", "b1")
    right = [outcome("a0", 1), outcome("a1", 2), outcome("a2", 3), outcome("b1", 5, entity="b"), outcome("b0", 4, entity="b")]
    assert not HandmadeTables(spark, rows, right).late
    overtaken = [outcome("a0", 1), outcome("a1", 2, fence=3), outcome("a2", 3, fence=2), *right[3:]]
    assert HandmadeTables(spark, rows, overtaken).late == {"a1": "was accepted later"}
    loaded_wrongly = [outcome("a1", 1), outcome("a0", 2), outcome("a2", 3), *right[3:]]
    assert HandmadeTables(spark, rows, loaded_wrongly).late == {"a0": "is later by order_by"}
    assert not HandmadeTables(spark, [(name, None) for name, _ in rows], loaded_wrongly).late


def test_ids_of_messages_are_compared_as_numbers(spark: SparkSession) -> None:
    rows = numbered("c0", "c1")
    right = [outcome("c0", 1, message=f"{START}-9"), outcome("c1", 2, message=f"{START}-10")]
    assert not HandmadeTables(spark, rows, right).late
    wrong = [outcome("c0", 1, message=f"{START}-10"), outcome("c1", 2, message=f"{START}-9")]
    assert set(HandmadeTables(spark, rows, wrong).late) == {"c1"}


def test_entities_of_different_types_are_not_held_against_each_other(spark: SparkSession) -> None:
    second = list(outcome("c1", 1, fence=9))
    second[2] = "trailer"
    assert not HandmadeTables(spark, numbered("c0", "c1"), [outcome("c0", 2, fence=10), tuple(second)]).late


def test_order_by_text(spark: SparkSession) -> None:
    rows: list[tuple[str | None, Any]] = [("c0", "a"), ("c1", "b")]
    assert set(HandmadeTables(spark, rows, [outcome("c1", 1), outcome("c0", 2)], order="seq string").late) == {"c0"}


def test_a_replayed_dead_letter_has_the_place_where_it_was_given_up(spark: SparkSession) -> None:
    kinds = ("dead_lettered", "parked", "expired")
    ids = [f"{kind}-{number}" for kind in kinds for number in range(3)]
    first = [
        outcome(f"{kind}-{number}", number + 1, kind if number == 0 else "completed", entity=kind)
        for kind in kinds
        for number in range(3)
    ]
    replays = [outcome(f"{kind}-0", 9, entity=kind) for kind in kinds]
    found = HandmadeTables(spark, numbered(*ids), [*first, *replays])
    assert set(found.statuses.values()) == {"completed"}
    assert not found.late
    no_letter = [each for each in first if not each[0].endswith("-0")]
    assert set(HandmadeTables(spark, numbered(*ids), [*no_letter, *replays]).late) == {
        f"{kind}-0" for kind in kinds
    }  # nothing excuses it


def test_what_never_started_has_no_place(spark: SparkSession) -> None:
    rows = numbered("c0", "c1", "c2")
    taken_out = [outcome("c2", 1, "cancelled", fence=0), outcome("c0", 2), outcome("c1", 3, "discarded", fence=0, message="")]
    found = HandmadeTables(spark, rows, taken_out)
    assert not found.late
    assert found.statuses["c1"] == "discarded"


def test_a_letter_that_was_replayed_and_waits_is_pending(spark: SparkSession) -> None:
    """Settled after mailboxes were looked into, it is what the outcome says."""
    cases = [
        (1, "dead_lettered", False, "pending"),
        (1, "parked", False, "pending"),
        (1, "parked", True, "parked"),
        (900, "dead_lettered", False, "dead_lettered"),
        (900, "completed", False, "completed"),
        (1, "completed", False, "completed"),
    ]
    ids = [f"c{number}" for number in range(len(cases))]
    outcomes = [outcome(name, at, status) for name, (at, status, _, _) in zip(ids, cases, strict=True)]
    waiting = [(name, parked) for name, (_, _, parked, _) in zip(ids, cases, strict=True)]
    found = HandmadeTables(spark, numbered(*ids), outcomes, waiting=waiting)
    assert found.statuses == {name: status for name, (_, _, _, status) in zip(ids, cases, strict=True)}


def test_places_grow_with_ids(spark: SparkSession) -> None:
    ids = ["1-0", "1-9", "1-10", f"{START}-0", f"{START}-2097151", f"{START}-9999999", f"{START + 1}-0", "4000000000000-7"]
    places = [
        row[0] for row in spark.createDataFrame([(each,) for each in ids], "id string").select(entry_order(F.col("id"))).collect()
    ]
    assert places == sorted(places)
    assert len(set(places)) == len(ids) - 1  # two million in a millisecond count as one
    assert spark.createDataFrame([("",), (None,)], "id string").select(entry_order(F.col("id"))).collect() == [(None,), (None,)]


# Real runs.


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
    """One row for each, in order, in one box."""
    return spark.createDataFrame([(box, number, what) for number, what in enumerate(whats)], "box string, seq int, what string")


def dispatched(place: Place, rows: DataFrame, command: type[Command[Any]] = Post, **options: Any) -> DispatchReport:
    entity = "truck" if command is Move else "hook" if command is Hang else "box"
    given = {"key": [entity, "seq"], "order_by": "seq", "dispatch_id": "d", "outcomes": "1 day"} | place.where | options
    return dispatch_dataframe(rows, command, **given)


def reconciled(place: Place, commands: DataFrame, dispatch_id: str = "d", **columns: str) -> Reconciliation:
    """From the id and the rows alone."""
    given: dict[str, Any] = place.where | columns
    return reconcile(dispatch_id=dispatch_id, commands=commands, **given)


def told(ledger: Reconciliation) -> dict[str, int]:
    return {name: count for name, count in ledger.counts.items() if count}


def seqs(ledger: Reconciliation, name: str) -> list[int]:
    frame = ledger.frame(name)
    assert frame.count() == ledger.counts[name]
    return sorted(row["order_by"] for row in frame.collect())


def mailbox(place: Place, name: str) -> str:
    """The key of a mailbox, wherever it is."""
    with Redis.from_url(place.url) as client:
        (key,) = client.scan_iter(f"{{{place.namespace}:*}}:m:{name}", count=10_000)
        return key.decode()


def outcome_keys(place: Place) -> list[str]:
    with Redis.from_url(place.url) as client:
        return [key.decode() for key in client.scan_iter(f"{{{place.namespace}:*}}:b:d:out", count=10_000)]


@pytest.mark.slow
def test_a_run_with_every_status_is_reconciled(spark: SparkSession, place: Place, tmp_path: Any) -> None:
    whats = ["fine", "refuse", "shaky", "poison", None, "fine"]
    report = dispatched(place, posts(spark, *whats).union(posts(spark, *["fine"] * 4, box="b2")))
    with working(place, handlers()):
        ledger = reconcile(report, timeout=60)
    assert told(ledger) == {"completed": 7, "rejected": 1, "dead_lettered": 1, "quarantined": 1}
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
def test_what_waits_is_pending_and_a_park_holds_its_followers(spark: SparkSession, place: Place) -> None:
    report = dispatched(place, posts(spark, "fine", "poison", "fine", "fine").withColumnRenamed("box", "hook"), Hang)
    assert told(reconcile(report)) == {"pending": 4}
    mended = threading.Event()
    with working(place, handlers(mended=mended)):
        held = reconcile(report, timeout=1)
        assert told(held) == {"completed": 1, "parked": 1, "pending": 2}
        assert held.ok
        assert not held.settled
        assert "2 pending" in str(held)
        assert [(row["order_by"], row["entity"]) for row in held.frame("pending").orderBy("order_by").collect()] == [
            (2, "b1"),
            (3, "b1"),
        ]
        mended.set()
        asyncio.run(replay_all(place))
        done = reconcile(report, timeout=60)
    assert told(done) == {"completed": 4}
    assert done.ok


async def replay_all(place: Place) -> None:
    async with place.bus() as bus:
        letters = [letter async for letter in bus.dead_letters.list()]
        for letter in letters:
            await bus.dead_letters.replay(letter.id)


@pytest.mark.slow
def test_a_repaired_letter_completes_out_of_its_turn_and_that_is_fine(spark: SparkSession, place: Place) -> None:
    report = dispatched(place, posts(spark, "fine", "poison", "fine"))
    mended = threading.Event()
    with working(place, handlers(mended=mended)):
        assert told(reconcile(report, timeout=60)) == {"completed": 2, "dead_lettered": 1}
    mended.set()
    asyncio.run(replay_all(place))
    assert told(reconcile(report)) == {"completed": 2, "pending": 1}
    with working(place, handlers(mended=mended)):
        done = reconcile(report, timeout=60)
    assert told(done) == {"completed": 3}
    assert done.ok
    assert done.frame("completed").where("outcomes = 2").first()["order_by"] == 1


def test_a_lost_command_is_missing_also_behind_the_traffic_of_others(spark: SparkSession, place: Place) -> None:
    """The entity has as many commands as before: only their ids tell that one is gone."""
    report = dispatched(place, posts(spark, "fine", "fine", "fine"))
    key = mailbox(place, "box:b1")
    with Redis.from_url(place.url) as client:
        entries: Any = client.xrange(key)
        client.xdel(key, entries[1][0])

    async def others() -> None:
        async with place.bus() as bus:
            await bus.dispatch(Post(box="b1", seq=77, what="fine"))

    asyncio.run(others())
    ledger = reconcile(report)
    assert told(ledger) == {"pending": 2, "missing": 1}
    assert seqs(ledger, "missing") == [1]
    assert ledger.frame("missing").first()["entity"] == "b1"
    assert not ledger.ok
    assert "1 commands were accepted, but have no outcome" in str(ledger)
    with pytest.raises(NotReconciled, match="wrong: 1 missing") as caught:
        ledger.raise_if_wrong()
    assert caught.value.counts["missing"] == 1
    with working(place, handlers()):
        done = reconcile(report, timeout=3)
    assert told(done) == {"completed": 2, "missing": 1}


@pytest.mark.slow
def test_an_outcome_too_many_is_duplicated(spark: SparkSession, place: Place) -> None:
    report = dispatched(place, posts(spark, "fine", "fine", "refuse"))
    with working(place, handlers()):
        assert reconcile(report, timeout=60).ok
    (key,) = outcome_keys(place)
    with Redis.from_url(place.url) as client:
        entries: Any = client.xrange(key)
        client.xadd(key, entries[0][1])
    ledger = reconcile(report)
    assert told(ledger) == {"completed": 2, "rejected": 1, "duplicated": 1}
    assert seqs(ledger, "duplicated") == [0]
    assert not ledger.ok


def test_rows_that_ran_in_another_order_are_named(spark: SparkSession, place: Place) -> None:
    report = dispatched(place, posts(spark, *["fine"] * 5), order_by=None, partitions=1)
    with working(place, handlers()):
        assert reconcile(report, timeout=60).ok
    backwards = report.commands.withColumn("backwards", -F.col("seq"))
    ledger = reconciled(place, backwards, entity_column="box", order_by="backwards")
    assert told(ledger) == {"completed": 5, "out_of_order": 4}
    assert seqs(ledger, "out_of_order") == [-4, -3, -2, -1]
    assert {row["why"] for row in ledger.frame("out_of_order").collect()} == {
        "ran after a command of its entity that is later by order_by"
    }
    with pytest.raises(NotReconciled, match="4 out of order"):
        ledger.raise_if_wrong()


@pytest.mark.slow
def test_trimmed_outcomes_are_no_proof(spark: SparkSession, place: Place, tmp_path: Any) -> None:
    report = dispatched(place, posts(spark, *["fine"] * 5))
    with working(place, handlers()):
        assert reconcile(report, timeout=60).ok
    (key,) = outcome_keys(place)
    with Redis.from_url(place.url) as client:
        client.xtrim(key, maxlen=3, approximate=False)
    ledger = reconcile(report)
    assert told(ledger) == {"completed": 3, "forgotten": 2}
    assert not ledger.ok
    assert "not proven: 2 forgotten" in str(ledger)
    assert "Outcomes are kept no more (2;" in ledger.notes[0]
    assert seqs(ledger, "forgotten") == [0, 1]
    with Redis.from_url(place.url) as client:
        client.delete(key)
    assert told(reconcile(report)) == {"missing": 5}  # younger than a day: nothing can have run out of time


def test_outcomes_that_ran_out_of_time_are_no_proof(spark: SparkSession, place: Place) -> None:
    report = dispatched(place, posts(spark, *["fine"] * 3), outcomes="1 s", remember_for="1 h")
    with working(place, handlers()):
        until(lambda: place.depth() == 0)
    until(lambda: not outcome_keys(place))
    ledger = reconcile(report)
    assert told(ledger) == {"forgotten": 3}
    assert "(an unknown number;" in ledger.notes[0]


def test_without_outcomes_there_is_nothing_to_reconcile(spark: SparkSession, place: Place) -> None:
    report = dispatched(place, posts(spark, "fine"), outcomes=None)
    with pytest.raises(InvalidSettings, match='outcomes="7 days"'):
        reconcile(report)
    with pytest.raises(InvalidSettings, match="nothing is known of dispatch 'other'"):
        reconciled(place, report.commands, "other")


def test_what_does_not_fit_together_is_refused(spark: SparkSession, place: Place) -> None:
    rows = posts(spark, "fine")
    with pytest.raises(InvalidSettings, match="no column 'command_id' \\(see command_bus"):
        reconciled(place, rows)
    with pytest.raises(InvalidSettings, match="no column 'when'; there are box"):
        reconciled(place, rows.withColumn("command_id", F.lit("c")), order_by="when")
    with pytest.raises(InvalidSettings, match="needs a report"):
        reconcile(dispatch_id="d")  # type: ignore[call-overload]
    report = dispatched(place, rows)
    with pytest.raises(InvalidSettings, match="knows all from its report"):
        reconcile(report, order_by="seq")  # type: ignore[call-overload]


@pytest.mark.slow
def test_rows_of_another_table_are_told_apart(spark: SparkSession, place: Place) -> None:
    report = dispatched(place, posts(spark, "fine", "fine"))
    with working(place, handlers()):
        assert reconcile(report, timeout=60).ok
    other = report.commands.where("seq = 0").unionByName(report.commands.limit(1).withColumn("command_id", F.lit("never sent")))
    ledger = reconciled(place, other)
    assert told(ledger) == {"completed": 1, "missing": 1, "unexpected": 1}
    assert ledger.frame("unexpected").first()["entity"] == "b1"
    assert ["All accepted commands are accounted for" in note for note in ledger.notes] == [True, False]


def test_dropped_rows_are_told_from_missing_ones(spark: SparkSession, place: Place) -> None:
    report = dispatched(place, posts(spark, "fine", None, "fine"), on_invalid="drop")
    with working(place, handlers()):
        ledger = reconcile(report, timeout=60)
    assert told(ledger) == {"completed": 2, "dropped": 1}
    assert ledger.ok


def test_what_settles_around_the_look_into_mailboxes_is_not_missing(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One box is emptied just before the look and the other just after it: whoever read the outcomes first would miss the one."""
    report = dispatched(place, posts(spark, "fine", "fine").union(posts(spark, "fine", "fine", box="b2")))

    async def pause(paused: bool) -> None:
        async with place.bus() as bus:
            scope = bus.entity("box", "b2")
            await (scope.pause() if paused else scope.resume())

    def look(*arguments: Any) -> DataFrame:
        until(lambda: place.depth() == 2)
        found = commands_in_mailboxes(*arguments)
        assert found.count() == 2
        asyncio.run(pause(False))
        until(lambda: place.depth() == 0)
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
    with working(place, handlers()):
        caller.join()
    assert told(ledgers[0]) == {"completed": 4}


@pytest.mark.slow
def test_while_workers_work_nothing_is_missing(spark: SparkSession, place: Place) -> None:
    report = dispatched(place, journeys(spark, 20, 150), Move)
    ledgers: list[Reconciliation] = []
    with working(place, handlers(), concurrency=4):
        while not ledgers or not ledgers[-1].settled:
            ledgers.append(reconcile(report))
            assert ledgers[-1].ok, str(ledgers[-1])
    assert told(ledgers[-1]) == {"completed": 3000}


def test_the_wait_is_told_and_ends(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("command_bus.spark.reconciliation.dispatch_state._LOG_EVERY", 0.1)
    report = dispatched(place, posts(spark, "fine", "fine"))
    with caplog.at_level(logging.INFO, "command_bus.spark"):
        assert told(reconcile(report, timeout=0.5)) == {"pending": 2}
    assert "0 of 2 settled" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 3])
def test_what_is_in_mailboxes_is_found_by_its_id(spark: SparkSession, place: Place, shards: int) -> None:
    """In all shards, in long mailboxes and many, and of this dispatch only."""

    async def choose() -> None:
        async with place.bus(shards=shards) as bus:
            await bus.dispatch_batch(
                Envelope(Move(truck=f"t{each % 5}", seq=each), command_id=f"other-{each}") for each in range(50)
            )

    asyncio.run(choose())
    report = dispatched(
        place, journeys(spark, 30, 70).unionByName(journeys(spark, 1, 2500).withColumn("truck", F.lit("long"))), Move
    )
    dispatched(place, journeys(spark, 30, 2), Move, dispatch_id="another")
    found = commands_in_mailboxes(spark, Target.resolve(**place.where), "d", 1)
    assert found.count() == report.added == 30 * 70 + 2500
    assert found.join(report.commands, "command_id", "left_anti").count() == 0
    assert not found.where("parked").count()
