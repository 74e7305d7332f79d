"""`HandlerOperations`: the methods of a durable context, for one run of a handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

from command_bus.clock import checked_seconds
from command_bus.durable.combined import AllOf, FirstOf
from command_bus.durable.in_flight import current_step
from command_bus.durable.names import checked_name
from command_bus.durable.run import DurableRun
from command_bus.durable.step import Step
from command_bus.durable.time_limits import TimeLimit
from command_bus.durable.undo import Undo
from command_bus.durable.values import compare
from command_bus.durable.waits import Call, HeldCall, Signal, Sleep
from command_bus.errors import BadStep, InvalidCommand
from command_bus.messages.durable import Durable, Operation, StepOptions
from command_bus.messages.message import Message, reply_of
from command_bus.messages.options import DurableCallOptions
from command_bus.messages.outgoing import Across, OutgoingMessage
from command_bus.transport.ports.durable import Note

R = TypeVar("R")


class HandlerOperations:
    """Implements `DurableOperations`.

    Args:
        run: State of the handler's run.
    """

    def __init__(self, run: DurableRun) -> None:
        self._run = run
        self._in_flight = run.in_flight  # that of the handler: what compensates has another

    @property
    def step_key(self) -> str | None:
        key = current_step.get()
        return None if key is None else key.text()

    @property
    def suspending(self) -> bool:
        return self._is_over()

    def observe(self, passed: Callable[[str], Awaitable[None]]) -> None:
        self._run.passed = passed

    def check(self) -> None:
        self._in_flight.check()
        self._run.check()

    def step(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], options: StepOptions) -> Durable[Any]:
        self._in_flight.check_place()
        return self._awaited(Step(self._run, name, function, args, options), "step({!r}, …)", name)

    def call(self, command: Message[R], undo: Message[Any] | None, key: str | None, options: DurableCallOptions) -> Durable[R]:
        self._in_flight.check_place()
        if options.get("command_id") is not None:
            raise InvalidCommand(
                "a durable call has an id of its own, which is the same whenever the handler runs: leave command_id out"
            )
        if "on_progress" in options:
            raise InvalidCommand(
                "no caller waits for a durable call meanwhile, so it has no on_progress: follow it by bus.commands.progress"
            )
        timeout = options.get("timeout")
        children = self._run.tools.children
        sent: Any = {key: value for key, value in options.items() if key not in ("timeout", "command_id", "on_progress")}
        out = children.outgoing(command, **sent)
        undoing = None if undo is None else children.outgoing(undo)
        seconds = None if timeout is None else checked_seconds("timeout", timeout)
        return self._called(Call(self._run, out, reply_of(command), seconds, undoing, key=key), out)

    def call_packed(
        self, out: OutgoingMessage, undo: OutgoingMessage | None, key: str, *, counts: bool, across: Across | None
    ) -> Durable[Any]:
        most = self._run.tools.children.builder.limits.max_bytes
        if len(out.payload) > most:
            raise BadStep(
                f"{out.name} would take {len(out.payload):,} bytes with the results of what comes before it, the limit is {most:,}: let that "
                "return less, or of a group the counts only, by results=False"
            )
        out.given_id = True  # its outcome is remembered, should it not reach the caller
        for each in (out, undo):
            if each is not None:
                self._run.tools.children.keep_end(each)
        if across is not None:
            return self._called(HeldCall(self._run, *self._run.tools.children.part_behind(out, across), key), out)
        return self._called(Call(self._run, out, Any, None, undo, key=key, counts=counts), out)

    def _called(self, made: Call, out: OutgoingMessage) -> Durable[Any]:
        return self._awaited(made, "call({}(…))", out.name)

    def sleep(self, seconds: float, key: str | None) -> Durable[None]:
        self._in_flight.check_place()
        return self._awaited(Sleep(self._run, seconds, key), "sleep({!r})", seconds)

    def signal(self, name: str, timeout: float | None, returns: Any) -> Durable[Any]:
        self._in_flight.check_place()
        checked = checked_name("name of a signal", name)
        return self._awaited(Signal(self._run, name, checked, timeout, returns), "signal({!r})", name)

    def all(self, operations: tuple[Durable[Any], ...], *, return_exceptions: bool) -> Durable[Any]:
        self._in_flight.check_place()
        return self._awaited(AllOf(self._run, operations, return_exceptions=return_exceptions), "all(…)")

    def first(self, operations: tuple[Durable[Any], ...], key: str | None) -> Durable[Any]:
        self._in_flight.check_place()
        return self._awaited(FirstOf(self._run, operations, key), "first(…)")

    def timeout(self, seconds: float, key: str | None) -> AbstractAsyncContextManager[None]:
        self._in_flight.check_place()
        return self._limited(checked_seconds("the time limit", seconds, zero=True), self._run.names.numbered("t:timeout", key))

    def compensate(self, command: Message[Any], key: str | None) -> None:
        run = self._run
        self.check()
        out = run.tools.children.outgoing(command)
        field = run.names.undo(out.name, out.entity_type, out.entity_id, key)
        stored = run.fields.get(field)
        if stored is None:
            run.storing.begin(self._undo(out, field, run.undo_places.next()))
        else:
            self._compare_undo(field, stored, out)

    def _awaited(self, operation: Operation[Any], text: str, subject: object = "") -> Durable[Any]:
        return Durable(operation, text, subject, self._is_over)

    def _is_over(self) -> bool:
        return self._run.suspension is not None

    async def _undo(self, out: OutgoingMessage, field: str, place: int) -> None:
        (stored,) = await self._run.store(await self._run.undoing(out, field, place))
        if stored is not None:
            self._compare_undo(field, stored, out)

    def _compare_undo(self, field: str, stored: bytes, out: OutgoingMessage) -> None:
        """Compare a command that undoes something with what is stored under its name.

        Raises:
            StepMismatch: It is another one.
        """
        digest = self._run.tools.children.digest_of(out)
        compare(f"the compensation {field[2:]!r}", Undo.read(field, stored).digest, digest)

    async def _store_cut_offs(self) -> None:
        """Store what was cut off before the handler is told, so that no later run gets it, should this one be lost."""
        task = self._in_flight.begin()
        try:
            await self._run.store()
        finally:
            self._in_flight.end(task)

    @asynccontextmanager
    async def _limited(self, seconds: float, name: str) -> AsyncGenerator[None]:
        run = self._run
        if run.suspension is not None or self._in_flight.is_over:
            await self._in_flight.refuse()
        self.check()
        if name not in run.fields:
            task = self._in_flight.begin()
            try:
                await run.cut_offs.check(run.now_ms)
                await run.store(Note(name, int(seconds * 1000), is_time=True))
            finally:
                self._in_flight.end(task)
        limit = TimeLimit(run.names, name, int(run.fields[name]))
        limit.enter(run.now_ms)
        try:
            yield
        except asyncio.CancelledError as error:
            if not limit.leave():
                raise
            await self._store_cut_offs()
            raise run.errors.note(TimeoutError(f"the time limit of {seconds:g} s was over first")) from error
        except BaseException:
            limit.leave()
            raise
        else:
            limit.leave()
