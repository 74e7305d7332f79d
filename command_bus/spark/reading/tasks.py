"""What readers of batches and of streams share: where to read, of which dispatches, and the outcomes of spans.

A `Reading` is data and travels to the tasks; there each process has its own connection.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import InputPartition

from command_bus.errors import CommandBusError, InvalidSettings
from command_bus.spark.options import ReadOptions
from command_bus.spark.reading.outcome_batches import outcome_batch
from command_bus.spark.reading.spans import Span, cut, pack_spans, rows_per_task
from command_bus.spark.target import PLANNING, Link, Target, link_to
from command_bus.spark.writing.encoder import uncollected
from command_bus.transport.bulk import OutcomeStream

__all__ = ["OutcomePart", "Reading", "plainly"]


class OutcomePart(InputPartition):
    """The outcomes that a task reads."""

    def __init__(self, spans: tuple[Span, ...]) -> None:
        super().__init__(spans)
        self.spans = spans


@dataclass(frozen=True)
class Reading:
    """A read, as far as the options tell it: all that a task needs to know.

    Attributes:
        options: As they were given.
        target: The server and namespace.
        only: Of these dispatches; None of all. Filters name them, so they need not exist.
    """

    options: ReadOptions
    target: Target
    only: tuple[str, ...] | None = None

    @classmethod
    def plan(cls, options: ReadOptions) -> Reading:
        """Find the server.

        Raises:
            InvalidSettings: A value is not what it may be.
            TransportUnavailable: The server cannot be reached.
        """
        target = Target.resolve(options.url, options.namespace)
        link_to(target, PLANNING)
        return cls(replace(options, url=target.url, namespace=target.namespace), target)

    @property
    def link(self) -> Link:
        """The connection of this process."""
        return link_to(self.target)

    def names(self) -> list[str]:
        """The dispatches to read.

        Raises:
            InvalidSettings: The option names one that nothing is known of, or that keeps no outcomes where these are asked for.
        """
        link, named = self.link, self.options.dispatch_id
        dispatches = link.transport.bulk
        if named is None:
            return list(self.only) if self.only is not None else link.wait(dispatches.names())
        facts = link.wait(dispatches.facts(named))
        if facts is None and not self.streams([named]):  # outcomes may be kept for longer than their dispatch is remembered
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
        places = [(name, shard) for name in names for shard in range(link.transport.shards)]
        found = link.wait(link.transport.bulk.outcomes.streams(places))
        return [(*place, stream) for place, stream in zip(places, found, strict=True) if stream is not None]

    def tasks(self, spans: Iterable[tuple[Span, str]]) -> list[InputPartition]:
        """Spans, each with the id of its first outcome, as tasks of about the same size."""
        spans = list(spans)
        rows = rows_per_task(sum(span.rows for span, _ in spans), self.options.partitions)
        link = self.link
        outcomes = link.transport.bulk.outcomes
        parts = [part for span, first in spans for part in link.wait(cut(outcomes, span, first, -(-span.rows // rows)))]
        return [OutcomePart(part) for part in pack_spans(parts, rows)]

    def batches(self, part: OutcomePart) -> Iterator[Any]:
        """The Arrow batches of a task, one for each page."""
        link, count = self.link, self.options.page
        outcomes = link.transport.bulk.outcomes
        for span in part.spans:
            after = span.after
            while after != span.until:
                with uncollected():
                    page = link.wait(outcomes.page(span.dispatch_id, span.shard, after, span.until, count))
                    if not page[0]:
                        break  # trimmed since it was planned
                    after = page[0][-1].decode()
                    batch = outcome_batch(span.dispatch_id, span.shard, page)
                yield batch


@contextmanager
def plainly() -> Generator[None]:
    """An error of ours leaves without the frames and the chain of causes that Spark would print in full."""
    try:
        yield
    except CommandBusError as error:
        error.__cause__ = error.__context__ = error.__traceback__ = None
        raise error from None
