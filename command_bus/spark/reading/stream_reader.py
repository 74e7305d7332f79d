"""The streaming reader of the data source: outcomes as they come, of one dispatch or of all, those that are opened later included.

The reader lives on the driver for as long as the query does, and only looks at how far streams have grown; tasks read them. Nothing is
trimmed here: outcomes are kept for as long as their dispatch said, whoever reads them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from command_bus.errors import InvalidSettings
from command_bus.spark.errors import without_spark_frames
from command_bus.spark.options import ReadOptions
from command_bus.spark.reading.offsets import BEGINNING, Offset, StreamKey, StreamOffset, fair_shares, format_offset, parse_offset
from command_bus.spark.reading.spans import Span, id_before
from command_bus.spark.reading.tasks import OutcomePartition, ReadPlan
from command_bus.transport.bulk import OutcomeStream

__all__ = ["OutcomeStreamReader"]

_log = logging.getLogger("command_bus.spark")


class OutcomeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`.

    Args:
        options: What to read.

    Raises:
        InvalidSettings: One of them is for batch reads.
        TransportUnavailable: The server cannot be reached.
    """

    def __init__(self, options: ReadOptions) -> None:
        if options.view != "outcomes":
            raise InvalidSettings(f"the view {options.view} changes in place: read it with spark.read; outcomes can be streamed")
        if options.until_ms is not None:
            raise InvalidSettings("option endingTimestamp is for spark.read: a stream does not end")
        if options.pushdown:
            raise InvalidSettings("option pushdown is for spark.read: streams take no filters")
        self._plan = ReadPlan.build(options)
        self._first = id_before(f"{options.since_ms}-0") if options.since_ms is not None else BEGINNING
        self._bounded = False  # to what is there when the first offset is asked for
        self._target: dict[StreamKey, OutcomeStream] | None = None
        self._newest: Offset | None = None

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Before everything: a dispatch that is not in an offset was not read yet."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """As `maxOffsetsPerTrigger` says."""
        limit = self._plan.options.max_offsets
        return ReadMaxRows(limit) if limit is not None else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Go no further than to what is there now."""
        self._bounded = True

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Where a micro-batch should end.

        Raises:
            InvalidSettings: BulkOutcomes were trimmed before this query came to them, and it should fail then.
        """
        with without_spark_frames():
            known = parse_offset(start)
            streams = self._target if self._target is not None else self._streams(start)
            if self._bounded:
                self._target = streams
            self._newest = format_offset({place: _end(stream) for place, stream in streams.items()})
            begun = {place: known.get(place) or self._beginning(stream) for place, stream in streams.items()}
            self._complain(begun, streams)
            if self._target is not None:
                begun = known | begun
            return format_offset(begun | self._advanced(begun, streams, limit))

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        """Where plan everything would have ended, for the progress of the query."""
        return self._newest

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """What each task reads of a micro-batch."""
        with without_spark_frames():
            known = parse_offset(start)
            return self._plan.tasks(self._spans(known, parse_offset(end)))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The Arrow batches of one task."""
        with without_spark_frames():
            if isinstance(partition, OutcomePartition):
                yield from self._plan.batches(partition)

    def _streams(self, start: Offset) -> dict[StreamKey, OutcomeStream]:
        """The streams of the dispatches that are remembered, and of those that are being read though they are forgotten."""
        named = self._plan.options.dispatch_id
        connection = self._plan.connection
        names = [named] if named is not None else connection.wait(connection.transport.bulk.names())
        found = self._plan.streams(dict.fromkeys([*names, *start]))
        return {(name, shard): stream for name, shard, stream in found}

    def _beginning(self, stream: OutcomeStream) -> StreamOffset:
        """Where a stream is read from that was not read yet: nothing that was trimmed by now was missed."""
        count = stream.trimmed if self._first == BEGINNING and stream.added is not None else None
        return StreamOffset(self._first, count)

    def _complain(self, begun: dict[StreamKey, StreamOffset], streams: dict[StreamKey, OutcomeStream]) -> None:
        lost: Counter[str] = Counter()
        for place, stream in streams.items():
            lost[place[0]] += begun[place].lost(stream)
        lost = +lost  # of those that lost any
        if not lost:
            return
        text = f"{lost.total():,} outcomes of {', '.join(map(repr, lost))} were trimmed before this query came to them"
        if self._plan.options.fail_on_data_loss is not False:
            raise InvalidSettings(
                f"{text}: keep them for longer (outcomes, maxOutcomes), or go on without them with failOnDataLoss = false"
            )
        _log.warning("%s", text)

    def _advanced(
        self, begun: dict[StreamKey, StreamOffset], streams: dict[StreamKey, OutcomeStream], limit: ReadLimit
    ) -> dict[StreamKey, StreamOffset]:
        """The position that each stream with something new should be read to."""
        waiting = {place: left for place, stream in streams.items() if (left := begun[place].left(stream))}
        if not isinstance(limit, ReadMaxRows) or sum(waiting.values()) <= limit.max_rows:
            return {place: _end(streams[place]) for place in waiting}
        connection = self._plan.connection
        outcomes = connection.transport.bulk.outcomes
        ends: dict[StreamKey, StreamOffset] = {}
        for place, share in zip(waiting, fair_shares(list(waiting.values()), limit.max_rows), strict=True):
            if not share:
                continue
            position, stream = begun[place], streams[place]
            entry, count = connection.wait(outcomes.skip(*place, position.entry, stream.last, share))
            if count < share or entry == stream.last:
                ends[place] = _end(stream)
            else:
                ends[place] = position.passed(stream, entry, count)
        return ends

    def _spans(self, known: dict[StreamKey, StreamOffset], ends: dict[StreamKey, StreamOffset]) -> Iterator[tuple[Span, str]]:
        connection = self._plan.connection
        for place, end in ends.items():
            begin = known.get(place) or StreamOffset(self._first, 0)
            if begin.entry == end.entry:
                continue
            found = connection.wait(connection.transport.bulk.outcomes.ends(*place, f"({begin.entry}", end.entry))
            if found is not None:
                rows = (end.count or 0) - (begin.count or 0)
                yield Span(*place, begin.entry, end.entry, max(rows, 1)), found[0]


def _end(stream: OutcomeStream) -> StreamOffset:
    return StreamOffset(stream.last, stream.added)
