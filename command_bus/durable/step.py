"""`Step`: runs a function once, and stores its result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from command_bus.durable.in_flight import StepKey, current_step
from command_bus.durable.run import DurableRun, TrackedOperation, Waited, cancelled
from command_bus.durable.run_tools import LINGER, LONG_LINGER
from command_bus.durable.time_limits import current_limits
from command_bus.durable.values import compare, decoded_result, digest_of, encoded_result, facts_of, own_arguments
from command_bus.errors import BadStep, Reject
from command_bus.messages.durable import Durable, StepOptions
from command_bus.messages.retry_policy import RetryPolicy
from command_bus.messages.snooze import GiveUp, Snooze, leading
from command_bus.randomness import JITTER
from command_bus.serialization.equality import DIGEST
from command_bus.transport.ports.durable import Note


class Step(TrackedOperation):
    """Runs a function once, and stores its result."""

    def __init__(
        self,
        run: DurableRun,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        options: StepOptions,
    ) -> None:
        super().__init__(run)
        self._name = name
        self._field = self.name = run.names.step(name, options.key)
        self._function = function
        self._args = args
        self._digest = digest_of(name, args, keyed=options.key is not None, secret=run.tools.secret)
        self._facts = facts_of(function, options.returns)
        self._facts.check(name)
        self._retry = options.retry
        self._is_cancelled = False

    async def performed(self, durable: Durable[Any]) -> Any:
        run = self.run
        stored = run.fields.get(self._field)
        if stored is not None:
            compare(self._shown(), stored, self._digest)
            return self._decoded(run.tools.unseal(self._field, stored[DIGEST:]))
        if run.failures.are_stored and (stored := run.fields.get(failed := self._failure())) is not None:
            compare(self._shown(), stored, self._digest)
            raise run.failures.again(failed, run.tools.unseal(failed, stored[DIGEST:]))
        if current_limits.get():
            await run.cut_offs.check(run.now_ms)
        if run.wish is not None:
            raise cancelled(run)
        if run.cut_offs.unstored or run.failures.unstored:
            await run.store()  # what failed before must not be tried again beside this
        run.working += 1
        try:
            try:
                result = await (self._called() if self._retry is None else self._tried(durable, self._retry))
                packed = encoded_result(self._facts.codec, result, run.tools.limits, self._shown)
            except Exception as error:
                run.failures.note(self._failure(), error, lambda field, data: self._digest + run.tools.seal(field, data))
                raise
            if run.passed is not None:
                await run.passed(f"ran:{self._name}")
            await run.store(Note(self._field, self._digest + run.tools.seal(self._field, packed)), progressed=True)
        finally:
            run.working -= 1
        if self._is_cancelled:
            raise asyncio.CancelledError
        if run.passed is not None:
            await run.passed(f"step:{self._name}")
        return result if type(result) is self._facts.unchanging else self._decoded(packed)

    def _shown(self) -> str:
        return f"step {self._field[2:]!r}"

    def _decoded(self, packed: bytes) -> Any:
        return decoded_result(self._facts.codec, packed, self.run.tools.limits, self._shown)

    def _failure(self) -> str:
        """Return the field of the error of this await."""
        return self.run.failures.field(f"{self._field[2:]}~{self.awaits}")

    async def _tried(self, durable: Durable[Any], retry: RetryPolicy) -> Any:
        """Call the function, again in place if it fails. Behind a long pause, which is stored, the tries go on in any run."""
        attempt = max((each for each in range(1, retry.attempts) if self._pause_field(each) in self.run.fields), default=0)
        if attempt:
            await self._pause(durable, attempt, 0.0)
        attempt += 1
        while True:
            try:
                return await self._called()
            except Exception as error:
                if (
                    isinstance(leading(error), Reject | GiveUp | Snooze | BadStep)
                    or attempt >= retry.attempts
                    or not retry.retries(error)
                ):
                    raise  # what a handler says by these it says for itself
                pause = retry.delay_after(attempt, JITTER.uniform, error)
                if pause <= LONG_LINGER:
                    await self.run.pause(pause)
                else:
                    await self._pause(durable, attempt, pause)
                attempt += 1

    def _pause_field(self, attempt: int) -> str:
        return f"t:{self._field}~{attempt}"

    async def _pause(self, durable: Durable[Any], attempt: int, seconds: float) -> None:
        """Wait for a time that is stored, as a sleep does: the command is suspended, if it may be."""
        pause = Waited(self.run)
        pause.until_ms, pause.lingers = await pause.fixed_time(self._pause_field(attempt)[2:], seconds), LINGER
        if not self.run.is_over(pause):
            await self.run.wait(durable, (pause,), wanted=1)

    async def _called(self) -> Any:
        token = current_step.set(StepKey(self.run.command_id, self.run.seed, self._field))
        try:
            args = own_arguments(self._args, self._digest)
            if self._facts.is_async:
                return await self._function(*args)
            result, self._is_cancelled = await self.run.tools.threads.call(partial(self._function, *args))
            return await result if hasattr(type(result), "__await__") else result
        finally:
            current_step.reset(token)
