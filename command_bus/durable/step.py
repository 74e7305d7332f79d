"""`Step`: runs a function once, and stores its result."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

from command_bus.durable.run import DurableRun, cancelled
from command_bus.durable.values import DIGEST, compare, decoded_result, digest_of, encoded_result, result_type
from command_bus.errors import Reject
from command_bus.messages.durable import Durable, StepOptions
from command_bus.messages.put_off import GiveUp, Snooze
from command_bus.randomness import JITTER
from command_bus.transport.durable import Note

__all__ = ["Step", "StepKey", "current_step"]


class StepKey(NamedTuple):
    """The parts of the idempotency key of a step. They refer to no run: what a step starts may outlive that, and has a copy of its context."""

    command_id: str
    seed: str
    field: str

    def text(self) -> str:
        """Return the key: the same each time that the step is tried, and for no other step."""
        return blake2b(f"{self.command_id}\0{self.seed}\0{self.field}".encode(), digest_size=16).hexdigest()


current_step: ContextVar[StepKey | None] = ContextVar("command_bus_current_step", default=None)
"""The key of the step whose function runs here."""


class Step:
    """Runs a function once, and stores its result."""

    def __init__(
        self,
        run: DurableRun,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        options: StepOptions,
    ) -> None:
        self._run = run
        self._name = name
        self._field = run.names.step(name, options.key)
        self._shown = f"step {self._field[2:]!r}"
        self._function = function
        self._args = args
        self._digest = digest_of(name, args, keyed=options.key is not None)
        self._kind = result_type(function, options.returns)
        self._retry = options.retry
        self._is_cancelled = False

    async def perform(self, durable: Durable[Any]) -> Any:
        """See `Operation`."""
        del durable
        with self._run.performing:
            return await self._performed()

    async def _performed(self) -> Any:
        run, limits = self._run, self._run.tools.limits
        run.check()
        stored = run.fields.get(self._field)
        if stored is not None:
            compare(self._shown, stored, self._digest)
            return decoded_result(self._shown, self._kind, run.tools.unseal(self._field, stored[DIGEST:]), limits)
        await run.storing.end()
        if run.wish is not None:
            raise cancelled(run)
        with run.working:
            packed = encoded_result(self._shown, self._kind, await self._tried(), limits)
            if run.passed is not None:
                await run.passed(f"ran:{self._name}")
            await run.store(Note(self._field, self._digest + run.tools.seal(self._field, packed)), progressed=True)
        if self._is_cancelled:
            raise asyncio.CancelledError
        if run.passed is not None:
            await run.passed(f"step:{self._name}")
        return decoded_result(self._shown, self._kind, packed, limits)

    async def _tried(self) -> Any:
        """Call the function; again in place, if the step is retried."""
        retry, attempt = self._retry, 1
        if retry is None:
            return await self._called()
        while True:
            try:
                return await self._called()
            except Exception as error:
                if isinstance(error, Reject | GiveUp | Snooze) or attempt >= retry.attempts or not retry.retries(error):
                    raise  # what a handler says by these it says for itself
                pause = retry.delay_after(attempt, JITTER.uniform, error)
                await self._run.pause(pause)
                attempt += 1

    async def _called(self) -> Any:
        token = current_step.set(StepKey(self._run.command_id, self._run.seed, self._field))
        try:
            if inspect.iscoroutinefunction(self._function):
                return await self._function(*self._args)
            result, self._is_cancelled = await self._run.tools.threads.call(partial(self._function, *self._args))
            return await result if hasattr(type(result), "__await__") else result
        finally:
            current_step.reset(token)
