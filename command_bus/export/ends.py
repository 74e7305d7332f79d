"""Pages of outcomes and of the history into Arrow, by columns: millions are read, so nothing here makes an object per row.

The records of a page are put behind one array header and read by one call into C, and so are the replies within them. Transposed, each
column becomes an Arrow array. Only values that are not plain (a rejection, a failure, a result that is a date) are read one by one. The
wire form of a completed reply is known here, because almost all replies are completed. One unreadable record makes such a page fail.
Each record is then read alone, and that one has the status `unreadable`.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pydantic_core import PydanticSerializationError, to_json

from command_bus.export.columns import LIMITS, MICROS, arrow_schema_of, json_text, packed_json, pc, times
from command_bus.export.views import View
from command_bus.serialization.envelope import ENCRYPTED, unpack_envelope
from command_bus.serialization.json_forms import BASE64
from command_bus.serialization.limits import Undecodable
from command_bus.serialization.native import unpackb
from command_bus.serialization.reply import (
    BadReply,
    Cancelled,
    Completed,
    Expired,
    Failed,
    Forged,
    Interrupted,
    Invalid,
    Rejected,
    Unhandled,
    unpack_reply,
)
from command_bus.transport.ports.kept_streams import StreamPage

UNREADABLE = "unreadable"
"""The status of an outcome that another version of this library wrote, or that is damaged."""

_VERSION = 1
_RECORD, _REPLY, _COMPLETED = 12, 3, 0  # elements of a record, of a reply before its body; the kind of a reply with a value
_WITH_OTHER = frozenset(("folded", "superseded"))  # statuses whose records name another command at the end
_NOTHING = b"\xc0"
_DIGITS = 15
"""Those of the last time that there is, in ms."""

# The names that callers' errors and dead letters have.
_CODES: dict[type[Any], str] = {
    Interrupted: "interrupted",
    Expired: "expired",
    Unhandled: "no_handler",
    Invalid: "invalid",
    BadReply: "bad_result",
    Forged: "bad_signature",
}

ReplyTexts = tuple[str | None, str | None, str | None, bool]
"""Error type, error message, result, and whether that is encrypted."""


def ends_batch(view: View, name: str, shard: int, page: StreamPage) -> Any:
    """Return the `pyarrow.RecordBatch` of a page of `outcomes` or `history`, which must not be empty."""
    ids, entries = page
    return _ends_batch(view, name, shard, ids, [_record(flat) for flat in entries])


def _record(flat: list[bytes]) -> bytes:
    """Return the record of an entry: the last of its fields, or the only one; empty where somebody else has written it."""
    return flat[-1] if flat[-2] == b"r" else b""


def _ends_batch(view: View, name: str, shard: int, ids: list[bytes], records: list[bytes]) -> Any:
    try:
        return _batch(view, name, shard, ids, _columns(records))
    except Exception:  # noqa: BLE001 - msgpack, shapes, types: each means that one record is wrong
        if len(records) > 1:
            parts = [_ends_batch(view, name, shard, [entry], [record]) for entry, record in zip(ids, records, strict=True)]
            return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
        return _unreadable(view, name, shard, ids[0], records[0])


def _columns(records: list[bytes]) -> dict[str, Any]:
    """Return the columns of the records, as sequences.

    Raises:
        Exception: One record is not as expected; of any type.
    """
    rows: Any = unpackb(_array(records), use_list=False)
    columns = list(zip(*rows, strict=False))  # later versions may append elements
    versions, status, name, kind, entity, attempt, worker, accepted, started, fence, message, packed = columns[:_RECORD]
    replies: Any = unpackb(_array(packed), use_list=False)
    if len(rows) != len(records) or set(versions) != {_VERSION} or len(replies) != len(packed):
        raise Undecodable("a page with records of another shape")
    others: list[str | None] = [None] * len(rows)
    if not _WITH_OTHER.isdisjoint(status):
        others = [row[_RECORD] if row[1] in _WITH_OTHER and len(row) > _RECORD else None for row in rows]
    plain = [reply[0] == _VERSION and reply[2] == _COMPLETED and len(reply) == _REPLY + 1 for reply in replies]
    results = _results([reply[_REPLY] if is_plain else _NOTHING for reply, is_plain in zip(replies, plain, strict=True)])
    error_types: list[str | None] = [None] * len(rows)
    messages = error_types.copy()
    encrypted = [False] * len(rows)
    for index, is_plain in enumerate(plain):
        if not is_plain:
            error_types[index], messages[index], results[index], encrypted[index] = _reply_texts(packed[index])
    return {
        "command_id": [reply[1] for reply in replies], "command": name, "entity_type": kind, "entity": entity, "status": status,
        "attempt": attempt, "worker": worker, "accepted_at": accepted, "started_at": started, "fence": fence, "message": message,
        "error_type": error_types, "error_message": messages, "result": results, "other": others, **_further(rows, encrypted),
    }  # fmt: skip


def _further(rows: Any, encrypted: list[bool]) -> dict[str, Any]:
    """Return what stands in the history alone: further entities, and the payload where it is kept."""
    others: list[str | None] = [None] * len(rows)
    payloads = others.copy()
    for index, row in enumerate(rows):
        for value in row[_RECORD:]:
            if type(value) is tuple:
                others[index] = json_text(value)
            elif type(value) is bytes:
                try:
                    envelope = unpack_envelope(value, LIMITS)
                except Undecodable:  # of a later release: the end itself can be read
                    continue
                encrypted[index] |= bool(envelope.flags & ENCRYPTED)
                payloads[index] = None if envelope.flags & ENCRYPTED else packed_json(envelope.payload)
    return {"others": others, "payload": payloads, "encrypted": encrypted}


def _batch(view: View, name: str, shard: int, ids: list[bytes], columns: dict[str, Any]) -> Any:
    entries = pa.array(ids, pa.binary()).cast(pa.string())
    given = {
        "dispatch_id": pa.repeat(pa.scalar(name, pa.string()), len(ids)),
        "shard": pa.repeat(pa.scalar(shard, pa.int32()), len(ids)),
        "entry": entries,
        "finished_at": _entry_times(entries),
    }
    schema = arrow_schema_of(view)
    arrays: list[Any] = []
    for column in schema:
        array = given.get(column.name)
        if array is None:
            values = columns[column.name]
            array = times(values) if column.type == MICROS else pa.array(values, column.type)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _entry_times(entries: Any) -> Any:
    """Return the times that entry ids begin with; NULL for one that no clock shows, which another client has written."""
    ms = pc.list_element(pc.split_pattern(entries, "-"), 0)
    known = pc.if_else(pc.less_equal(pc.utf8_length(ms), _DIGITS), ms, pa.scalar(None, pa.string()))
    return times(known.cast(pa.int64()))


def _array(parts: list[bytes] | tuple[bytes, ...]) -> bytes:
    """Return packed values as one packed array."""
    return b"\xdd" + len(parts).to_bytes(4, "big") + b"".join(parts)


def _results(values: list[bytes]) -> list[str | None]:
    """Return the results of commands as JSON; NULL for no result, and for unreadable ones."""
    try:
        read: Any = unpackb(_array(values), ext_hook=_refuse)
    except Exception:  # noqa: BLE001 - dates, keys that are no text, damage: these are read one by one
        read = ()
    if len(read) != len(values):
        return [None if value == _NOTHING else packed_json(value) for value in values]
    return [str(value) if type(value) is int else None if value is None else _plain_json(value) for value in read]


def _plain_json(value: Any) -> str:
    """Return `json_text` of a value whose keys are text, by one call into C where that gives the same."""
    try:
        text = to_json(value, bytes_mode="utf8", inf_nan_mode="null").decode()
    except PydanticSerializationError:  # bytes that are no text
        return json_text(value)
    return json_text(value) if BASE64 in text else text


def _refuse(code: int, _: bytes) -> Any:
    raise Undecodable(f"extension type {code}")


def _reply_texts(packed: bytes) -> ReplyTexts:
    """Return the texts of a reply."""
    try:
        outcome = unpack_reply(packed, LIMITS)[1]
    except Undecodable as error:
        return UNREADABLE, error.reason, None, False
    match outcome:
        case Completed(value):
            return None, None, None if outcome.encrypted else packed_json(value), outcome.encrypted is not None
        case Rejected(message, code, details):
            return code, message, json_text(details) if details else None, False
        case Failed(error_type, message, _):
            return error_type, message, None, False
        case Cancelled(message, code):
            return code, message, None, False
        case _:
            return _CODES[type(outcome)], outcome.message, None, False


def _unreadable(view: View, name: str, shard: int, entry: bytes, record: bytes) -> Any:
    why = f"a record of {len(record)} bytes that this version cannot read"
    columns: dict[str, Any] = {column.name: [None] for column in arrow_schema_of(view)}
    return _batch(view, name, shard, [entry], columns | {"status": [UNREADABLE], "error_message": [why]})
