"""The views that can be read, each a table with fixed columns; and how their rows become Arrow batches.

| view | a row for each |
| --- | --- |
| `outcomes` | command of a dispatch that was settled; several for one that was dead-lettered or parked and then replayed |
| `deadLetters` | dead letter that was neither replayed nor discarded since |
| `rejects` | row of a dispatch that is no command |
| `entities` | entity that has work, or is paused |
| `dispatches` | dispatch that is remembered |
| `states` | entity that has a state |

Columns are declared once, as names and kinds; Spark's schema and Arrow's are both made from these. Times are UTC.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast

import pyarrow as pa
import pyarrow.compute
from pydantic_core import to_json
from pyspark.sql.types import BooleanType, DataType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from command_bus.errors import BadState
from command_bus.serialization.dead_letter import DeadLetterRecord
from command_bus.serialization.envelope import ENCRYPTED, KEEP_OUTCOME, unpack_envelope
from command_bus.serialization.json_forms import json_form, read_json
from command_bus.serialization.limits import PayloadLimits, Undecodable
from command_bus.serialization.msgpack import unpack
from command_bus.serialization.odd_values import pass_over
from command_bus.serialization.states import StateCodec
from command_bus.settings import BusSettings
from command_bus.spark.options import View
from command_bus.transport.mailboxes import mailbox_parts
from command_bus.transport.ports.bulk import DispatchFacts, OutcomeStream
from command_bus.transport.records import StoredDeadLetter, StoredEntity

pc = cast("Any", pyarrow.compute)  # its functions are made when it is imported, so type checkers do not see them

Kind = Literal["text", "int", "long", "flag", "time"]
Row = tuple[Any, ...]

_COLUMNS: dict[View, dict[str, Kind]] = {
    "outcomes": {
        "dispatch_id": "text", "command_id": "text", "command": "text", "entity_type": "text", "entity": "text", "status": "text",
        "attempt": "int", "worker": "text", "accepted_at": "time", "started_at": "time", "finished_at": "time", "fence": "long",
        "message": "text", "error_type": "text", "error_message": "text", "result": "text", "other": "text", "shard": "int", "entry": "text",
    },
    "deadLetters": {
        "id": "text", "dispatch_id": "text", "command_id": "text", "command": "text", "entity_type": "text", "entity": "text",
        "reason": "text", "error_type": "text", "error_message": "text", "traceback": "text", "attempts": "int",
        "accepted_at": "time", "first_started_at": "time", "failed_at": "time", "worker": "text", "parked": "flag", "payload": "text",
    },
    "rejects": {
        "dispatch_id": "text", "command_id": "text", "command": "text", "entity": "text", "reason": "text", "error": "text", "row": "text",
    },
    "entities": {
        "entity_type": "text", "entity": "text", "mailbox": "text", "state": "text", "depth": "long", "oldest_accepted_at": "time",
        "attempt": "int", "shard": "int",
    },
    "dispatches": {
        "dispatch_id": "text", "state": "text", "version": "long", "opened_at": "time", "committed_at": "time", "added": "long",
        "duplicates": "long", "folded": "long", "replaced": "long", "rejected": "long", "outcomes": "long", "trimmed": "long", "pending": "long",
        "outcomes_until": "time", "remembered_until": "time", "what": "text", "summary": "text",
    },
    "states": {
        "entity_type": "text", "entity": "text", "state": "text", "changed_at": "time", "revision": "long", "version": "int", "bytes": "long",
        "shard": "int",
    },
}  # fmt: skip

_SPARK: dict[Kind, DataType] = {
    "text": StringType(),
    "int": IntegerType(),
    "long": LongType(),
    "flag": BooleanType(),
    "time": TimestampType(),
}
MICROS = pa.timestamp("us", tz="UTC")
_LAST_MS = 253_402_300_799_999
"""The end of the year 9999."""
_ARROW: dict[Kind, Any] = {"text": pa.string(), "int": pa.int32(), "long": pa.int64(), "flag": pa.bool_(), "time": MICROS}
_STATES = StateCodec(BusSettings(), None)
LIMITS = PayloadLimits(max_bytes=64 * 1024 * 1024, max_nesting=512, max_items=10_000_000)  # all that was accepted is shown


def schema_of(view: View) -> StructType:
    """Return the columns of a view as Spark's schema."""
    return StructType([StructField(name, _SPARK[kind]) for name, kind in _COLUMNS[view].items()])


def arrow_schema_of(view: View) -> Any:
    """Return the columns of a view as a `pyarrow.Schema`, which batches must match exactly."""
    return pa.schema([(name, _ARROW[kind]) for name, kind in _COLUMNS[view].items()])


