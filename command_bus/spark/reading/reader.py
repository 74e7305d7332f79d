"""The batch reader of the data source: planned on the driver, read in tasks as Arrow batches.

What is read from streams (outcomes, ends, events, acts) is read in spans that end at the newest entry of planning time, so a repeated task
reads the same. The other views are live: one task per shard, or a single one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from command_bus.clock import wall_ms
from command_bus.errors import InvalidSettings
from command_bus.export.columns import Row, batch_of, dead_letter_row, dispatch_row, entity_row, reject_row, state_row
from command_bus.spark.errors import without_spark_frames
from command_bus.spark.options import ReadOptions, instant_ms
from command_bus.spark.reading.spans import Span, id_before
from command_bus.spark.reading.tasks import ReadPlan, SpanPartition
from command_bus.spark.target import TargetConnection

_log = logging.getLogger("command_bus.spark")
_DEAD_LETTERS_PER_PAGE = 200  # per request: each may be as large as a payload

T = TypeVar("T")


def reader_of(options: Mapping[str, str]) -> DataSourceReader:
    """Return the reader of `spark.read`.

    Raises:
        InvalidSettings: An option is not valid.
    """
    with without_spark_frames():
        read = ReadOptions.parse(options)
        if read.max_offsets is not None:
            raise InvalidSettings("option maxOffsetsPerTrigger is for spark.readStream: a batch read takes all there is")
        return (PushdownReader if read.pushdown else BatchReader)(ReadPlan.build(read))


def stream_reader_of(options: Mapping[str, str]) -> DataSourceStreamReader:
    """Return the reader of `spark.readStream`.

    Raises:
        InvalidSettings: An option is not valid, or this PySpark is too old.
    """
    try:
        from command_bus.spark.reading.stream_reader import ViewStreamReader
    except ImportError as error:
        if error.name != "pyspark.sql.streaming.datasource":
            raise
        raise InvalidSettings("a stream needs PySpark 4.2 or newer; batch reads work with this one") from None
    with without_spark_frames():
        return ViewStreamReader(ReadOptions.parse(options))


class LivePartition(InputPartition):
    """The part of a live view that one task reads: a shard, or some dispatches."""

    def __init__(self, shard: int = 0, *, until: str = "", names: tuple[str, ...] = ()) -> None:
        super().__init__(shard)
        self.shard, self.until, self.names = shard, until, names


class BatchReader(DataSourceReader):
    """`spark.read`."""

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan

    def partitions(self) -> list[InputPartition]:
        """Return the part that each task reads."""
        with without_spark_frames():
            match self._plan.options.view:
                case "outcomes" | "history" | "steps" | "events" | "audit":
                    return self._plan.tasks(self._spans())
                case "deadLetters":
                    return list(self._dead_letter_partitions())
                case "entities" | "states":
                    return [LivePartition(shard) for shard in range(self._plan.connection.transport.shards)]
                case _:
                    return [LivePartition(names=tuple(self._plan.names()))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the Arrow batches of one task."""
        with without_spark_frames():
            if isinstance(partition, SpanPartition):
                yield from self._plan.batches(partition)
            elif isinstance(partition, LivePartition):  # other partitions have nothing to read
                for rows in self._rows(partition):
                    if rows:
                        yield batch_of(self._plan.options.view, rows)

    def _spans(self) -> Iterator[tuple[Span, str]]:
        """Yield the spans of what exists now, within the requested times."""
        options, connection = self._plan.options, self._plan.connection
        since, until = options.since_ms, options.until_ms
        lost = 0
        for (name, shard), stream in self._plan.streams(self._plan.names()).items():
            lost += stream.trimmed
            ends: tuple[str, str] | None = (stream.first, stream.last) if stream.first else None
            if ends is not None and (since is not None or until is not None):
                low = "-" if since is None else f"{since}-0"
                high = stream.last if until is None else f"({until}-0"
                ends = connection.wait(self._plan.reader.ends(name, shard, low, high))
            if ends is not None:
                yield Span(name, shard, id_before(ends[0]), ends[1], stream.length), ends[0]
        if lost and since is None and options.dispatch_id is not None:
            text = f"dispatch {options.dispatch_id!r}: {lost:,} outcomes are kept no more (outcomes, maxOutcomes) and not in this read"
            if options.fail_on_data_loss:
                raise InvalidSettings(f"{text}; failOnDataLoss = false reads the others")
            _log.warning("%s", text)

    def _dead_letter_partitions(self) -> Iterator[InputPartition]:
        connection, until = self._plan.connection, self._plan.options.until_ms
        for shard in range(connection.transport.shards):
            newest = connection.wait(connection.transport.operator.dead_letters.newest(shard, until))
            if newest is not None:
                yield LivePartition(shard, until=newest)

    def _rows(self, part: LivePartition) -> Iterator[list[Row]]:
        connection, count = self._plan.connection, self._plan.options.page
        match self._plan.options.view:
            case "entities":
                for [page] in connection.chunks(connection.transport.operator.entities.pages(part.shard)):
                    yield [entity_row(entity, part.shard) for entity in page]
            case "states":
                found = connection.transport.operator.states.pages(self._plan.options.entity_type, part.shard)
                for [states] in connection.chunks(found):
                    yield [state_row(mailbox, data, part.shard) for mailbox, data in states.items()]
            case "deadLetters":
                yield from self._dead_letters(connection, part)
            case "rejects":
                for name in part.names:
                    for rejects in connection.chunks(connection.transport.bulk.rejects(name), count):
                        yield [reject_row(name, record) for _, record in rejects]
            case _:
                yield from _chunked(_dispatches(connection, part.names), count)

    def _dead_letters(self, connection: TargetConnection, part: LivePartition) -> Iterator[list[Row]]:
        named, only, since = self._plan.options.dispatch_id, self._plan.only, self._plan.options.since_ms
        after = "" if since is None else id_before(f"{since}-0")
        while True:
            page = connection.wait(
                connection.transport.operator.dead_letters.page(part.shard, after, part.until, _DEAD_LETTERS_PER_PAGE)
            )
            rows = [dead_letter_row(letter) for _, letter in page]
            yield [row for row in rows if (named is None or row[1] == named) and (only is None or row[1] in only)]
            if len(page) < _DEAD_LETTERS_PER_PAGE:
                return
            after = page[-1][0]


