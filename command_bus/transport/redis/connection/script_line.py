"""`ScriptLine`: sends the batches of a line one after another, and needs no task while all goes well.

At most one batch is in flight, because two could be reordered when the first is repeated. A batch leaves at the end of the turn of the event
loop in which its first item came, or when the batch before it is answered. Its answer is handed out in the turn in which it arrives. A task is
made for a batch only if there is no connection yet, if replicas must confirm it, or if its answer is an error.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from redis.exceptions import NoScriptError

from command_bus.errors import CommandBusError, TransportUnavailable
from command_bus.tasks import end_tasks
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.errors import translated
from command_bus.transport.redis.connection.outage_log import LoggedBackoff
from command_bus.transport.redis.connection.pipe import Answered
from command_bus.transport.redis.scripts import Script

_log = logging.getLogger("command_bus.transport")


_MOST_BYTES = 1024 * 1024
Item = TypeVar("Item")
Asked = TypeVar("Asked", bound=tuple[Any, ...])
Value = TypeVar("Value")


@dataclass(slots=True)
class ScriptBatch(Generic[Item]):
    """One call of a script for some items.

    Attributes:
        script: Runs the batch.
        keys: Its keys.
        args: Its arguments.
        items: Those whose answers it brings.
    """

    script: Script
    keys: list[str]
    args: list[Any]
    items: list[Item]


B = TypeVar("B", bound=ScriptBatch[Any])


class ScriptLine(ABC, Generic[Item, B]):
    """A line in front of one shard.

    Args:
        connections: To the shard's server.
        name: What its tasks are called.
    """

    def __init__(self, connections: Connections, name: str) -> None:
        self._connections = connections
        self._name = name
        self._line: deque[Item] = deque()
        self._loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]  # set with the first future
        self._idle = True
        self._ended = False
        self._posted: B | None = None
        self._slow: asyncio.Task[None] | None = None
        self._rests: asyncio.Future[None] | None = None

    # The parts that differ.

    @abstractmethod
    def _take(self) -> list[Item]:
        """Take the items of the next batch off the line; none if no caller waits for them any more."""

    @abstractmethod
    def _batch(self, items: list[Item]) -> B:
        """Return the batch of some items."""

    @abstractmethod
    def _is_answer(self, answer: Any) -> bool:
        """Return whether this is the answer to a batch, not an error."""

    def _heard(self, batch: B, answer: Any) -> None:
        """Learn from an answer, before the next batch is taken and before this answer is handed out."""

    @abstractmethod
    def _hand_out(self, batch: B, answer: Any) -> None:
        """Give each item its part of the answer."""

    @abstractmethod
    async def _send_slowly(self, batch: B, error: CommandBusError | None) -> None:
        """Send a batch until it is answered, and hand the answer out.

        Args:
            batch: To be sent.
            error: Why it is not answered yet; None if it is certain that it was not applied.
        """

    @abstractmethod
    def _failed(self, items: Sequence[Item], error: BaseException) -> None:
        """Fail items whose batch cannot be sent, or whose answer cannot be handed out."""

    def _may_post(self, batch: B) -> bool:
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

    def _send(self, batch: B) -> None:
        """Post a batch; one that cannot be posted has a task."""
        self._posted = batch
        if not self._may_post(batch) or not self._post(batch, partial(self._answered, batch)):
            self._go_slow(batch, None)

    def _post(self, batch: B, answered: Answered) -> bool:
        """Send a batch, and return at once. Return False if there is no connection, or replicas must confirm it."""
        return self._connections.post(batch.script, batch.keys, batch.args, answered)

    def _answered(self, batch: B, answer: Any) -> None:
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

    def _hand_out_safely(self, batch: B, answer: Any) -> None:
        try:
            self._hand_out(batch, answer)
        except Exception as error:  # noqa: BLE001 - its callers must get it, whatever it is
            _log.exception("%s: an answer could not be handed out", self._name)
            self._failed(batch.items, error)

    def _error_in(self, answer: Any) -> CommandBusError | None:
        """Return the error in an answer; None if the server only lacks the script."""
        if isinstance(answer, NoScriptError):
            return None
        error = answer if isinstance(answer, CommandBusError) else translated(answer, self._connections.label, writes=True)
        if isinstance(error, TransportUnavailable):
            self._connections.count_reconnect()
        return error

    def _refused(self, batch: B, answer: Any) -> None:
        """Repeat a batch whose answer is none."""
        self._go_slow(batch, self._error_in(answer))

    def _give_up(self, error: CommandBusError) -> None:
        """Wait no longer for the answer in flight; repeat the batch."""
        if self._posted is not None:
            self._go_slow(self._posted, error)

    def _go_slow(self, batch: B, error: CommandBusError | None) -> None:
        self._posted = None
        self._slow = self._loop.create_task(self._send_slowly(batch, error), name=self._name)
        self._slow.add_done_callback(partial(self._slow_ended, batch))

    def _slow_ended(self, batch: B, task: asyncio.Task[None]) -> None:
        self._slow = None
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            self._failed(batch.items, error)
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


class WorkerLine(ScriptLine[Asked, ScriptBatch[Asked]]):
    """A line of a worker. A batch is repeated without end: a worker without its server has nothing else to do.

    An item is a tuple; the future of its answer comes last.

    Args:
        connections: To the shard's server.
        name: What its tasks are called.
        failure: Text of the log while the server is away.
        confirmed: A key of the shard whose replicas must have what a batch wrote; empty: none.
        most: Items of a batch.
    """

    _lasts = False
    """Whether a batch that too few replicas have counts as failed."""

    def __init__(self, connections: Connections, name: str, failure: str, *, confirmed: str = "", most: int = 256) -> None:
        super().__init__(connections, name)
        self._backoff = LoggedBackoff(connections.outage, failure, _log)
        self._confirmed = confirmed
        self._most = most

    def _take(self) -> list[Asked]:
        """Take items that are sent together: limited in count and bytes, but at least one."""
        items: list[Asked] = []
        size = 0
        for item in itertools.islice(self._line, self._most):
            size += self._size(item)
            if size > _MOST_BYTES and items:
                break
            items.append(item)
        for _ in items:
            self._line.popleft()
        return items

    def _size(self, item: Asked) -> int:
        """Return roughly how many bytes an item has."""
        del item
        return 0

    def _is_answer(self, answer: Any) -> bool:
        return type(answer) is list

    @abstractmethod
    def _hand_out(self, batch: ScriptBatch[Asked], answer: Any, *, confirmed: bool = True) -> None: ...

    async def _run(self, batch: ScriptBatch[Asked]) -> tuple[Any, bool]:
        """Return the answer, and whether enough replicas have what was written."""
        if self._confirmed:
            return await self._connections.run_confirmed(batch.script, batch.keys, batch.args, self._confirmed)
        return await self._connections.run(batch.script, batch.keys, batch.args), True

    async def _send_slowly(self, batch: ScriptBatch[Asked], error: CommandBusError | None) -> None:
        while True:
            if error is not None:
                await asyncio.sleep(self._backoff.failed(error))
            try:
                answer, confirmed = await self._run(batch)
            except CommandBusError as failure:
                self._connections.count_reconnect()
                error = failure
                continue
            if confirmed or not self._lasts:
                self._backoff.worked()
            self._heard(batch, answer)
            self._hand_out(batch, answer, confirmed=confirmed)
            return

    def _failed(self, items: Sequence[Asked], error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            return  # the worker has ended
        for item in items:
            if not item[-1].done():
                item[-1].set_exception(error)

    async def close(self, patience: float) -> None:
        """Wait for what is in flight, at most `patience` seconds; then drop it: leases end by themselves, and a comparison finds the rest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self.rest()
        await self.end()


class Read(NamedTuple):
    """A value that is to be read."""

    key: str
    answer: asyncio.Future[Any]


class ReadLine(WorkerLine[Read], Generic[Value]):
    """A line of a worker that reads values by their keys. One whose reader is gone by then is not read."""

    def read(self, key: str) -> asyncio.Future[Value]:
        """Return a value. While the server is away this waits."""
        answer: asyncio.Future[Value] = self._future()
        self._put(Read(key, answer))
        return answer

    @abstractmethod
    def _value(self, found: Any) -> Value:
        """Return the value in what the server has found."""

    def _take(self) -> list[Read]:
        return [each for each in super()._take() if not each.answer.done()]

    def _hand_out(self, batch: ScriptBatch[Read], answer: list[Any], *, confirmed: bool = True) -> None:
        del confirmed
        for read, found in zip(batch.items, answer, strict=True):
            if not read.answer.done():
                read.answer.set_result(self._value(found))
