"""Rows of views as columns: of outcomes by the page, of other views by the row; and how streams are split, counted and shared out."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_bus import InvalidSettings
from command_bus.serialization.dead_letter import DeadLetterRecord
from command_bus.serialization.envelope import IN_DISPATCH, KEEP_OUTCOME, WireEnvelope, pack_envelope
from command_bus.serialization.msgpack import pack
from command_bus.serialization.outcome import OutcomeRecord
from command_bus.serialization.reply import (
    BadReply,
    Cancelled,
    Completed,
    Expired,
    Failed,
    Interrupted,
    Invalid,
    Outcome,
    Rejected,
    Unhandled,
    pack_reply,
)
from command_bus.transport.mailboxes import mailbox_name, mailbox_parts
from command_bus.transport.ports.bulk import DispatchFacts
from command_bus.transport.ports.kept_streams import KeptStream
from command_bus.transport.records import StoredDeadLetter, StoredEntity
from command_bus.transport.redis.kept_streams import RedisKeptStreams

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql.pandas.types import from_arrow_schema  # noqa: E402 - after the skips

from command_bus.export.columns import (  # noqa: E402
    arrow_schema_of,
    batch_of,
    dead_letter_row,
    dispatch_row,
    entity_row,
    json_text,
    reject_row,
)
from command_bus.export.ends import UNREADABLE, ends_batch  # noqa: E402
from command_bus.messages.policies import Lanes, PerEntity  # noqa: E402
from command_bus.spark.options import ReadOptions  # noqa: E402
from command_bus.spark.reading.offsets import BEGINNING, StreamOffset, fair_shares, format_offset, parse_offset  # noqa: E402
from command_bus.spark.reading.spans import Span, id_before, pack_spans, rows_per_task, split_span  # noqa: E402
from command_bus.spark.reading.views import schema_of  # noqa: E402

VIEWS = ("outcomes", "deadLetters", "rejects", "entities", "dispatches")
NOON = 1_795_262_400_000
AT_NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def record(outcome: Outcome, status: Any = "completed", **facts: Any) -> bytes:
    known: dict[str, Any] = {
        "name": "Pay", "entity_type": "account", "entity_id": "a-1", "attempt": 1, "worker": "w", "accepted_ms": NOON - 2000,
        "first_started_ms": NOON - 1000, "fence": 7, "message": "5-1", "command_id": "c",
    } | facts  # fmt: skip
    reply = pack_reply(known.pop("command_id"), outcome)
    return OutcomeRecord(status, **known, reply=reply).pack()


def batch_rows(*records: bytes) -> list[dict[str, Any]]:
    ids = [f"{NOON}-{number}".encode() for number in range(len(records))]
    batch = ends_batch("outcomes", "d", 3, (ids, [[b"r", each] for each in list(records)]))
    assert batch.schema == arrow_schema_of("outcomes")
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


class TestSchemas:
    @pytest.mark.parametrize("view", VIEWS)
    def test_spark_and_arrow_schemas_agree(self, view):
        assert from_arrow_schema(arrow_schema_of(view)) == schema_of(view)

    @pytest.mark.parametrize("view", VIEWS)
    def test_a_batch_may_be_empty(self, view):
        assert batch_of(view, []).schema == arrow_schema_of(view)

    def test_the_columns_of_outcomes_are_the_documented_ones(self):
        assert schema_of("outcomes").simpleString() == (
            "struct<dispatch_id:string,command_id:string,command:string,entity_type:string,entity:string,status:string,attempt:int,"
            "worker:string,accepted_at:timestamp,started_at:timestamp,finished_at:timestamp,fence:bigint,message:string,"
            "error_type:string,error_message:string,result:string,other:string,shard:int,entry:string>"
        )


def test_a_payload_that_cannot_be_read_costs_no_end_its_row():
    end = OutcomeRecord.unpack(record(Completed(pack(1))))
    packed = replace(end, envelope=b"\xc1").pack()
    [row] = ends_batch("history", "history", 0, ([b"5-0"], [[b"r", packed]])).to_pylist()
    assert (row["status"], row["result"], row["payload"]) == ("completed", "1", None)


class TestOutcomes:
    def test_every_column_of_a_completed_command(self):
        [row] = batch_rows(record(Completed(pack({"left": 3})), command_id="c-1"))
        assert row == {
            "dispatch_id": "d", "command_id": "c-1", "command": "Pay", "entity_type": "account", "entity": "a-1",
            "status": "completed", "attempt": 1, "worker": "w", "accepted_at": datetime(2026, 11, 21, 11, 59, 58, tzinfo=UTC),
            "started_at": datetime(2026, 11, 21, 11, 59, 59, tzinfo=UTC), "finished_at": AT_NOON, "fence": 7, "message": "5-1",
            "error_type": None, "error_message": None, "result": '{"left":3}', "other": None, "shard": 3, "entry": f"{NOON}-0",
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("outcome", "error_type", "message", "result"),
        [
            (Rejected("no money", "poor", {"short": 5}), "poor", "no money", '{"short":5}'),
            (Rejected("no"), "rejected", "no", None),
            (Failed("builtins.ValueError", "unlucky", 3), "builtins.ValueError", "unlucky", None),
            (Interrupted("lost"), "interrupted", "lost", None),
            (Expired("late"), "expired", "late", None),
            (Unhandled("who"), "no_handler", "who", None),
            (Invalid("odd"), "invalid", "odd", None),
            (BadReply("huge"), "bad_result", "huge", None),
            (Cancelled("purged"), "cancelled", "purged", None),
        ],
        ids=lambda value: type(value).__name__ if not isinstance(value, str | None) else "",
    )
    def test_failures_are_read_among_successes(self, outcome, error_type, message, result):
        plain = record(Completed(pack(1)))
        rows = batch_rows(plain, record(outcome, "rejected", command_id="bad"), plain)
        assert [row["command_id"] for row in rows] == ["c", "bad", "c"]
        assert [row["result"] for row in rows] == ["1", result, "1"]
        assert [(row["error_type"], row["error_message"]) for row in rows] == [(None, None), (error_type, message), (None, None)]

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (None, None),
            (0, "0"),
            (-5, "-5"),
            (2**63, str(2**63)),
            (True, "true"),
            (1.5, "1.5"),
            ("hé", '"hé"'),
            ([1, {"a": None}], '[1,{"a":null}]'),
            (b"\xff", '"data:;base64,/w=="'),
            (b"data:;base64,", '"data:;base64,ZGF0YTo7YmFzZTY0LA=="'),
            (float("nan"), "null"),
            (Decimal("1.50"), '"1.50"'),
            (date(2026, 11, 21), '"2026-11-21"'),
            (AT_NOON, '"2026-11-21T12:00:00Z"'),
            (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
            ({1}, "[1]"),
        ],
        ids=repr,
    )
    def test_results_are_json(self, value, text):
        packed = pack(value)
        assert [row["result"] for row in batch_rows(record(Completed(packed)))] == [text]
        mixed = batch_rows(record(Completed(packed)), record(Completed(pack(AT_NOON))))
        assert [row["result"] for row in mixed] == [text, '"2026-11-21T12:00:00Z"']

    def test_missing_times_and_entities_are_null(self):
        [row] = batch_rows(
            record(
                Cancelled("x"), "cancelled", entity_type=None, entity_id=None, accepted_ms=0, first_started_ms=0, message="d:1"
            )
        )
        assert (row["accepted_at"], row["started_at"], row["entity_type"], row["entity"]) == (None, None, None, None)

    @pytest.mark.parametrize(
        "damaged",
        [b"", b"\x01", b"\xc1", b"\x92\x01", record(Completed(b"\x01"))[:-1], record(Completed(b"\x01")) + b"\x01",
         pack([2, *range(11)]), pack([2, "completed", "n", None, None, 1, "w", 0, 0, 1, "m", pack_reply("c", Completed(b"\x01"))]),
         pack([1, "completed", "n", None, None, 1, "w", 0, 0, 1, "m", b"\x01"]), record(Completed(b"\x01"), attempt="x")],
        ids=range(10),
    )  # fmt: skip
    def test_an_unreadable_record_affects_no_other(self, damaged):
        plain = record(Completed(pack(1)))
        first, bad, last = batch_rows(plain, damaged, plain)
        assert (first["status"], last["status"], first["result"], last["result"]) == ("completed", "completed", "1", "1")
        assert (bad["status"], bad["command_id"]) == (UNREADABLE, None)
        assert (bad["dispatch_id"], bad["shard"], bad["entry"], bad["finished_at"]) == ("d", 3, f"{NOON}-1", AT_NOON)
        assert "bytes" in bad["error_message"]

    def test_a_later_reply_leaves_its_record_readable(self):
        reply = pack([9, "c-9", 0, b"\x01"])
        later = OutcomeRecord("completed", "Pay", None, None, 1, "w", 0, 0, 1, "5-1", reply).pack()
        rows = batch_rows(later, record(Completed(pack(1))))
        assert [(row["status"], row["command_id"], row["error_type"], row["result"]) for row in rows] == [
            ("completed", "c-9", UNREADABLE, None),
            ("completed", "c", None, "1"),
        ]


class TestRows:
    def test_a_dead_letter_has_its_dispatch_if_outcomes_are_kept(self):
        facts = DeadLetterRecord(reason="failed", command_id="c", name="Pay", attempts=3, accepted_ms=NOON, failed_ms=NOON)
        for flags, dispatch in ((IN_DISPATCH | KEEP_OUTCOME, "d"), (IN_DISPATCH, None), (0, None)):
            envelope = WireEnvelope("c", "Pay", "account", "a-1", pack({"n": 1}), flags, correlation_id="d")
            row = dead_letter_row(StoredDeadLetter("0-5-1", "account:a-1", facts.pack(), pack_envelope(envelope), parked=True))
            shown = batch_of("deadLetters", [row]).to_pylist()[0]
            assert (shown["id"], shown["dispatch_id"], shown["payload"], shown["parked"]) == ("0-5-1", dispatch, '{"n":1}', True)
            assert (shown["failed_at"], shown["first_started_at"], shown["traceback"]) == (AT_NOON, None, None)

    def test_a_dead_letter_of_damaged_bytes_is_shown(self):
        shown = batch_of(
            "deadLetters", [dead_letter_row(StoredDeadLetter("0-5-1", "", b"\xc1", b"junk", parked=False))]
        ).to_pylist()[0]
        assert (shown["reason"], shown["payload"], shown["command_id"]) == ("unknown", None, None)

    def test_a_reject_keeps_its_row_as_json(self):
        facts = {
            "command_id": "",
            "command": "Pay",
            "entity": None,
            "reason": "invalid",
            "error": "é",
            "row": {"a": "ü", "b": None},
        }
        shown = batch_of("rejects", [reject_row("d", json.dumps(facts).encode())]).to_pylist()[0]
        assert shown == {
            "dispatch_id": "d", "command_id": None, "command": "Pay", "entity": None, "reason": "invalid", "error": "é",
            "row": '{"a": "ü", "b": null}',
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("mailbox", "parts"),
        [
            (mailbox_name("account", "a-1", PerEntity()), ("account", "a-1")),
            (mailbox_name("account", "a/é {1}~", PerEntity()), ("account", "a/é {1}~")),
            (mailbox_name("account", "~x", PerEntity()), ("account", "~x")),
            (mailbox_name("account", "x" * 600, PerEntity()), ("account", None)),
            (mailbox_name("account", "a-1", Lanes(4)), ("account", None)),
            ("~:c-1", (None, None)),
        ],
    )
    def test_an_entity_is_null_if_its_mailbox_has_no_name(self, mailbox, parts):
        assert mailbox_parts(mailbox) == parts
        row = entity_row(StoredEntity(mailbox, "waiting", 2, 0, 0), 1)
        assert batch_of("entities", [row]).to_pylist()[0]["entity"] == parts[1]

    @pytest.mark.parametrize(
        ("keep_ms", "age_ms", "streams", "counts"),
        [
            (0, 0, [None], (None, None, None)),  # keeps none
            (1000, 0, [None, None], (0, 0, 10)),  # none yet
            (1000, 5000, [None, None], (0, None, None)),  # none yet, or none any more
            (1000, 5000, [KeptStream(4, 4, "1-0", "9-0"), None], (4, None, None)),
            (1000, 0, [KeptStream(4, 5, "1-0", "9-0"), KeptStream(2, 2, "1-0", "9-0")], (6, 1, 3)),
            (1000, 0, [KeptStream(12, 12, "1-0", "9-0")], (12, 0, 0)),  # replayed ones count twice
            (1000, 0, [KeptStream(4, None, "1-0", "9-0")], (4, None, None)),  # Redis 6 does not count
        ],
    )
    def test_pending_is_null_if_unknown(self, keep_ms, age_ms, streams, counts):
        facts = DispatchFacts("d", version=0, first_ms=NOON, added=10, keep_ms=keep_ms)
        shown = batch_of("dispatches", [dispatch_row(facts, streams, NOON + age_ms)]).to_pylist()[0]
        assert (shown["outcomes"], shown["trimmed"], shown["pending"]) == counts
        assert (shown["state"], shown["version"], shown["opened_at"], shown["committed_at"]) == ("committed", 0, AT_NOON, None)

    @pytest.mark.parametrize(
        ("version", "opened", "state"), [(-1, 0, "open"), (0, None, "committed"), (4, 5, "open"), (-1, None, "open")]
    )
    def test_a_dispatch_is_open_while_a_version_is_open(self, version, opened, state):
        assert dispatch_row(DispatchFacts("d", version=version, opened=opened), [None], NOON)[1] == state

    def test_json_of_other_types(self):
        assert json.loads(json_text({"a": [Decimal(1), {2}, b"\xff", float("-inf")]})) == {
            "a": ["1", [2], "data:;base64,/w==", None]
        }


class Recorded(RedisKeptStreams):
    """Outcomes that a test makes up, by their times."""

    def __init__(self, *times: int) -> None:
        self.times = sorted(times)

    async def ends(self, name: str, shard: int, low: str, high: str) -> tuple[str, str] | None:
        at_least = int(low.partition("-")[0])
        below = int(high[1:].partition("-")[0]) if high.startswith("(") else int(high.partition("-")[0]) + 1
        found = [time for time in self.times if at_least <= time < below]
        return (f"{found[0]}-0", f"{found[-1]}-0") if found else None


class TestSpans:
    @pytest.mark.parametrize(("entry", "left"), [("5-3", "5-2"), ("5-0", f"4-{2**64 - 1}"), ("0-0", ""), ("5", f"4-{2**64 - 1}")])
    def test_id_before(self, entry, left):
        assert id_before(entry) == left

    @pytest.mark.parametrize(
        ("times", "pieces", "ends"),
        [
            (range(100), 4, [24, 49, 74, 99]),
            ([*range(10), *range(10_000, 10_010)], 4, [4, 9, 10_004, 10_009]),  # a gap of a thousand times their length
            ([5], 4, [5]),
            ([5, 6], 4, [5, 6]),
            (range(100), 1, [99]),
        ],
        ids=["even", "gap", "one", "two", "whole"],
    )
    async def test_a_span_is_split_by_time_without_gaps(self, times, pieces, ends):
        first, last = f"{min(times)}-0", f"{max(times)}-0"
        parts = await split_span(Recorded(*times), Span("d", 0, id_before(first), last, 100), first, pieces)
        assert [part.until for part in parts] == [f"{end}-0" for end in ends]
        assert [part.after for part in parts] == [id_before(first), *(part.until for part in parts[:-1])], (
            "nothing between them is left out"
        )
        assert sum(part.rows for part in parts) >= 100

    def test_short_spans_are_grouped_in_order(self):
        spans = [Span("d", 0, "", str(number), rows) for number, rows in enumerate([3, 4, 9, 1, 1, 1])]
        assert [[span.rows for span in task] for task in pack_spans(spans, 8)] == [[3, 4], [9], [1, 1, 1]]
        assert pack_spans([], 8) == []

    @pytest.mark.parametrize(
        ("total", "partitions", "rows"), [(1_000_000, None, 250_000), (1_000_000, 10, 100_000), (5, 10, 1), (0, None, 1)]
    )
    def test_rows_per_task(self, total, partitions, rows):
        assert rows_per_task(total, partitions) == rows


class TestOffsets:
    def stream(self, length: int, added: int | None, first: int = 0, last: int = 100) -> KeptStream:
        return KeptStream(length, added, f"{first or last - length + 1}-0", f"{last}-0")

    def test_offsets_are_written_and_read(self):
        positions = {("b", 1): StreamOffset("5-1", 3), ("a", 0): StreamOffset("6-0"), ("b", 0): StreamOffset("7-0", 0)}
        offset = format_offset(positions)
        assert json.dumps(offset) == '{"a": {"0": "6-0"}, "b": {"0": "7-0/0", "1": "5-1/3"}}'
        assert parse_offset(json.loads(json.dumps(offset))) == positions

    @pytest.mark.parametrize("text", ["", "x", "5-1/", "5-1/x", "/3"])
    def test_an_invalid_offset_is_refused(self, text):
        with pytest.raises(InvalidSettings, match="checkpointLocation"):
            StreamOffset.parse(text)

    @pytest.mark.parametrize(
        ("position", "stream", "left", "lost"),
        [
            (StreamOffset("100-0", 10), (10, 10), 0, 0),
            (StreamOffset("97-0", 7), (10, 10), 3, 0),
            (StreamOffset("97-0"), (10, 10), 10, 0),  # not known: at most all
            (StreamOffset("97-0", 7), (10, None), 10, 0),  # Redis 6
            (StreamOffset("97-0", 7), (2, 10), 2, 1),  # one was trimmed unread
            (StreamOffset("97-0", 7), (3, 10), 3, 0),  # just what was read is trimmed
            (StreamOffset(BEGINNING, 0), (4, 10), 4, 6),
            (StreamOffset(BEGINNING, 6), (4, 10), 4, 0),
            (
                StreamOffset("97-0", 50),
                (10, 60, 99),
                10,
                0,
            ),  # 50 were read, but only 50 are trimmed in a stream that begins behind: just so
            (StreamOffset("97-0", 51), (10, 60, 99), 10, 0),  # 51 were read, and 50 trimmed: it is another stream
            (StreamOffset("97-0", 5), (2, 5, 99), 2, 0),  # another stream too; by its counts alone nothing would be left
            (StreamOffset("200-0"), (10, 10), 0, 0),  # from a time on that is still to come
        ],
    )
    def test_left_and_lost(self, position, stream, left, lost):
        found = self.stream(*stream)
        assert (position.left(found), position.lost(found)) == (left, lost)

    def test_an_offset_moves_past_lost_outcomes(self):
        assert StreamOffset("90-0", 3).passed(self.stream(5, 10), "98-0", 3) == StreamOffset("98-0", 8)
        assert StreamOffset("90-0").passed(self.stream(5, 10), "98-0", 3) == StreamOffset("98-0")

    @given(st.lists(st.integers(1, 1000), max_size=20), st.integers(0, 3000))
    def test_shares_are_fair_and_use_the_budget(self, wanted, budget):
        given_ = fair_shares(wanted, budget)
        assert sum(given_) == min(budget, sum(wanted))
        assert all(0 <= share <= want for share, want in zip(given_, wanted, strict=True))
        unserved = [share for share, want in zip(given_, wanted, strict=True) if share < want]
        assert not unserved or max(given_) - min(unserved) <= 1


class TestOptions:
    @pytest.mark.parametrize(
        ("text", "ms"),
        [
            ("1795262400000", NOON),
            ("2026-11-21T12:00:00Z", NOON),
            ("2026-11-21 13:00:00+01:00", NOON),
            ("2026-11-21T12:00:00.0019", NOON + 1),
            ("2026-11-21", NOON - 12 * 3_600_000),
        ],
    )
    def test_times_are_milliseconds_or_iso_texts(self, text, ms):
        assert ReadOptions.parse({"startingTimestamp": text}).since_ms == ms

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"veiw": "outcomes"}, "did you mean view"),
            ({"view": "outcome"}, "there are outcomes, deadLetters"),
            ({"startingTimestamp": "soon"}, "milliseconds since 1970"),
            ({"startingTimestamp": "9" * 5000}, "milliseconds since 1970"),
            ({"startingTimestamp": "2", "endingTimestamp": "1"}, "before startingTimestamp"),
            ({"view": "entities", "dispatchId": "d"}, "goes with the views outcomes, deadLetters, rejects, dispatches"),
            ({"view": "rejects", "endingTimestamp": "1"}, "not with rejects"),
            ({"failOnDataLoss": "maybe"}, "true or false"),
            ({"pageSize": "0"}, "at least 1"),
        ],
    )
    def test_wrong_options_name_the_right_ones(self, options, message):
        with pytest.raises(InvalidSettings, match=message):
            ReadOptions.parse(options)

    def test_option_and_view_names_ignore_case(self):
        read = ReadOptions.parse({"VIEW": "dead_letters", "dispatchid": "d", "PushDown": "TRUE"})
        assert (read.view, read.dispatch_id, read.pushdown) == ("deadLetters", "d", True)
