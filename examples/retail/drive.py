"""The part of a run in which rows are under way: they arrive, the query is stopped and started again, what was poisoned is repaired."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.errors import StreamingQueryException

from command_bus import DeadLetter, Stats
from examples.flights.session import ask
from examples.flights.stage import Stage
from examples.retail import stream
from examples.retail.ledger import Ledger
from examples.retail.report import print_letters
from examples.retail.table import SPOILT, Row, write_slice
from examples.retail.watch import QueryFailed, Watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Drive"]

_CALM: Final = 3  # slices that come one by one, each when the one before is done; all others come at once
_STOP_AT: Final = 0.4  # of the purchases accepted
_IN_WRITE: Final = (0.1, 0.6)  # how much of a slice is in the bus while it is surely being written
_MIND: Final = 0.5  # seconds between looks at the query


def _nothing_moves(stats: Stats) -> bool:
    """Return whether all that is left waits behind dead letters."""
    return stats.in_flight == stats.ready == stats.delayed == 0


class Drive:
    """Takes the slices through the bus.

    Attributes:
        arrivals: The folder that the stream looks at.
        query_id: Of the query, the same after a restart.
    """

    def __init__(self, spark: SparkSession, stage: Stage, watch: Watch, folder: Path) -> None:
        self._spark = spark
        self._stage = stage
        self._watch = watch
        self.arrivals = folder / "arrivals"
        self.query_id = ""
        self._checkpoint = folder / "checkpoint"
        self._query: StreamingQuery | None = None
        self.arrivals.mkdir()

    async def through(self, slices: Sequence[Sequence[Row]]) -> list[DeadLetter]:
        """Run everything from the first slice until nothing is left; return the dead letters that were replayed on the way.

        Raises:
            QueryFailed: The query ended by itself.
            Stalled: Nothing moved for a minute.
            WorkerEnded: A worker ended by itself.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._watch.run(), name="watch")
                minding = tasks.create_task(self._mind(), name="mind")
                feeding = tasks.create_task(self._feed(slices), name="feed")
                await self._start()
                await self._stop_in_mid_batch(len(slices[0]))
                await self._start()
                self._watch.mark("restarted", "the query is started again from its checkpoint")
                await feeding
                await self._all_processed()
                await self._watch.until(_nothing_moves)
                letters = await self._repair()
                await self._watch.until(lambda stats: stats.depth == 0)
                minding.cancel()
                watching.cancel()
                return letters
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            await self._stop()

    async def _mind(self) -> None:
        """Watch the query until it fails.

        Raises:
            QueryFailed: It ended by itself.
        """
        while True:
            await asyncio.sleep(_MIND)
            error = None if self._query is None else await asyncio.to_thread(self._query.exception)
            if error is not None:
                raise QueryFailed(_said(error))

    async def _all_processed(self) -> None:
        """Wait until every slice is in the bus and its micro-batch is committed."""
        await self._watch.until(lambda stats: stats.accepted == self._watch.purchases)
        assert self._query is not None, "it was started"
        try:
            await asyncio.to_thread(self._query.processAllAvailable)
        except StreamingQueryException as error:
            raise QueryFailed(_said(error)) from error

    async def _feed(self, slices: Sequence[Sequence[Row]]) -> None:
        began = time.time()
        for number, rows in enumerate(slices):
            if number == _CALM:
                self._watch.mark("all others arrive", "from now on the slices arrive at once")
            write_slice(rows, self.arrivals / f"slice-{number:02d}.csv", began + number)
            self._watch.arrived += len(rows)
            if number < _CALM:
                await self._watch.until(self._all_taken)

    async def _start(self) -> None:
        self._query = await ask(
            self._spark, stream.start, self._spark, self.arrivals, self._checkpoint, self._stage, self._watch.backlog
        )
        self.query_id = self._query.id

    def _all_taken(self, stats: Stats) -> bool:
        return stats.accepted >= self._watch.arrived - len(SPOILT) and _nothing_moves(stats)

    async def _stop_in_mid_batch(self, size: int) -> None:
        """Stop the query while it writes: so far a part of the micro-batch is in the bus, and nothing says which.

        Args:
            size: Of a slice, and so of a micro-batch.
        """
        enough = _STOP_AT * self._watch.purchases
        await self._watch.until(
            lambda stats: stats.accepted >= enough and _IN_WRITE[0] < stats.accepted % size / size < _IN_WRITE[1]
        )
        await self._stop()
        self._watch.mark("query stopped", "the query is stopped in the middle of a micro-batch")
        await self._watch.until(lambda stats: stats.depth < self._watch.backlog / 2)

    async def _stop(self) -> None:
        if self._query is not None:
            query, self._query = self._query, None
            await asyncio.to_thread(query.stop)

    async def _repair(self) -> list[DeadLetter]:
        """Do what an operator does: look at the dead letters, remove the cause, replay them."""
        letters = [letter async for letter in self._stage.bus.dead_letters.list()]
        print_letters(self._watch.console, letters)
        await Ledger(self._stage.client, self._stage.settings.namespace).repair_provider()
        for letter in letters:
            await self._stage.bus.dead_letters.replay(letter.id)
        self._watch.mark("dead letters replayed", f"the provider has a new certificate; {len(letters)} dead letters are replayed")
        return letters


def _said(error: Exception) -> str:
    """Return Spark's message, without the plan of the query that it adds."""
    return str(error).partition("=== Streaming Query ===")[0].strip()
