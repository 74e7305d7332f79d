"""The batch reader of the data source: planned on the driver, read in tasks as Arrow batches.

A reader is data and travels to the tasks; there each process has its own connection. Outcomes are planned in spans that end at what
was there at that time; the other views are small and live: a task for each shard, or one.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
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
from command_bus.errors import CommandBusError, InvalidSettings
from command_bus.spark.options import ReadOptions, instant_ms
from command_bus.spark.spans import Span, cut, pack_spans, rows_per_task
from command_bus.spark.target import Link, Target, link_to
from command_bus.spark.view_outcomes import outcome_batch
from command_bus.spark.views import batch_of, dead_letter_row, dispatch_row, entity_row, reject_row
from command_bus.transport.dispatches import OutcomeStream
from command_bus.transport.redis.survey import Survey

__all__ = ["BatchReader", "Outline", "OutcomePart", "PushdownReader", "plainly", "read_spans", "reader_of", "stream_reader_of"]

_log = logging.getLogger("command_bus.spark")
_PATIENCE = 60.0
_FOREVER = f"{2**63 - 1}-0"

T = TypeVar("T")


def reader_of(options: Mapping[str, str]) -> DataSourceReader:
    """The reader of `spark.read`.

    Raises:
        InvalidSettings: An option is not what it may be.
    """
    outline = Outline.plan(ReadOptions.parse(options))
    return PushdownReader(outline) if outline.options.pushdown else BatchReader(outline)


def stream_reader_of(options: Mapping[str, str]) -> DataSourceStreamReader:
    """The reader of `spark.readStream`.

    Raises:
        InvalidSettings: An option is not what it may be, or this PySpark is too old.
    """
    try:
        from command_bus.spark.stream_reader import OutcomeStreamReader
    except ImportError as error:
        if error.name != "pyspark.sql.streaming.datasource":
            raise
        raise InvalidSettings("reading outcomes as a stream needs PySpark 4.2 or newer; batch reads work with this one") from None
    return OutcomeStreamReader(Outline.plan(ReadOptions.parse(options)))


@dataclass(frozen=True)
class Outline:
    """A read, as far as the options tell it: all that tasks need to know.

    Attributes:
        options: As they were given.
        target: The server and namespace.
        only: Of these dispatches; None of all. Other than an option, a filter may name some that do not exist.
    """

    options: ReadOptions
    target: Target
    only: tuple[str, ...] | None = None

    @classmethod
    def plan(cls, options: ReadOptions) -> Outline:
        """Find the server.

        Raises:
            InvalidSettings: A value is not what it may be.
        """
        target = Target.resolve(options.url, options.namespace)
        return cls(replace(options, url=target.url, namespace=target.namespace), target)

    @property
    def link(self) -> Link:
        """The connection of this process."""
        return link_to(self.target)

    def names(self) -> list[str]:
        """The dispatches to read.

        Raises:
            InvalidSettings: The option names one that nothing is known of.
        """
        link, named = self.link, self.options.dispatch_id
        dispatches = link.transport.dispatches
        if named is None:
            return list(self.only) if self.only is not None else link.wait(dispatches.names())
        facts = link.wait(dispatches.facts(named))
        known = facts is not None or any(self.streams([named]))  # outcomes may be kept for longer than their dispatch is remembered
        if not known:
            raise InvalidSettings(
                f"option dispatchId = {named!r}: no such dispatch is known (any more) at {self.target.label}; "
                "the view 'dispatches' tells which are"
            )
        if facts is not None and not facts.keep_ms and self.options.view == "outcomes":
            raise InvalidSettings(
                f"dispatch {named!r} keeps no outcomes: dispatch with outcomes = '7 days', or as long as they may be read"
            )
        return [named] if self.only is None or named in self.only else []

    def streams(self, names: Iterable[str]) -> list[tuple[str, int, OutcomeStream]]:
        """The streams of outcomes of dispatches, with their shards."""
        link = self.link
        places = [(name, shard) for name in names for shard in range(link.transport.keys.count)]
        found = link.wait(link.transport.dispatches.outcomes.streams(places))
        return [(*place, stream) for place, stream in zip(places, found, strict=True) if stream is not None]

    def tasks(self, spans: Iterable[tuple[Span, str]]) -> list[InputPartition]:
        """Spans, each with the id of its first outcome, as tasks of about the same size."""
        spans = list(spans)
        rows = rows_per_task(sum(span.rows for span, _ in spans), self.options.partitions)
        link = self.link
        parts = [
            part
            for span, first in spans
            for part in link.wait(cut(link.transport.dispatches.outcomes, span, first, -(-span.rows // rows)))
        ]
        return [OutcomePart(part) for part in pack_spans(parts, rows)]


class OutcomePart(InputPartition):
    """The outcomes that a task reads."""

    def __init__(self, spans: tuple[Span, ...]) -> None:
        super().__init__(spans)


class LivePart(InputPartition):
    """The part of another view that a task reads: a shard, or dispatches."""

    def __init__(self, shard: int = 0, until: str = "", names: tuple[str, ...] = ()) -> None:
        super().__init__(shard)
        self.shard, self.until, self.names = shard, until, names


class BatchReader(DataSourceReader):
    """`spark.read`."""

    def __init__(self, outline: Outline) -> None:
        self._outline = outline

    def partitions(self) -> list[InputPartition]:
        """What each task reads."""
        with plainly():
            match self._outline.options.view:
                case "outcomes":
                    return self._outline.tasks(self._spans())
                case "deadLetters":
                    return list(self._letter_parts())
                case "entities":
                    return [LivePart(shard) for shard in range(self._outline.link.transport.keys.count)]
                case _:
                    return [LivePart(names=tuple(self._outline.names()))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The Arrow batches of one task."""
        with plainly():
            if isinstance(partition, OutcomePart):
                yield from read_spans(self._outline, partition.value)
            elif isinstance(partition, LivePart):  # else there is nothing to read
                view = self._outline.options.view
                for rows in self._rows(partition):
                    if rows:
                        yield batch_of(view, rows)

    def _spans(self) -> Iterator[tuple[Span, str]]:
        """What there is now, within the times that are asked for."""
        options, link = self._outline.options, self._outline.link
        lost = 0
        for name, shard, stream in self._outline.streams(self._outline.names()):
            lost += stream.trimmed
            low = f"{options.since_ms}-0" if options.since_ms is not None else "-"
            high = f"({options.until_ms}-0" if options.until_ms is not None else stream.last
            ends = link.wait(link.transport.dispatches.outcomes.ends(name, shard, low, high)) if stream.length else None
            if ends is not None:
                yield Span(name, shard, "" if low == "-" else low_bound(options.since_ms), ends[1], stream.length), ends[0]
        if lost and options.since_ms is None:
            text = f"{lost:,} outcomes were trimmed before this read, as their dispatches said (outcomes, maxOutcomes)"
            if options.fail_on_data_loss:
                raise InvalidSettings(f"{text}; with failOnDataLoss = false the others are read")
            _log.warning("%s; the view 'dispatches' tells of which", text)

    def _letter_parts(self) -> Iterator[InputPartition]:
        survey, link = _survey(self._outline.link), self._outline.link
        until_ms = self._outline.options.until_ms
        for shard in range(link.transport.keys.count):
            newest = link.wait(survey.newest_letter(shard))
            if newest is not None:
                yield LivePart(shard, until=newest if until_ms is None else f"({until_ms}-0")

    def _rows(self, part: LivePart) -> Iterator[list[tuple[Any, ...]]]:
        link = self._outline.link
        match self._outline.options.view:
            case "entities":
                for page in drained(link, _survey(link).entities(part.shard)):
                    yield [entity_row(entity, part.shard) for entity in page]
            case "deadLetters":
                yield from self._letters(link, part)
            case "rejects":
                for name in part.names:
                    rejects = drained(link, link.transport.dispatches.rejects(name))
                    yield from chunked((reject_row(name, record) for _, record in rejects), self._outline.options.page)
            case _:
                yield from chunked(self._dispatches(link, part.names), self._outline.options.page)

    def _letters(self, link: Link, part: LivePart) -> Iterator[list[tuple[Any, ...]]]:
        options, survey = self._outline.options, _survey(link)
        named = {options.dispatch_id} if options.dispatch_id is not None else None
        wanted = set(self._outline.only) if self._outline.only is not None else None
        after = low_bound(options.since_ms)
        while True:
            page = link.wait(survey.letters(part.shard, after, part.until, 200))
            rows = (dead_letter_row(letter) for _, letter in page)
            yield [row for row in rows if (named is None or row[1] in named) and (wanted is None or row[1] in wanted)]
            if len(page) < 200:
                return
            after = page[-1][0]

    def _dispatches(self, link: Link, names: Iterable[str]) -> Iterator[tuple[Any, ...]]:
        dispatches = link.transport.dispatches
        for name in names:
            facts = link.wait(dispatches.facts(name))
            if facts is not None:
                places = [(name, shard) for shard in range(link.transport.keys.count)]
                yield dispatch_row(facts, link.wait(dispatches.outcomes.streams(places)), wall_ms())


