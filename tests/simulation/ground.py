"""The ground under the bus: its clock, its randomness and its renewing thread, put into virtual time.

`mono` is `time.monotonic` bound by name in every module that uses it, because a call through another function would be paid for by
every command. So each binding is replaced here, while a simulation runs, and put back.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from random import Random
from typing import Any

import command_bus.worker
from command_bus import clock, outbound, randomness
from command_bus.transport.redis.errors import CONNECTION_ERRORS
from command_bus.transport.redis.lease_keeper import LeaseKeeper
from tests.simulation.loop import LANE, SimLoop

__all__ = ["ground"]


class _Wake:
    """A `threading.Event` for a thread that is a task."""

    def __init__(self) -> None:
        self._set = asyncio.Event()
        self.set = self._set.set
        self.clear = self._set.clear

    async def wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._set.wait()
        except TimeoutError:
            pass


class _HandlersLoop:
    """What the renewing thread sees of the event loop: it hands callbacks over to the main lane."""

    def __init__(self, loop: SimLoop, context: Any) -> None:
        self._loop = loop
        self._context = context

    def is_closed(self) -> bool:
        return False

    def call_soon_threadsafe(self, callback: Any, *args: Any) -> None:
        self._loop.call_soon(callback, *args, context=self._context)


class TaskKeeper(LeaseKeeper):
    """The lease keeper with its thread simulated as a task of the process's second lane, which runs on while the loop is blocked."""

    def start(self) -> None:
        loop: Any = asyncio.get_running_loop()
        lane = LANE.get()
        assert lane is not None
        process = lane.process
        self._wake: Any = _Wake()
        self._loop: Any = _HandlersLoop(loop, process.context)
        self._task = loop.create_task(self._run_as_task(), name="command_bus.leases", context=process.thread_context.copy())

    async def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        await asyncio.wait([self._task], timeout=10.0)

    async def _run_as_task(self) -> None:
        client: Any = self._factory.thread(self.patience)
        try:
            while not self._stopping:
                await self._wake.wait(await self._turn_in_time(client))
                self._wake.clear()
        finally:
            await client.aclose()

    async def _turn_in_time(self, client: Any) -> float:
        turn, answers = self.turn(), None
        while True:
            try:
                page = turn.send(answers)
            except StopIteration as end:
                return float(end.value)
            try:
                answers = await self.request(client, page).execute(raise_on_error=False)
            except CONNECTION_ERRORS as error:
                answers = error


def _rebind(name: str, old: Any, new: Any) -> Callable[[], None]:
    """Replace a function wherever the package has bound it; gives what puts it back."""
    modules = [
        module
        for path, module in list(sys.modules.items())
        if path.partition(".")[0] == "command_bus" and vars(module).get(name) is old
    ]
    for module in modules:
        setattr(module, name, new)

    def undo() -> None:
        for module in modules:
            setattr(module, name, old)

    return undo


_NOBODY: Any = None


@contextmanager
def ground(seed: int, loop: SimLoop) -> Iterator[None]:
    """Virtual time and seeded randomness for the package, while it lasts."""
    tokens = Random(f"tokens {seed}")
    logger = logging.getLogger("command_bus")
    undo = [
        _rebind("mono", time.monotonic, loop.time),
        _rebind("wall_ms", clock.wall_ms, lambda: int((loop.time() + 1_700_000_000) * 1000)),
        _rebind("LeaseKeeper", LeaseKeeper, TaskKeeper),
        _rebind("descriptions", command_bus.worker.descriptions, _descriptions),
    ]
    before, level = randomness.token, logger.level
    source = randomness._source
    randomness.use_tokens_from(tokens.randbytes)
    randomness.JITTER.seed(f"jitter {seed}")
    outbound.new_command_id.begin()
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
        randomness.use_tokens_from(source)
        randomness.JITTER.seed()
        outbound.new_command_id.begin()
        for restore in undo:
            restore()
    assert before is randomness.token


_describe = command_bus.worker.descriptions


@lru_cache
def _descriptions(registry: Any) -> dict[str, bytes]:
    """As the worker's own, remembered: it is the same for every start."""
    return _describe(registry)