def batch_of(view: View, rows: Sequence[Row]) -> Any:
    """Return a `pyarrow.RecordBatch` of rows with the view's columns; times are ms since the epoch. What does not fit its column is NULL."""
    kinds = _COLUMNS[view]
    columns = zip(*rows, strict=True) if rows else [()] * len(kinds)
    arrays = [_array(f"{view}.{name}", kind, column) for (name, kind), column in zip(kinds.items(), columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema_of(view))


def _array(column: str, kind: Kind, values: Sequence[Any]) -> Any:
    try:
        return times(values) if kind == "time" else pa.array(values, _ARROW[kind])
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if len(values) > 1:
            return pa.concat_arrays([_array(column, kind, [value]) for value in values])
        pass_over(column, values[0], error)
        return pa.nulls(1, _ARROW[kind])


def times(ms: Iterable[int | None] | Any) -> Any:
    """Return an Arrow array of times; 0, and what no timestamp of Python can be, is not known and NULL."""
    array = ms if isinstance(ms, pa.Array) else pa.array(ms, pa.int64())
    known = pc.and_(pc.greater(array, 0), pc.less_equal(array, _LAST_MS))
    return pc.if_else(known, pc.multiply(array, 1000), pa.scalar(None, pa.int64())).cast(MICROS)


def json_text(value: Any) -> str:
    """Return a value as JSON, in the one form that all edges show (`json_form`)."""
    return to_json(json_form(value)).decode()


def packed_json(packed: bytes) -> str | None:
    """Return packed bytes as JSON; None if they cannot be read."""
    try:
        return json_text(unpack(packed, LIMITS))
    except (Undecodable, ValueError):
        return None


def dead_letter_row(letter: StoredDeadLetter) -> Row:
    """Return a row of `deadLetters`.

    The dispatch is known only if it keeps outcomes: then the command's correlation id is the dispatch's.
    """
    try:
        record = DeadLetterRecord.unpack(letter.record)
    except Undecodable:
        record = DeadLetterRecord(reason="unknown")
    dispatch_id = payload = None
    try:
        envelope = unpack_envelope(letter.raw, LIMITS)
    except Undecodable:
        pass  # a dead letter may be about bytes that are no envelope
    else:
        dispatch_id = envelope.correlation_id if envelope.flags & KEEP_OUTCOME else None
        payload = None if envelope.flags & ENCRYPTED else packed_json(envelope.payload)
    return (
        letter.id, dispatch_id, record.command_id or None, record.name or None, record.entity_type, record.entity_id,
        record.reason, record.error_type or None, record.error_message or None, record.traceback or None, record.attempts,
        record.accepted_ms, record.first_started_ms, record.failed_ms, record.worker or None, letter.parked, payload,
    )  # fmt: skip


def reject_row(dispatch_id: str, record: bytes) -> Row:
    """Return a row of `rejects`."""
    try:
        facts: Any = read_json(record)
        texts = [facts.get(name) or None for name in ("command_id", "command", "entity", "reason", "error")]
        return (dispatch_id, *texts, json.dumps(facts.get("row"), ensure_ascii=False))
    except (ValueError, AttributeError) as error:  # any client may have written it
        pass_over("b", dispatch_id, error)
        return (dispatch_id, None, None, None, "unknown", None, None)


def entity_row(entity: StoredEntity, shard: int) -> Row:
    """Return a row of `entities`. The entity is NULL for a lane, and for an id so long that the mailbox only has its digest."""
    kind, name = mailbox_parts(entity.mailbox)
    return (kind, name, entity.mailbox, entity.state, entity.depth, entity.oldest_ms, entity.attempt, shard)


def state_row(mailbox: str, data: bytes, shard: int) -> Row:
    """Return a row of `states`. The state is NULL if it is encrypted, or not what a bus has stored."""
    kind, name = mailbox_parts(mailbox)
    try:
        stored = _STATES.read(mailbox, data)
    except BadState as error:
        pass_over("states", mailbox, error)
        return (kind, name, None, None, None, None, len(data), shard)
    return (kind, name, packed_json(stored.payload), stored.changed_ms, stored.fence, stored.version, len(data), shard)


def dispatch_row(facts: DispatchFacts, streams: Sequence[OutcomeStream | None], now_ms: int) -> Row:
    """Return a row of `dispatches`.

    Args:
        facts: The record of the dispatch.
        streams: Its outcomes, by shard; None if a shard has none.
        now_ms: The time when they were read.
    """
    found = [stream for stream in streams if stream is not None]
    outcomes = trimmed = pending = None
    if facts.keep_ms:
        outcomes = sum(stream.length for stream in found)
        counted = all(stream.added is not None for stream in found)
        vanished = any(stream is None for stream in streams) and now_ms - facts.first_ms >= facts.keep_ms
        if counted and not vanished:  # an expired stream has no count left
            trimmed = sum(stream.trimmed for stream in found)
            pending = max(facts.added + facts.folded - outcomes - trimmed, 0)
    left_ms = max((stream.left_ms for stream in found), default=0)
    return (
        facts.dispatch_id,
        facts.state,
        facts.version if facts.version >= 0 else None,
        facts.first_ms, facts.done_ms, facts.added, facts.duplicates, facts.folded, facts.replaced, facts.rejected, outcomes, trimmed, pending,
        now_ms + left_ms if left_ms else 0, now_ms + facts.left_ms if facts.left_ms else 0,
        facts.what or None, facts.summary or None,
    )  # fmt: skip