class PushdownReader(BatchReader):
    """`spark.read` with filters: Spark refuses a reader that takes them, unless its configuration allows it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Read only some dispatches and times. Spark checks times again: it knows them to the microsecond."""
        outline = self._outline
        for given in filters:
            match given:
                case EqualTo(("dispatch_id",), value):
                    outline = _only(outline, [value])
                case In(("dispatch_id",), values):
                    outline = _only(outline, values)
                case GreaterThan((column,), value) | GreaterThanOrEqual((column,), value):
                    outline = _within(outline, column, since=value)
                    yield given
                case LessThan((column,), value) | LessThanOrEqual((column,), value):
                    outline = _within(outline, column, until=value)
                    yield given
                case EqualTo((column,), value):
                    outline = _within(outline, column, since=value, until=value)
                    yield given
                case _:
                    yield given
        self._outline = outline


def read_spans(outline: Outline, spans: Iterable[Span]) -> Iterator[Any]:
    """The batches of spans of outcomes, a page at a time."""
    link, count = outline.link, outline.options.page
    outcomes = link.transport.dispatches.outcomes
    for span in spans:
        after = span.after
        while after != span.until:
            page = link.wait(outcomes.page(span.dispatch_id, span.shard, after, span.until, count))
            if not page[0]:
                break  # trimmed since it was planned
            yield outcome_batch(span.dispatch_id, span.shard, page)
            after = page[0][-1].decode()


