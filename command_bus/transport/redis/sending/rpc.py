"""`RpcHandler`: one reply inbox per process and shard, whatever the number of calls in flight.

A worker pushes replies (LPUSH) to the caller's inbox in the step that settles the command. One blocking read per shard receives them,
many at a time where the server has BLMPOP (Redis 7), and wakes the callers by command id. A pop removes a reply from the server before
it has arrived, so a reply can be lost with its connection: after every read error the stored replies of all calls in flight are read
again by command id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from command_bus.clock import mono
from command_bus.errors import BusClosed, CommandBusError
from command_bus.randomness import token
from command_bus.serialization.reply import reply_id
from command_bus.tasks import end_tasks
from command_bus.transport.marks import reply_in
from command_bus.transport.ports.sender import Reply
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.errors import CONNECTION_ERRORS, translated
from command_bus.transport.redis.connection.outage_log import LoggedBackoff
from command_bus.transport.redis.connection.pipe import Requests
from command_bus.transport.redis.keys import KeySpace, ShardKeys

BLOCK = 2.0
_PAGE = 256
_log = logging.getLogger("command_bus.rpc")


class PendingReply(Reply):
    """One call's wait for its reply, with one timer and no task."""

    __slots__ = ("_command_id", "_future", "_waiting")

    def __init__(self, command_id: str, future: asyncio.Future[bytes | None], waiting: dict[str, list[PendingReply]]) -> None:
        self._command_id = command_id
        self._waiting = waiting
        self._future = future

    def arrive(self, record: bytes | None) -> None:
        """Set the reply; None if there will be none in time."""
        if not self._future.done():
            self._future.set_result(record)

    def fail(self, error: Exception) -> None:
        """Set the error: there will be no reply."""
        if not self._future.done():
            self._future.set_exception(error)
            self._future.exception()  # retrieved: without an answer to the command itself, its caller gets another error

    async def within(self, deadline: float) -> bytes | None:
        """Return the reply record, or None if it does not come by then."""
        timer = asyncio.get_running_loop().call_later(max(deadline - mono(), 0.0), self.arrive, None)
        try:
            return await self._future
        finally:
            timer.cancel()

    def then(self, arrived: Callable[[bytes], None]) -> None:

        def tell(future: asyncio.Future[bytes | None]) -> None:
            if not future.cancelled() and future.exception() is None and (record := future.result()) is not None:
                arrived(record)

        self._future.add_done_callback(tell)

    def end(self) -> None:
        self.arrive(None)

    def forget(self) -> None:
        """Drop a reply that comes now."""
        waiting = self._waiting[self._command_id]
        waiting.remove(self)
        if not waiting:
            del self._waiting[self._command_id]


class RpcHandler:
    """The calls in flight of this process.

    Args:
        connections: Clients that this process shares.
        keys: The shards.
        has_blmpop: Whether the server has BLMPOP.
    """

    def __init__(self, connections: Connections, keys: KeySpace, *, has_blmpop: bool) -> None:
        self.process = token(8).hex()
        self._connections = connections
        self._keys = keys
        self._has_blmpop = has_blmpop
        self._waiting: dict[str, list[PendingReply]] = {}  # several, if calls share an id that they were given
        self._readers: list[asyncio.Task[None]] = []

    def expect(self, command_id: str) -> PendingReply:
        """Register a wait for the reply to a command; the first call starts the readers."""
        loop = asyncio.get_running_loop()
        if not self._readers:
            for shard in self._keys.shards:
                self._readers.append(loop.create_task(self._receive(shard), name=f"command_bus.inbox {shard.prefix}"))
        pending = PendingReply(command_id, loop.create_future(), self._waiting)
        self._waiting.setdefault(command_id, []).append(pending)
        return pending

    async def close(self) -> None:
        """Stop receiving; calls that still wait raise `BusClosed`."""
        for pending in [pending for waiting in self._waiting.values() for pending in waiting]:
            pending.fail(BusClosed("the bus was closed while a call waited for its reply"))
        await end_tasks(self._readers)
        if self._readers:
            try:
                async with asyncio.timeout(1.0):
                    for shard in self._keys.shards:
                        inbox = shard.inbox(self.process)
                        await self._connections.at(shard.prefix).ask(lambda client, key: client.delete(key), inbox)
            except (CommandBusError, TimeoutError):
                pass  # the inboxes expire by themselves

    async def _receive(self, keys: ShardKeys) -> None:
        pipe = self._connections.at(keys.prefix).pipe(BLOCK)
        inbox = keys.inbox(self.process)
        backoff = LoggedBackoff(self._connections.at(keys.prefix).outage, "cannot receive replies", _log)
        rereads: list[float] = []
        while True:
            try:
                while rereads and mono() >= rereads[0]:
                    await self._reread(keys)
                    rereads.pop(0)
                for reply in await self._pop(pipe, inbox):
                    self._deliver(reply)
                backoff.worked()
                if not rereads:
                    await self._listen(pipe, inbox)
            except CommandBusError as error:
                await asyncio.sleep(backoff.failed(error))
                # Once now, and once when the server can no longer pop replies for the connection that broke.
                rereads = [0.0, mono() + BLOCK + 1.0]

    async def _listen(self, pipe: Requests, inbox: str) -> None:
        """Hand out replies in the turn in which they arrive, until one cannot be read so.

        Raises:
            CommandBusError: The server cannot be read.
        """
        if not self._has_blmpop:
            return
        ended = asyncio.get_running_loop().create_future()
        read = ("BLMPOP", BLOCK, 1, inbox, "RIGHT", "COUNT", _PAGE)

        def arrived(popped: Any) -> None:
            if ended.done():  # closed
                return
            if isinstance(popped, Exception):
                ended.set_exception(popped)
            elif not pipe.post(arrived, *read):
                ended.set_result(None)
            for reply in popped[1] if isinstance(popped, list) else ():
                self._deliver(reply)

        if pipe.post(arrived, *read):
            try:
                await ended
            except CONNECTION_ERRORS as error:
                raise translated(error, self._connections.label) from error

    async def _pop(self, pipe: Requests, inbox: str) -> list[bytes]:
        try:
            if self._has_blmpop:
                try:
                    popped: Any = await pipe.request("BLMPOP", BLOCK, 1, inbox, "RIGHT", "COUNT", _PAGE)
                    return list(popped[1]) if popped else []
                except ResponseError as error:
                    if "unknown command" not in str(error).lower() and not isinstance(error, NoPermissionError):
                        raise
                    self._has_blmpop = False
            single: Any = await pipe.request("BRPOP", inbox, BLOCK)
            if not single:
                return []
            more: Any = await pipe.request("RPOP", inbox, _PAGE)
            return [single[1], *(more or [])]
        except CONNECTION_ERRORS as error:
            raise translated(error, self._connections.label) from error

    def _deliver(self, record: bytes) -> None:
        command_id = reply_id(record)
        for pending in self._waiting.get(command_id, ()):  # none, if it comes too late
            pending.arrive(record)

    async def _reread(self, keys: ShardKeys) -> None:
        """Fetch the stored replies of all calls in flight: any of them may have been lost with the connection.

        Raises:
            CommandBusError: The server cannot be asked.
        """
        waiting = list(self._waiting)
        for start in range(0, len(waiting), _PAGE):
            page = waiting[start : start + _PAGE]
            names = [keys.mark(command) for command in page]
            marks: Any = await self._connections.at(keys.prefix).ask(lambda client, keys: client.mget(keys), names)
            for mark in marks:
                if (record := reply_in(mark)) is not None:
                    self._deliver(record)