class PushdownReader(BatchReader):
    """`spark.read` with filters. Spark refuses a reader that takes filters unless its configuration allows it.

    It then also confuses the filters of several queries on one DataFrame (see `ReadOptions.pushdown`), so this is never the default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Read only some dispatches, and outcomes of some time; filters that Spark has to check itself are returned."""
        for given in filters:
            match given:
                case EqualTo(("dispatch_id",), value):
                    self._restrict([value])
                case In(("dispatch_id",), values):
                    self._restrict(values)
                case GreaterThan(("finished_at",), value) | GreaterThanOrEqual(("finished_at",), value):
                    self._bound(since=value)
                    yield given
                case LessThan(("finished_at",), value) | LessThanOrEqual(("finished_at",), value):
                    self._bound(until=value)
                    yield given
                case _:
                    yield given

    def _restrict(self, names: Iterable[Any]) -> None:
        only = self._plan.only
        wanted = tuple(name for name in dict.fromkeys(names) if isinstance(name, str) and (only is None or name in only))
        self._plan = replace(self._plan, only=wanted)

    def _bound(self, since: Any = None, until: Any = None) -> None:
        """Take over a bound, rounded outwards to the millisecond: Spark checks again, to the microsecond."""
        options = self._plan.options
        if isinstance(since, datetime):
            options = replace(options, since_ms=max(instant_ms(since), options.since_ms or 0))
        if isinstance(until, datetime):
            bound = max(instant_ms(until) + 1, 0)
            options = replace(options, until_ms=bound if options.until_ms is None else min(bound, options.until_ms))
        self._plan = replace(self._plan, options=options)


def _dispatches(connection: TargetConnection, names: Iterable[str]) -> Iterator[Row]:
    for name in names:
        facts = connection.facts(name)
        if facts is not None:
            yield dispatch_row(facts, [*connection.streams([name]).values()], wall_ms())


def _chunked(rows: Iterator[Row], count: int) -> Iterator[list[Row]]:
    """Yield rows in lists."""
    while chunk := list(islice(rows, count)):
        yield chunk
