"""The parts that batch and stream readers share: where to read, which dispatches, and the entries of spans.

A `ReadPlan` is data and travels to the tasks; there each process has a connection of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructType

from command_bus.errors import InvalidSettings
from command_bus.export.columns import gc_paused
from command_bus.export.pages import STREAMS, page_batch
from command_bus.export.typed import TypedColumns
from command_bus.spark.options import ReadOptions
from command_bus.spark.reading.offsets import StreamKey
from command_bus.spark.reading.spans import Span, pack_spans, rows_per_task, split_span
from command_bus.spark.reading.views import schema_of
from command_bus.spark.target import PLANNING_PATIENCE, Target, TargetConnection, connection_to
from command_bus.spark.writing.command_lookup import typed_columns
from command_bus.transport.ports.kept_streams import KeptStream, KeptStreams


class SpanPartition(InputPartition):
    """The parts of streams that one task reads."""

    def __init__(self, spans: tuple[Span, ...]) -> None:
        super().__init__(spans)
        self.spans = spans


@dataclass(frozen=True)
class ReadPlan:
    """A planned read: all that a task needs.

    Attributes:
        options: As they were given.
        target: The server and namespace.
        only: Dispatches to read; None: all. Filters name them, so they need not exist.
        typed: The types of columns of the history of one command.
    """

    options: ReadOptions
    target: Target
    only: tuple[str, ...] | None = None
    typed: TypedColumns | None = None

    @classmethod
    def build(cls, options: ReadOptions) -> ReadPlan:
        """Find the server.

        Raises:
            InvalidSettings: A value is not valid.
            TransportUnavailable: The server cannot be reached.
        """
        target = Target.resolve(options.url, options.namespace)
        connection = connection_to(target, PLANNING_PATIENCE)
        return cls(
            options, target, typed=None if options.command is None else typed_columns(options.command, connection.describe)
        )

    def schema(self) -> StructType:
        """Return the columns of the rows."""
        columns = schema_of(self.options.view)
        if self.typed is not None:
            for name, kind in self.typed.types().items():
                columns[name].dataType = from_arrow_type(kind.arrow)
        return columns

    @property
    def connection(self) -> TargetConnection:
        """The connection of this process."""
        return connection_to(self.target)

    @property
    def reader(self) -> KeptStreams:
        """The reader of the streams of the view."""
        transport = self.connection.transport
        return transport.operator.kept if self.options.view in STREAMS else transport.bulk.outcomes

    def names(self) -> list[str]:
        """Return the dispatches to read, or the streams of the view.

        Raises:
            InvalidSettings: The option names a dispatch that is unknown, or one without outcomes although these are requested.
        """
        connection, named, view = self.connection, self.options.dispatch_id, self.options.view
        if view in STREAMS:
            return list(STREAMS[view])
        if named is None:
            return list(self.only) if self.only is not None else connection.wait(connection.transport.bulk.names())
        facts = connection.facts(named)
        if facts is None and not self.streams([named]):  # outcomes may be kept for longer than their dispatch
            raise InvalidSettings(
                f"option dispatchId = {named!r}: no such dispatch is known (any more) at {self.target.label}; "
                "the view 'dispatches' lists those that are"
            )
        if facts is not None and not facts.keep_ms and view == "outcomes":
            raise InvalidSettings(
                f"dispatch {named!r} keeps no outcomes: dispatch with outcomes = '7 days', or as long as they may be read"
            )
        return [named] if self.only is None or named in self.only else []

    def streams(self, names: Iterable[str]) -> dict[StreamKey, KeptStream]:
        """Return the streams of dispatches or of the view, by name and shard."""
        return {key: stream for key, stream in self.connection.streams(names, self.reader).items() if stream is not None}

    def tasks(self, spans: Iterable[tuple[Span, str]]) -> list[InputPartition]:
        """Return the spans as tasks of about the same size. Each span comes with the id of its first entry."""
        spans = list(spans)
        rows = rows_per_task(sum(span.rows for span, _ in spans), self.options.partitions)
        wait, reader = self.connection.wait, self.reader
        parts = [part for span, first in spans for part in wait(split_span(reader, span, first, -(-span.rows // rows)))]
        return [SpanPartition(part) for part in pack_spans(parts, rows)]

    def batches(self, part: SpanPartition) -> Iterator[Any]:
        """Yield the Arrow batches of a task, one for each page."""
        connection, count = self.connection, self.options.page
        reader, view = self.reader, self.options.view
        for span in part.spans:
            after = span.after
            while after != span.until:
                with gc_paused():
                    page = connection.wait(reader.page(span.name, span.shard, after, span.until, count))
                    if not page[0]:
                        break  # trimmed since it was planned
                    after = page[0][-1].decode()
                    batch = page_batch(view, span.name, span.shard, page)
                    if self.typed is not None:
                        batch = self.typed.of(batch)
                yield batch
