"""`SendAhead`: sends the rows of one batch while the next is encoded.

A task waits for the server in half of its time, and so does a server for a task that encodes. One thread sends, a batch at a time, so the
rows stay in order. This module imports nothing of Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from command_bus.spark.writing.command_encoder import Packed
from command_bus.spark.writing.partition import PartitionDispatcher


class SendAhead:
    """Queues rows in a dispatcher, in a thread of its own; as a context manager, it waits for all of them at the end.

    Args:
        dispatcher: Of the partition. No other thread may send with it before this ends.
    """

    def __init__(self, dispatcher: PartitionDispatcher) -> None:
        self._dispatcher = dispatcher
        self._thread = ThreadPoolExecutor(1, "command_bus.spark.send")
        self._sending: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self._wait()
        finally:
            self._thread.shutdown()

    def send(self, rows: Iterable[Packed]) -> None:
        """Send rows behind those of the last call, which are sent when this returns.

        Raises:
            CommandBusError: The rows of the last call could not be sent.
        """
        self._wait()
        self._sending = self._thread.submit(self._dispatcher.add_all, rows)

    def skip(self, rows: int) -> None:
        """Count rows that were committed before, as `send` does."""
        self._wait()
        self._dispatcher.result.rows += rows
        self._dispatcher.result.duplicates += rows

    def _wait(self) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.result()
