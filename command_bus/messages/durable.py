"""The context of a durable handler, and what it awaits.

A durable handler survives its worker. What it has done is stored step by step, and where it waits no worker is held: the command is *suspended*,
and its handler is started again when what it waits for is there. It runs from its first line then, and each step and each call that is stored
returns its stored result at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, TypeVarTuple, Unpack, overload

from command_bus.messages.context import CommandContext
from command_bus.messages.options import DurableCallOptions
from command_bus.messages.retry_policy import RetryPolicy

if TYPE_CHECKING:
    from command_bus.messages.event import EventOptions
    from command_bus.messages.message import Event, Message
    from command_bus.messages.options import FollowUpOptions, SendOn
    from command_bus.messages.outgoing import OutgoingMessage

T = TypeVar("T")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
Ts = TypeVarTuple("Ts")
T_co = TypeVar("T_co", covariant=True)


class Suspended(BaseException):
    """Ends one run of a durable handler that waits: the handler is started again later, and this run has nothing more to do.

    It passes through the handler as a cancellation does. A `finally` block may clean up, for a second. A handler that catches it and
    goes on gets it again from the next use of the context or the bus.
    """


class Operation(Protocol[T_co]):
    """One thing that a durable handler awaits."""

    def perform(self, durable: Durable[Any]) -> Coroutine[Any, Any, T_co]:
        """Begin it, wait for it, and return what it came to."""
        ...


class Durable(Coroutine[Any, Any, T_co], Generic[T_co]):
    """The result of a method of `DurableContext`: something to be awaited, also more than once, since its result stays the same.

    The methods are annotated as `Coroutine`, so that type checkers find one that is not awaited. Awaited directly in the handler it may suspend
    the command. In a task of its own (`asyncio.gather`, a `TaskGroup`) and inside of `asyncio.timeout` it works as well, but the command stays
    with its worker while it waits. One that is never awaited does nothing, and warns of that as a coroutine does.

    Args:
        operation: What it does.
        text: What was written for it, for the warning, with `{}` or `{!r}` for its subject; empty: there is none.
        subject: The name of a step, say.
        is_over: Whether the run is over: then it does not warn.
    """

    __slots__ = ("_is_over", "_running", "awaited", "is_used", "operation", "subject", "text")

    def __init__(
        self, operation: Operation[T_co], text: str = "", subject: object = "", is_over: Callable[[], bool] | None = None
    ) -> None:
        self.operation = operation
        self.text = text
        self.subject = subject
        self.is_used = False
        self.awaited: object = None
        self._is_over = is_over
        self._running: Coroutine[Any, Any, T_co] | None = None

    def __del__(self) -> None:
        if self.text and not self.is_used and not (self._is_over is not None and self._is_over()):
            written = self.text.format(self.subject)
            warnings.warn(f"context.{written} was never awaited, so it did nothing", RuntimeWarning, stacklevel=2, source=self)

    def __await__(self) -> Generator[Any, Any, T_co]:
        self.is_used = True
        self.awaited = iterator = self.operation.perform(self).__await__()
        return iterator

    def send(self, value: Any) -> Any:
        """Go on as the coroutine of a task."""
        self.is_used = True
        if self._running is None:
            self._running = self.operation.perform(self)
        return self._running.send(value)

    def throw(self, typ: Any, val: BaseException | object = None, tb: TracebackType | None = None, /) -> Any:
        """Raise an error where the coroutine of a task waits."""
        self.is_used = True
        if self._running is None:
            self._running = self.operation.perform(self)
        return self._running.throw(typ) if val is None and tb is None else self._running.throw(typ, val, tb)

    def close(self) -> None:
        """End the coroutine of a task."""
        self.is_used = True
        if self._running is not None:
            self._running.close()


class StepOptions(NamedTuple):
    """The options of a step.

    Attributes:
        key: Names it among the steps of its name; None: they are numbered.
        returns: The type of its result; None: what its function says, or anything that can be sent.
        retry: How it is tried again in place.
    """

    key: str | None = None
    returns: Any = None
    retry: RetryPolicy | None = None


class DurableOperations(Protocol):
    """The methods of a durable context, for one run of a handler; `DurableContext` describes them."""

    def step(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], options: StepOptions) -> Durable[Any]: ...

    def call(
        self, command: Message[R], undo: Message[Any] | None, key: str | None, options: DurableCallOptions
    ) -> Durable[R]: ...

    def sleep(self, seconds: float, key: str | None) -> Durable[None]: ...

    def signal(self, name: str, timeout: float | None, returns: Any) -> Durable[Any]: ...

    def all(self, operations: tuple[Durable[Any], ...], *, return_exceptions: bool) -> Durable[Any]: ...

    def call_packed(self, out: OutgoingMessage, undo: OutgoingMessage | None, key: str, *, counts: bool) -> Durable[Any]: ...

    def first(self, operations: tuple[Durable[Any], ...], key: str | None) -> Durable[Any]: ...

    def timeout(self, seconds: float, key: str | None) -> AbstractAsyncContextManager[None]: ...

    def compensate(self, command: Message[Any], key: str | None) -> None: ...

    def check(self) -> None:
        """Check that the handler itself asks, and is not over.

        Raises:
            CancelledError: It is over.
            Suspended: This run is.
            BadStep: It is the function of a step that asks.
        """
        ...

    def observe(self, passed: Callable[[str], Awaitable[None]]) -> None: ...

    @property
    def step_key(self) -> str | None: ...

    @property
    def suspending(self) -> bool: ...


@dataclass(slots=True, eq=False)
class DurableContext(CommandContext):
    """One run of a durable handler, for the parameter annotated `DurableContext`.

    The class of the command says that it is durable: `class PlaceOrder(Command[str], entity="order", durable=True)`. The handler is a coroutine.
    Code between what is awaited here runs again with each run of the handler, so it should have no effects: those belong into steps.

    A context made by hand, in a unit test, runs steps and forgets them; for all else use a `TestBus`.
    """

    _operations: DurableOperations | None = field(default=None, repr=False)

    @overload
    def step(
        self,
        name: str,
        function: Callable[[*Ts], Any],
        *args: *Ts,
        returns: type[T],
        key: str | None = None,
        retry: RetryPolicy | None = None,
    ) -> Coroutine[object, None, T]: ...
    @overload
    def step(
        self,
        name: str,
        function: Callable[[*Ts], Any],
        *args: *Ts,
        returns: object,
        key: str | None = None,
        retry: RetryPolicy | None = None,
    ) -> Coroutine[object, None, Any]: ...
    @overload
    def step(
        self,
        name: str,
        function: Callable[[*Ts], Awaitable[T]],
        *args: *Ts,
        key: str | None = None,
        retry: RetryPolicy | None = None,
    ) -> Coroutine[object, None, T]: ...
    @overload
    def step(
        self,
        name: str,
        function: Callable[[*Ts], T],
        *args: *Ts,
        key: str | None = None,
        retry: RetryPolicy | None = None,
    ) -> Coroutine[object, None, T]: ...
    def step(
        self,
        name: str,
        function: Callable[[*Ts], Any],
        *args: *Ts,
        returns: Any = None,
        key: str | None = None,
        retry: RetryPolicy | None = None,
    ) -> Coroutine[object, None, Any]:
        """Run a function once, and store its result before it is returned: `await context.step("charge", psp.charge, card, cents)`.

        A later run of the handler gets the stored result, and the function is not called. If the worker dies between the function's effect and the
        store, the function runs again: at least once, with one result. `step_key` is an idempotency key for what it calls.

        Args:
            name: What tells it from other steps of the handler; 1 to 200 printable characters without a space.
            function: A coroutine function, or a plain one, which runs in a thread.
            *args: Its arguments. Their digest is stored with the result.
            returns: The type of the result, where the function does not say it. The result is stored as a reply of this type would be.
            key: Tells steps of one name apart, in a loop say; without it they are numbered in the order in which they begin.
            retry: Tries the function again in place before the handler fails.

        Raises:
            StepMismatch: A step of this name and key is stored with other arguments.
            BadStep: Its name, arguments or result cannot be stored, or the stored result is not of this type any more.
        """
        if self._operations is None:
            return Durable(_Alone(function, args), "step({!r}, …)", name)
        return self._operations.step(name, function, args, StepOptions(key, returns, retry))

    def call(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride] - it is awaited as the plain one is, with an id of its own
        self,
        command: Message[R],
        *,
        undo: Message[Any] | None = None,
        key: str | None = None,
        **options: Unpack[DurableCallOptions],
    ) -> Coroutine[object, None, R]:
        """Call a command of another entity, once, and wait for its result for as long as it takes, without a worker.

        Args:
            command: What is called. It is sent once, however often the handler runs.
            undo: A command that is sent if this handler fails for good later: see `compensate`. It is stored in the step that sends the call.
                Nothing is undone of a call that was rejected or never ran, or of a durable one that was cancelled: it undoes what it did itself.
            key: Tells calls of one class and entity apart, where several tasks make them; without it they are numbered in the order in which they
                are made.
            **options: As for `CommandBus.call`. The id of the command is made, and its progress is not followed. After `timeout` seconds the
                call raises `TimeoutError`; the command may still run.

        Raises:
            CommandOutcomeError: As `CommandBus.call`.
            CallCycle: The entity is this one, or waits for this handler.
            StepMismatch: An earlier run called this entity with another command here.
            TimeoutError: It took too long.
        """
        return self._durable().call(command, undo, key, options)

    def sleep(self, seconds: float, *, key: str | None = None) -> Coroutine[object, None, None]:
        """Wait so many seconds, also for months. The time is fixed when it begins, and is the server's. `key` is as in `call`."""
        return self._durable().sleep(seconds, key)

    @overload
    def signal(self, name: str, *, timeout: float | None = None, returns: type[T]) -> Coroutine[object, None, T]: ...
    @overload
    def signal(self, name: str, *, timeout: float | None = None, returns: object = ...) -> Coroutine[object, None, Any]: ...
    def signal(self, name: str, *, timeout: float | None = None, returns: Any = Any) -> Coroutine[object, None, Any]:
        """Wait for the next signal of a name: `bus.commands.signal(command_id, name, value)`. It is kept if it comes before it is asked for.

        One whose value is not of the type `returns`, or cannot be decrypted, is left out, in all runs: the log of the worker says so, and the wait
        goes on. To decide about any value, leave `returns` out.

        Args:
            name: What the sender of the signal names; 1 to 200 printable characters without a space.
            timeout: Seconds; None: for ever.
            returns: The type of its value.

        Raises:
            TimeoutError: None came in time.
        """
        return self._durable().signal(name, timeout, returns)

    @overload
    def all(
        self, first: Coroutine[object, None, A], second: Coroutine[object, None, B], /
    ) -> Coroutine[object, None, tuple[A, B]]: ...
    @overload
    def all(
        self, first: Coroutine[object, None, A], second: Coroutine[object, None, B], third: Coroutine[object, None, C], /
    ) -> Coroutine[object, None, tuple[A, B, C]]: ...
    @overload
    def all(self, *operations: Coroutine[object, None, A]) -> Coroutine[object, None, tuple[A, ...]]: ...
    @overload
    def all(
        self, *operations: Coroutine[object, None, A], return_exceptions: bool
    ) -> Coroutine[object, None, tuple[A | Exception, ...]]: ...
    def all(self, *operations: Any, return_exceptions: bool = False) -> Coroutine[object, None, Any]:
        """Wait until each of these has ended, and return their results.

        The error of the first in this order that has one is raised; with `return_exceptions` each is in its place of the results.
        """
        return self._durable().all(operations, return_exceptions=return_exceptions)

    def call_packed(
        self, out: OutgoingMessage, undo: OutgoingMessage | None, key: str, *, counts: bool = False
    ) -> Coroutine[object, None, Any]:
        """Call a command that is encoded, and with `counts` leave its result unread. For the library's own handlers."""
        return self._durable().call_packed(out, undo, key, counts=counts)

    def first(self, *operations: Coroutine[object, None, A], key: str | None = None) -> Coroutine[object, None, Durable[A]]:
        """Wait until one of these has ended, and return that one: `winner = await context.first(paid, late)`, then `await winner`.

        A later run of the handler gets the same one. `key` is as in `call`.
        """
        these: Any = operations
        return self._durable().first(these, key)

    def timeout(self, seconds: float, *, key: str | None = None) -> AbstractAsyncContextManager[None]:
        """Limit a block: `async with context.timeout(3600): …`. It ends as `asyncio.timeout` does.

        After that time what the block awaits is cancelled, also the function of a step, and `TimeoutError` is raised where the block ends. The time
        is fixed when the block is entered first, and holds over all runs of the handler; a later run is cut off at the same place. `key` is as in
        `call`.
        """
        return self._durable().timeout(seconds, key)

    def send(self, command: Message[Any], *, on: SendOn = "completed", **options: Unpack[FollowUpOptions]) -> str:
        """Send as `CommandContext.send`. Not in the function of a step: a later run gets its result, and would send nothing."""
        if self._operations is not None:
            self._operations.check()
        return CommandContext.send(self, command, on=on, **options)

    def publish(self, event: Event, *more: Event, on: SendOn = "completed", **options: Unpack[EventOptions]) -> str:
        """Publish as `CommandContext.publish`. Not in the function of a step, as `send`."""
        if self._operations is not None:
            self._operations.check()
        return CommandContext.publish(self, event, *more, on=on, **options)

    def compensate(self, command: Message[Any], *, key: str | None = None) -> None:
        """Send this command if the handler fails for good later: it undoes what was done so far.

        Compensations run in reverse order, each to its end, before the command is settled with its error: when the handler rejects it, fails for
        the last time, or it is cancelled. A command that parks its entity is compensated once its dead letter is discarded. One that cannot be
        compensated parks its entity.

        Args:
            command: What undoes it.
            key: Tells commands of one class and entity apart, in a loop say; without it they are numbered in the order in which they are named.

        Raises:
            StepMismatch: An earlier run named another command here.
            BadStep: The key cannot be one.
        """
        self._durable().compensate(command, key)

    @property
    def step_key(self) -> str | None:
        """Inside the function of a step: the same text each time that the step is tried, and for no other. Else None."""
        return None if self._operations is None else self._operations.step_key

    @property
    def suspending(self) -> bool:
        """Whether this run ends because the command waits: a `finally` block may ask."""
        return self._operations is not None and self._operations.suspending

    def observe(self, passed: Callable[[str], Awaitable[None]]) -> None:
        """Call this with each point that the handler passes: `ran:charge`, `step:charge`, `call:Reserve`. For test tools."""
        if self._operations is not None:
            self._operations.observe(passed)

    def _durable(self) -> DurableOperations:
        if self._operations is None:
            raise RuntimeError(
                "this context was made by hand: only its steps work. To test calls, sleeps and signals, run the handler on a TestBus"
            )
        return self._operations


class _Alone:
    """A step of a context that was made by hand: it runs its function."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._function = function
        self._args = args

    async def perform(self, durable: Durable[Any]) -> Any:
        del durable
        result = self._function(*self._args)
        return await result if isinstance(result, Awaitable) else result
