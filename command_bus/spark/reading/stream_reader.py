"""The streaming reader of the data source: outcomes of dispatches, ends, events and acts as they are added.

Outcomes are those of one dispatch or of all, including those that are opened later.

The reader lives on the driver as long as the query, and only reads how far streams have grown; tasks read the entries. Reading trims
nothing: outcomes are kept for as long as their dispatch said, ends for as long as their history said.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from command_bus.errors import InvalidSettings
from command_bus.export.views import View
from command_bus.spark.errors import without_spark_frames
from command_bus.spark.options import ReadOptions
from command_bus.spark.reading.offsets import BEGINNING, Offset, StreamKey, StreamOffset, fair_shares, format_offset, parse_offset
from command_bus.spark.reading.spans import Span, id_before
from command_bus.spark.reading.tasks import ReadPlan, SpanPartition
from command_bus.transport.ports.kept_streams import KeptStream

_log = logging.getLogger("command_bus.spark")
_KEPT: dict[View, tuple[str, str]] = {
    "outcomes": ("outcomes", "outcomes, maxOutcomes"),
    "history": ("ends", "age and number of the history"),
    "steps": ("ends", "age and number of the history"),
    "events": ("events", "kept, of bus.events.watch"),
    "audit": ("acts", "ten thousand are kept: read it more often"),
}
"""The views that can be streamed: what their rows are, and what keeps them for longer."""


class ViewStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`.

    Args:
        options: What the reader was given.

    Raises:
        InvalidSettings: An option is for batch reads only.
        TransportUnavailable: The server cannot be reached.
    """

    def __init__(self, options: ReadOptions) -> None:
        if options.view not in _KEPT:
            names = ", ".join(_KEPT)
            raise InvalidSettings(f"the view {options.view} changes in place: read it with spark.read; streams are {names}")
        if options.until_ms is not None:
            raise InvalidSettings("option endingTimestamp is for spark.read: a stream does not end")
        if options.pushdown:
            raise InvalidSettings("option pushdown is for spark.read: streams take no filters")
        self._plan = ReadPlan.build(options)
        self._first = id_before(f"{options.since_ms}-0") if options.since_ms is not None else BEGINNING
        self._bounded = False  # to what exists when the first offset is requested
        self._target: dict[StreamKey, KeptStream] | None = None
        self._newest: Offset | None = None

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return an offset without dispatches: a dispatch that is not in an offset was not read yet."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of `maxOffsetsPerTrigger`."""
        limit = self._plan.options.max_offsets
        return ReadMaxRows(limit) if limit is not None else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """End the query at what exists now."""
        self._bounded = True

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Return the offset at which a micro-batch should end.

        Raises:
            InvalidSettings: Outcomes were trimmed before this query read them, and `failOnDataLoss` holds.
        """
        with without_spark_frames():
            known = parse_offset(start)
            streams = self._target if self._target is not None else self._streams(start)
            if self._bounded:
                self._target = streams
            self._newest = format_offset({key: _end(stream) for key, stream in streams.items()})
            begun = {key: known.get(key) or self._beginning(stream) for key, stream in streams.items()}
            self._check_losses(begun, streams)
            if self._target is not None:
                begun = known | begun
            return format_offset(begun | self._advanced(begun, streams, limit))

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        """Return the offset of the newest outcomes, for the progress of the query."""
        return self._newest

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return the part of a micro-batch that each task reads."""
        with without_spark_frames():
            known = parse_offset(start)
            return self._plan.tasks(self._spans(known, parse_offset(end)))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the Arrow batches of one task."""
        with without_spark_frames():
            if isinstance(partition, SpanPartition):
                yield from self._plan.batches(partition)

    def _streams(self, start: Offset) -> dict[StreamKey, KeptStream]:
        """Return the streams of the remembered dispatches, and of those that are being read though they are forgotten."""
        named = self._plan.options.dispatch_id
        names = [named] if named is not None else self._plan.names()
        return self._plan.streams(dict.fromkeys([*names, *start]))

    def _beginning(self, stream: KeptStream) -> StreamOffset:
        """Return the offset from which a new stream is read: outcomes that are trimmed already do not count as lost."""
        count = stream.trimmed if self._first == BEGINNING and stream.added is not None else None
        return StreamOffset(self._first, count)

    def _check_losses(self, begun: dict[StreamKey, StreamOffset], streams: dict[StreamKey, KeptStream]) -> None:
        lost: Counter[str] = Counter()
        for key, stream in streams.items():
            lost[key[0]] += begun[key].lost(stream)
        lost = +lost  # of those that lost any
        if not lost:
            return
        rows, how = _KEPT[self._plan.options.view]
        text = f"{lost.total():,} {rows} of {', '.join(map(repr, lost))} were trimmed before this query came to them"
        if self._plan.options.fail_on_data_loss is not False:
            raise InvalidSettings(f"{text}: keep them for longer ({how}), or go on without them with failOnDataLoss = false")
        _log.warning("%s", text)

    def _advanced(
        self, begun: dict[StreamKey, StreamOffset], streams: dict[StreamKey, KeptStream], limit: ReadLimit
    ) -> dict[StreamKey, StreamOffset]:
        """Return the offset that each stream with new outcomes should be read to."""
        waiting = {key: left for key, stream in streams.items() if (left := begun[key].left(stream))}
        if not isinstance(limit, ReadMaxRows) or sum(waiting.values()) <= limit.max_rows:
            return {key: _end(streams[key]) for key in waiting}
        wait, reader = self._plan.connection.wait, self._plan.reader
        ends: dict[StreamKey, StreamOffset] = {}
        for key, share in zip(waiting, fair_shares(list(waiting.values()), limit.max_rows), strict=True):
            if not share:
                continue
            offset, stream = begun[key], streams[key]
            entry, count = wait(reader.skip(*key, offset.entry, stream.last, share))
            if count < share or entry == stream.last:
                ends[key] = _end(stream)
            else:
                ends[key] = offset.passed(stream, entry, count)
        return ends

    def _spans(self, known: dict[StreamKey, StreamOffset], ends: dict[StreamKey, StreamOffset]) -> Iterator[tuple[Span, str]]:
        wait, reader = self._plan.connection.wait, self._plan.reader
        for key, end in ends.items():
            begin = known.get(key) or StreamOffset(self._first, 0)
            if begin.entry == end.entry:
                continue
            found = wait(reader.ends(*key, f"({begin.entry}", end.entry))
            if found is not None:
                rows = (end.count or 0) - (begin.count or 0)
                yield Span(*key, begin.entry, end.entry, max(rows, 1)), found[0]


def _end(stream: KeptStream) -> StreamOffset:
    return StreamOffset(stream.last, stream.added)
