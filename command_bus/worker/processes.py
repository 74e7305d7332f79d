"""Processes in which handlers run that are registered with `runs_in="process"`: a child for each call, kept for the next.

The lease, retries, cancelling and the settlement stay with the worker; a child is killed when its call is cancelled or its time is over. Each has a
pipe of its own, so that one which dies harms no other.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import pickle
import signal
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

from command_bus.errors import HandlerCrashed
from command_bus.handlers.handler import Handler
from command_bus.messages.context import CommandContext
from command_bus.serialization.limits import PayloadLimits
from command_bus.serialization.models import codec_for, reply_codec_for
from command_bus.serialization.native import unpackb
from command_bus.worker.child import framed, serve
from command_bus.worker.threads import NoThreadError

_log = logging.getLogger("command_bus.worker")
_PATIENCE = 1.0
"""Seconds for which a command waits for a child; then other workers may have it."""
_CHUNK, _HEAD = 1 << 16, 4
_REAPED = 5.0


class Children:
    """The children of one worker.

    Args:
        most: How many run at a time.
        tasks: Calls after which a child is replaced.
        limits: Of commands and replies.
    """

    def __init__(self, most: int, tasks: int, limits: PayloadLimits) -> None:
        self._tasks = tasks
        self._limits = limits
        self._free = asyncio.Semaphore(most)
        self._idle: list[_Child] = []
        self._closed = False

    @asynccontextmanager
    async def one(self, handler: Handler) -> AsyncGenerator[_Child]:
        """Lend a child to one call of a handler. A child that has ended, or has had its calls, is not kept.

        Raises:
            NoThreadError: None comes free.
        """
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._free.acquire()
        except TimeoutError:
            raise NoThreadError from None
        child: _Child | None = None
        try:
            try:
                child = self._idle.pop() if self._idle else await _Child.start(handler, self._limits)
            except (OSError, EOFError) as error:  # the server that forks them was ended: the next one has a new one
                _log.warning("no process can be started for a handler: %s", error)
                raise NoThreadError from error
            yield child
        finally:
            self._free.release()
            if child is not None and (child.is_over or child.calls >= self._tasks or self._closed):
                await child.end()
            elif child is not None:
                self._idle.append(child)

    async def close(self) -> None:
        """End the children that are idle, the others as soon as they are."""
        self._closed = True
        while self._idle:
            await self._idle.pop().end()


class _Child:
    """One child process."""

    def __init__(self, process: Any, work: socket.socket, life: socket.socket, limits: PayloadLimits) -> None:
        self._process = process
        self._work = work
        self._life = life
        self._limits = limits
        self.calls = 0
        self.is_over = False

    @classmethod
    async def start(cls, handler: Handler, limits: PayloadLimits) -> _Child:
        """Start a child; the server that forks them loads the module of the first handler."""
        (work, theirs), (life, end) = socket.socketpair(), socket.socketpair()
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if "forkserver" in methods:
            context.set_forkserver_preload(["__main__", __name__, handler.module])
        process = context.Process(target=serve, args=(theirs, end), name="command_bus.child", daemon=True)
        try:
            await asyncio.to_thread(process.start)
        except BaseException:
            work.close()
            life.close()
            raise
        finally:
            theirs.close()
            end.close()
        work.setblocking(False)
        return cls(process, work, life, limits)

    async def run(self, handler: Handler, command: Any, context: CommandContext | None) -> Any:
        """Run a handler and return its reply. Cancelled, or if its time is over, the child is killed.

        Raises:
            HandlerCrashed: The child has ended by itself, or raised what is no exception of a handler.
            Exception: The handler raised it.
        """
        target, kind = handler.process, handler.message_type
        assert target is not None  # noqa: S101 - for type checkers
        given = None
        if context is not None and target.context is not None:
            given = [target.context, context.command_id, context.fence, context.attempt]
        payload = codec_for(kind).encode(command, self._limits)
        limits = [self._limits.max_bytes, self._limits.max_nesting]
        request = framed([handler.module, target.function, kind.__module__, kind.__qualname__, payload, given, limits])
        self.calls += 1
        try:
            answer = await self._exchange(request)
        except BaseException:
            self.is_over = True
            self._kill()
            raise
        if answer is None:
            self.is_over = True
            raise HandlerCrashed(f"the process of {handler.name} {await self._how_it_ended()}")
        return self._result(handler, answer)

    def _result(self, handler: Handler, answer: list[Any]) -> Any:
        if answer[0]:
            return reply_codec_for(handler.spec.reply).decode(answer[1], self._limits)
        packed, name, text, trace = answer[1:]
        error: BaseException = HandlerCrashed(f"{name}: {text}" if text else name)
        if packed is not None:
            with suppress(Exception):  # its class may not be made here
                error = pickle.loads(packed)  # noqa: S301 - by our own child
        error.add_note(f"In the process of {handler.name}:\n{trace}")
        raise error

    async def _exchange(self, request: bytes) -> list[Any] | None:
        """Send a request and return the answer; None if the child ends before that."""
        loop, found, size = asyncio.get_running_loop(), bytearray(), _HEAD
        try:
            await loop.sock_sendall(self._work, request)
            while len(found) < size:
                more = await loop.sock_recv(self._work, _CHUNK)
                if not more:
                    return None
                found += more
                if size == _HEAD and len(found) >= _HEAD:
                    size = _HEAD + int.from_bytes(found[:_HEAD], "big")
        except ConnectionError:
            return None
        answer: list[Any] = unpackb(bytes(found[_HEAD:]))
        return answer

    async def _how_it_ended(self) -> str:
        await self._reap()
        code = self._process.exitcode
        if code is None:
            return "has closed its connection"
        if code >= 0:
            return f"has ended by itself, with exit code {code}"
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
        return f"was ended by signal {-code}"

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()  # where it has not become the leader of its group yet

    async def end(self) -> None:
        """End the child and what it has started, and wait for that."""
        self._kill()
        await asyncio.shield(self._reap())
        self._work.close()
        self._life.close()
        with suppress(ValueError):  # the system does not end it: then its descriptor stays
            self._process.close()

    async def _reap(self) -> None:
        """Wait until the system has ended it."""
        await asyncio.to_thread(self._process.join, _REAPED)