def low_bound(since_ms: int | None) -> str:
    """The id behind which a read from a time on begins."""
    from command_bus.spark.spans import before

    return before(f"{since_ms}-0") if since_ms is not None else ""


def drained(link: Link, pages: AsyncIterator[T]) -> Iterator[T]:
    """What an asynchronous iterator gives, from a thread without a loop."""

    async def following() -> tuple[T] | None:
        async for page in pages:
            return (page,)
        return None

    while (found := link.wait(following())) is not None:
        yield found[0]


def chunked(rows: Iterator[tuple[Any, ...]], count: int) -> Iterator[list[tuple[Any, ...]]]:
    """Rows by the list."""
    chunk: list[tuple[Any, ...]] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == count:
            yield chunk
            chunk = []
    yield chunk


@contextmanager
def plainly() -> Iterator[None]:
    """An error of ours leaves without the chain of causes that Spark would print in full."""
    try:
        yield
    except CommandBusError as error:
        error.__cause__ = error.__context__ = None
        raise error from None


def _survey(link: Link) -> Survey:
    return Survey(link.transport.connections, link.transport.keys, patience=_PATIENCE)


def _only(outline: Outline, names: Iterable[Any]) -> Outline:
    wanted = tuple(dict.fromkeys(name for name in names if isinstance(name, str)))
    return replace(outline, only=wanted if outline.only is None else tuple(name for name in outline.only if name in wanted))


def _within(outline: Outline, column: str, since: Any = None, until: Any = None) -> Outline:
    """The outline within times, if it is they that the column holds; the last millisecond belongs to it."""
    if column != {"outcomes": "finished_at", "deadLetters": "failed_at"}.get(outline.options.view):
        return outline
    options = outline.options
    if isinstance(since, datetime):
        options = replace(options, since_ms=max(instant_ms(since), options.since_ms or 0))
    if isinstance(until, datetime):
        last = instant_ms(until) + 1
        options = replace(options, until_ms=last if options.until_ms is None else min(last, options.until_ms))
    return replace(outline, options=options)
