"""Rows of views as Arrow batches: how each row is made, and how rows become columns. Times are UTC."""

from __future__ import annotations

import gc
import json
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute
from pydantic_core import to_json

from command_bus.admin.audit import AuditEntry
from command_bus.admin.events import CommandEvent
from command_bus.errors import BadState
from command_bus.export.views import COLUMNS, Kind, View
from command_bus.serialization.dead_letter import DeadLetterRecord
from command_bus.serialization.envelope import ENCRYPTED, KEEP_OUTCOME, unpack_envelope
from command_bus.serialization.json_forms import json_form, read_json
from command_bus.serialization.limits import PayloadLimits, Undecodable
from command_bus.serialization.msgpack import unpack
from command_bus.serialization.odd_values import pass_over
from command_bus.serialization.outcome import OutcomeRecord
from command_bus.serialization.reply import reply_id
from command_bus.serialization.states import StateCodec
from command_bus.serialization.story import story_of
from command_bus.settings import BusSettings
from command_bus.stream_ids import ms_of
from command_bus.transport.mailboxes import mailbox_parts
from command_bus.transport.ports.bulk import DispatchFacts
from command_bus.transport.ports.kept_streams import KeptStream
from command_bus.transport.records import StoredDeadLetter, StoredEntity

pc = cast("Any", pyarrow.compute)  # its functions are made when it is imported, so type checkers do not see them

Row = tuple[Any, ...]

MICROS = pa.timestamp("us", tz="UTC")
_LAST_MS = 253_402_300_799_999
"""The end of the year 9999."""
_ARROW: dict[Kind, Any] = {
    "text": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "real": pa.float64(),
    "flag": pa.bool_(),
    "time": MICROS,
}
_STATES = StateCodec(BusSettings(), None)
LIMITS = PayloadLimits(max_bytes=64 * 1024 * 1024, max_nesting=512, max_items=10_000_000)  # all that was accepted is shown


@contextmanager
def gc_paused() -> Generator[None]:
    """Pause the cyclic garbage collector: it would scan a batch's many small objects, which are in no cycle, again and again."""
    active = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if active:
            gc.enable()


def arrow_schema_of(view: View) -> Any:
    """Return the columns of a view as a `pyarrow.Schema`, which batches must match exactly."""
    return pa.schema([(name, _ARROW[kind]) for name, kind in COLUMNS[view].items()])


def batch_of(view: View, rows: Sequence[Row]) -> Any:
    """Return a `pyarrow.RecordBatch` of rows with the view's columns; times are ms since the epoch. What does not fit its column is NULL."""
    kinds = COLUMNS[view]
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


def dispatch_row(facts: DispatchFacts, streams: Sequence[KeptStream | None], now_ms: int) -> Row:
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


def event_row(event: CommandEvent, shard: int, entry: str) -> Row:
    """Return a row of `events`."""
    return (
        event.at_ms, event.kind, event.entity_type, event.entity_id, event.entity, event.command_id or None, event.name or None,
        event.attempt, event.fence or None, event.worker or None, event.delay, event.letter_id or None, event.reason or None,
        event.schedule or None, event.count or None, shard, entry,
    )  # fmt: skip


def audit_row(entry: AuditEntry) -> Row:
    """Return a row of `audit`."""
    texts = (entry.who, entry.act, entry.target, entry.why, entry.outcome, entry.ref, entry.details)
    return (entry.at_ms, *(text or None for text in texts), entry.id)


def step_rows(shard: int, entry: str, packed: bytes) -> list[Row]:
    """Return the rows of `steps` of an end; none if it keeps no story, or cannot be read."""
    try:
        record = OutcomeRecord.unpack(packed)
        steps = story_of(record, limits=LIMITS)
    except Undecodable as error:
        pass_over("history", entry, error)
        return []
    return [
        (
            reply_id(record.reply), record.name, record.entity_type, record.entity_id, record.status, ms_of(entry), number, step.kind, step.name,
            None if step.result is None else json_text(step.result), step.error, step.is_open, step.command_id, step.until_ms, step.cut,
            step.encrypted, shard, entry,
        )
        for number, step in enumerate(steps or (), 1)
    ]  # fmt: skip
