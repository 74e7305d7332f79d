"""`StopAndWait`: sends the batches of a line one after another, and needs no task while all goes well.

At most one batch is in flight, because two could be reordered when the first is repeated. A batch leaves at the end of the turn of the event
loop in which its first item came, or when the batch before it is answered. Its answer is handed out in the turn in which it arrives. A task is
made for a batch only if there is no connection yet, if replicas must confirm it, or if its answer is an error.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from redis.exceptions import NoScriptError

from command_bus.errors import CommandBusError, TransportUnavailable
from command_bus.tasks import end_tasks
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.errors import translated
from command_bus.transport.redis.scripts import Script

_log = logging.getLogger("command_bus.transport")


class ScriptBatch(Protocol):
    """One call of a script.

    Attributes:
        script: Runs the batch.
        keys: Its keys.
        args: Its arguments.
    """

    script: Script
    keys: list[str]
    args: list[Any]


Item = TypeVar("Item")
Batch = TypeVar("Batch", bound=ScriptBatch)


class StopAndWait(ABC, Generic[Item, Batch]):
    """A line in front of one shard.

    Args:
        connections: To the shard's server.
        name: Of the tasks.
    """

    def __init__(self, connections: Connections, name: str) -> None:
        self._connections = connections
        self._name = name
        self._line: deque[Item] = deque()
        self._loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]  # set with the first future
        self._idle = True
        self._ended = False
        self._posted: Batch | None = None
        self._slow: asyncio.Task[None] | None = None
        self._rests: asyncio.Future[None] | None = None

    # The parts that differ.

    @abstractmethod
    def _take(self) -> list[Item]:
        """Take the items of the next batch off the line; none if no caller waits for them any more."""

    @abstractmethod
    def _batch(self, items: list[Item]) -> Batch:
        """Return the batch of some items."""

    @abstractmethod
    def _is_answer(self, answer: Any) -> bool:
        """Return whether this is the answer to a batch, not an error."""

    def _heard(self, batch: Batch, answer: Any) -> None:
        """Learn from an answer, before the next batch is taken and before this answer is handed out."""

    @abstractmethod
    def _hand_out(self, batch: Batch, answer: Any) -> None:
        """Give each item its part of the answer."""

    @abstractmethod
    async def _send_slowly(self, batch: Batch, error: CommandBusError | None) -> None:
        """Send a batch until it is answered, and hand the answer out.

        Args:
            batch: To be sent.
            error: Why it is not answered yet; None if it is certain that it was not applied.
        """

    @abstractmethod
    def _failed(self, items: Sequence[Item], error: BaseException) -> None:
        """Fail items whose batch cannot be sent, or whose answer cannot be handed out."""

    @abstractmethod
    def _items(self, batch: Batch) -> Sequence[Item]:
        """Return the items of a batch."""

    def _may_post(self, batch: Batch) -> bool:
        """Return whether a batch may leave at once. It may, unless its line has a reason against that."""
        return True

    # The way of a batch.

    def _future(self) -> asyncio.Future[Any]:
        """Return a new future. The loop is kept, because asking for it is a system call before Python 3.12."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop.create_future()

    def _put(self, item: Item) -> None:
        """Put an item, with a future made before, into the line."""
        self._line.append(item)
        if self._idle and not self._ended:
            self._idle = False
            self._loop.call_soon(self._leave)

    def _leave(self) -> None:
        """Send the next batch, or rest."""
        while self._line and not self._ended:
            items = self._take()
            if not items:
                continue
            try:
                self._send(self._batch(items))
            except Exception as error:  # noqa: BLE001 - its callers must get it, whatever it is
                self._posted = None
                self._failed(items, error)
            else:
                return
        self._rest()

    def _send(self, batch: Batch) -> None:
        """Post a batch; one that cannot be posted has a task."""
        self._posted = batch
        if not self._may_post(batch) or not self._connections.post(
            batch.script, batch.keys, batch.args, partial(self._answered, batch)
        ):
            self._go_slow(batch, None)

    def _answered(self, batch: Batch, answer: Any) -> None:
        """Hand out an answer. If more items wait, they leave before that, so that the server works at the same time."""
        if batch is not self._posted:
            return  # it was given up
        if not self._is_answer(answer):
            self._refused(batch, answer)
            return
        self._posted = None
        try:
            self._heard(batch, answer)
        except Exception:  # noqa: BLE001 - its callers get their answers all the same
            _log.exception("%s: an answer could not be read", self._name)
        if self._line:
            self._leave()
            self._hand_out_safely(batch, answer)
        else:
            self._hand_out_safely(batch, answer)
            self._loop.call_soon(self._leave)  # behind the callers that this answer wakes: what they send leaves together

    def _hand_out_safely(self, batch: Batch, answer: Any) -> None:
        try:
            self._hand_out(batch, answer)
        except Exception as error:  # noqa: BLE001 - its callers must get it, whatever it is
            _log.exception("%s: an answer could not be handed out", self._name)
            self._failed(self._items(batch), error)

    def _error_in(self, answer: Any) -> CommandBusError | None:
        """Return the error in an answer; None if the server only lacks the script."""
        if isinstance(answer, NoScriptError):
            return None
        error = answer if isinstance(answer, CommandBusError) else translated(answer, self._connections.label, writes=True)
        if isinstance(error, TransportUnavailable):
            self._connections.count_reconnect()
        return error

    def _refused(self, batch: Batch, answer: Any) -> None:
        """Repeat a batch whose answer is none."""
        self._go_slow(batch, self._error_in(answer))

    def _give_up(self, error: CommandBusError) -> None:
        """Wait no longer for the answer in flight; repeat the batch."""
        if self._posted is not None:
            self._go_slow(self._posted, error)

    def _go_slow(self, batch: Batch, error: CommandBusError | None) -> None:
        self._posted = None
        self._slow = self._loop.create_task(self._send_slowly(batch, error), name=self._name)
        self._slow.add_done_callback(partial(self._slow_ended, batch))

    def _slow_ended(self, batch: Batch, task: asyncio.Task[None]) -> None:
        self._slow = None
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            self._failed(self._items(batch), error)
        if task.cancelled():
            self._rest()
        else:
            self._leave()

    # The end.

    def _rest(self) -> None:
        self._idle = True
        if self._rests is not None:
            self._rests.set_result(None)
            self._rests = None

    async def rest(self) -> None:
        """Wait until the line is empty and nothing is in flight."""
        while not self._idle:
            if self._rests is None:
                self._rests = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._rests)

    async def end(self) -> None:
        """Give up what is in flight or waits; what is put in line afterwards does not leave."""
        self._ended = True
        self._line.clear()
        if self._slow is not None:
            await end_tasks([self._slow])
        self._posted = None
