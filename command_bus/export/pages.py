"""The views that are read from streams, and how a page of one becomes a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from command_bus.admin.audit import audit_entry
from command_bus.admin.events import event_of
from command_bus.export.columns import Row, audit_row, batch_of, dead_letter_row, event_row, step_rows
from command_bus.export.ends import ends_batch
from command_bus.export.views import View
from command_bus.transport.ports.kept_streams import StreamPage
from command_bus.transport.records import StoredDeadLetter, StoredEvent

STREAMS: Final[dict[View, tuple[str, ...]]] = {
    "history": ("history",),
    "steps": ("history",),
    "events": ("events", "arrivals"),
    "audit": ("audit",),
    "deadLetters": ("dead",),
}
"""The streams of each view in a shard. Outcomes have one for each dispatch instead."""


def page_batch(view: View, name: str, shard: int, page: StreamPage) -> Any:
    """Return the `pyarrow.RecordBatch` of a page of a stream, which must not be empty."""
    if view in ("outcomes", "history"):
        return ends_batch(view, name, shard, page)
    entries = ((entry, dict(zip(flat[::2], flat[1::2], strict=False))) for entry, flat in zip(*page, strict=True))
    return batch_of(view, [row for entry, fields in entries for row in _rows(view, name, shard, entry, fields)])


def _rows(view: View, name: str, shard: int, entry: bytes, fields: dict[bytes, bytes]) -> Sequence[Row]:
    """Return the rows of an entry; none of an event that its sender may not tell."""
    if view == "steps":
        return step_rows(shard, entry.decode(), fields.get(b"r", b""))
    if view == "audit":
        return (audit_row(audit_entry(entry.decode(), fields.get(b"v", b""))),)
    if view == "deadLetters":
        return (dead_letter_row(StoredDeadLetter.parse(shard, entry, fields)),)
    stored = StoredEvent.parse(shard, shard if name == "events" else -1, entry, fields)
    return (event_row(event_of(stored, []), shard, stored.id),) if stored.is_told else ()
