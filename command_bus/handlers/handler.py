"""One registered handler, ready to be run: a frozen value with everything the worker needs to call it.

The worker calls `invoke(command, context)`: on the event loop and awaited if `is_async`, in a thread if not. For the plain case
`invoke` *is* the registered function, so that nothing is between the worker and the handler.

A method of a *provided* object is different: the object is made for each command and, if it is a context manager, entered before
it and left after it, which gives a database session per command. An async method does all that on the loop, within `invoke`; a
sync method does it in its thread, because such sessions often must not change threads. One mixture needs the worker: a sync
method whose object is made asynchronously. Then `scope` is set, and the worker writes

    async with handler.scope() as invoke: ...  # run this invoke in a thread, in place of handler.invoke
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from command_bus.errors import RegistrationError
from command_bus.handlers.signatures import HandlerSignature, innermost, qualified_name, read_batch_signature, read_signature
from command_bus.messages.context import CommandContext, ProcessContext
from command_bus.messages.event import Declared
from command_bus.messages.message import Message, MessageSpec
from command_bus.messages.state import EntityState

Invoke = Callable[..., Any]
"""Calls a handler with the command, its context or None, and `state=` if it takes one."""
Scope = Callable[[], AbstractAsyncContextManager[Invoke]]


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """The code that runs for one message type.

    Attributes:
        message_type: The class that the payload is validated into.
        spec: What the bus knows of that class.
        name: The handler's qualified name, for logs, statistics and errors.
        module: Name of the module that defines it.
        is_async: `invoke` returns an awaitable and runs on the event loop; otherwise it blocks and belongs into a thread.
        wants_context: `invoke` is to be given a `CommandContext`; otherwise None will do.
        state: The class of its entity's state, with which `invoke` is called as `state=`, or None.
        declared: The subscription that it is a part of, or None.
        batch: Says that `invoke` takes many commands, and their contexts; None: one.
        invoke: Runs the handler: `invoke(command, context)`.
        scope: Opened around one command if it is set, and gives the `invoke` to use for it. Only where `is_async` is false.
        origin: What was registered or included, to recognise the same thing again.
        callables: The code behind it, for checks: the function, and for provided objects the function or class that makes them.
        process: The function that a process of its own runs; None: it runs here. Where there are no such processes, `invoke` runs it in a thread.
    """

    message_type: type[Message[Any]]
    spec: MessageSpec
    name: str
    module: str
    is_async: bool
    wants_context: bool
    invoke: Invoke
    scope: Scope | None = None
    origin: object = None
    callables: tuple[Callable[..., Any], ...] = ()
    state: type[EntityState] | None = None
    batch: BatchSpec | None = None
    declared: Declared | None = None
    process: ProcessTarget | None = None

    def same_as(self, other: Handler) -> bool:
        """Return whether both register the same code for the same message, so that including it twice changes nothing."""
        return self.message_type is other.message_type and self.origin == other.origin


class ProcessTarget(NamedTuple):
    """A function that a child process finds by its name.

    Attributes:
        function: Its qualified name in the handler's module.
        context: The parameter that takes a `ProcessContext`, or None.
    """

    function: str
    context: str | None


class BatchSpec(NamedTuple):
    """The batches that a handler takes.

    Attributes:
        size: Commands of one call, at most.
        wait: Seconds for which the first of them waits for others.
        of_entity: Whether they are neighbours of one entity, which are not waited for.
    """

    size: int
    wait: float = 0.0
    of_entity: bool = False


class ObjectSource(NamedTuple):
    """The source of the object for a command.

    Attributes:
        provide: Makes it; may give an awaitable, a context manager or both kinds of one.
        cls: The class whose marked methods handle commands.
        on_loop: It is made asynchronously, or that cannot be known beforehand.
        origin: What the user included.
        callables: The code that makes it, for checks.
    """

    provide: Callable[[], Any]
    cls: type
    on_loop: bool
    origin: object
    callables: tuple[Callable[..., Any], ...] = ()


def function_handler(message_type: type[Message[Any]], function: Callable[..., Any], spec: MessageSpec | None = None) -> Handler:
    """Make the handler of a function, a bound method, a partial or a callable object.

    Args:
        message_type: The class that its command has.
        function: Is called.
        spec: What holds in place of what the class says.

    Raises:
        RegistrationError: It cannot handle this message; see `read_signature`.
    """
    signature = read_signature(function, message_type)
    if signature.in_process:
        raise RegistrationError(
            f'{qualified_name(function)} asks for a ProcessContext: register it with runs_in="process", or annotate CommandContext'
        )
    call = _positional(function, signature)
    if signature.runs == "either":
        call = _awaiting(call)
    elif signature.runs == "thread":
        call = _in_thread(call, qualified_name(function))
    return _handler(message_type, function, signature, call, origin=function, callables=(function,), spec=spec)


def process_handler(message_type: type[Message[Any]], function: Callable[..., Any]) -> Handler:
    """Make the handler of a function that runs in a process of its own.

    Raises:
        RegistrationError: A child process could not find or call it, or it cannot handle this message; see `read_signature`.
    """
    name, spec = qualified_name(function), message_type.spec()
    if not isinstance(function, FunctionType) or "<" in function.__qualname__ or "<" in message_type.__qualname__:
        raise RegistrationError(
            f'{name} has runs_in="process", so a child process looks for it, and for {message_type.__qualname__}, by name: both are defined in a '
            "module, as a plain function and a class, and not within a function or as a method"
        )
    signature = read_signature(function, message_type)
    if signature.runs != "thread":
        raise RegistrationError(f'{name} has runs_in="process", where no event loop runs: make it a plain function, `def`')
    if signature.state is not None or spec.durable:
        what = "a state" if signature.state is not None else "a durable command"
        raise RegistrationError(f'{name} has runs_in="process", where nothing talks to the bus: it cannot have {what}')
    if signature.context is not None and not signature.in_process:
        raise RegistrationError(
            f'{name} has runs_in="process", where nothing talks to the bus: annotate its parameter {signature.context!r} with ProcessContext'
        )
    context = signature.context

    def call(command: Any, given: CommandContext) -> Any:
        inner = ProcessContext(given.command_id, given.fence, given.attempt)
        return function(command) if context is None else function(command, **{context: inner})

    async def in_thread(command: Any, given: CommandContext) -> Any:
        return await asyncio.to_thread(call, command, given)

    made = _handler(message_type, function, signature, in_thread, origin=function, callables=(function,))
    return replace(made, is_async=True, wants_context=True, process=ProcessTarget(function.__qualname__, context))


def batch_handler(
    message_type: type[Message[Any]], function: Callable[..., Any], batch: BatchSpec, spec: MessageSpec | None = None
) -> Handler:
    """Make the handler of a function that takes many commands.

    Args:
        message_type: The class that its commands have.
        function: Is called.
        batch: How many it takes.
        spec: What holds in place of what the class says.

    Raises:
        RegistrationError: It cannot take them, or the message cannot be handled so; see `read_batch_signature`.
    """
    signature = read_batch_signature(function, message_type, of_entity=batch.of_entity)
    known = spec or message_type.spec()
    if known.durable or known.delivery == "at_most_once":
        what = "durable" if known.durable else "at_most_once"
        raise RegistrationError(
            f"{qualified_name(function)} takes batches, but {message_type.__qualname__} is {what}: a call that fails is repeated with parts of "
            "its commands"
        )
    if batch.of_entity and (known.entity is None or any(limit.key is not None for limit in known.limits)):
        what = "has no entity" if known.entity is None else "has a limit whose bucket each command chooses by itself"
        raise RegistrationError(f"{qualified_name(function)} takes batches of one entity, but {message_type.__qualname__} {what}")
    call = _positional(function, signature)
    if signature.runs == "either":
        call = _awaiting(call)
    elif signature.runs == "thread":
        call = _in_thread(call, qualified_name(function))
    made = _handler(message_type, function, signature, call, origin=function, callables=(function,), spec=spec)
    return replace(made, batch=batch)


def scoped_handler(message_type: type[Message[Any]], source: ObjectSource, attribute: str) -> Handler:
    """Make the handler of a marked method whose object is made for each command.

    Raises:
        RegistrationError: The method cannot handle this message; see `read_signature`.
    """
    method: Any = inspect.getattr_static(source.cls, attribute)
    # Bound to a placeholder, since there is no object yet: what is read of it is the signature without `self`.
    is_method = not isinstance(method, staticmethod | classmethod)
    function = MethodType(method, source) if is_method else getattr(source.cls, attribute)
    signature = read_signature(function, message_type)
    origin, callables = (source.origin, attribute), (function, *source.callables)

    def bound(target: Any) -> Invoke:
        return _positional(getattr(target, attribute), signature)

    if signature.runs != "thread":

        async def invoke(command: Any, context: CommandContext | None, **state: Any) -> Any:
            async with _opened(source.provide) as target:
                result = bound(target)(command, context, **state)
                return await result if inspect.isawaitable(result) else result

        return _handler(message_type, function, signature, invoke, origin=origin, callables=callables)

    name = qualified_name(function)

    def invoke_in_thread(command: Any, context: CommandContext | None, **state: Any) -> Any:
        return _entering(source.provide(), bound, name)(command, context, **state)

    scope = _scope(source.provide, bound, name) if source.on_loop else None
    return _handler(message_type, function, signature, invoke_in_thread, scope=scope, origin=origin, callables=callables)


def _handler(
    message_type: type[Message[Any]],
    function: Callable[..., Any],
    signature: HandlerSignature,
    invoke: Invoke,
    *,
    scope: Scope | None = None,
    origin: object,
    callables: tuple[Callable[..., Any], ...],
    spec: MessageSpec | None = None,
) -> Handler:
    spec = spec or message_type.spec()
    _check_durable(spec, function, signature)
    return Handler(
        message_type=message_type,
        spec=spec,
        name=qualified_name(function),
        module=getattr(innermost(function), "__module__", None) or "",
        is_async=signature.runs != "thread",
        wants_context=signature.context is not None,
        invoke=invoke,
        scope=scope,
        origin=origin,
        callables=callables,
        state=signature.state_type,
    )


def _check_durable(spec: MessageSpec, function: Callable[..., Any], signature: HandlerSignature) -> None:
    """Check that a durable command has a coroutine, and that no other handler asks for a durable context.

    Raises:
        RegistrationError: It is not so.
    """
    if spec.durable and signature.runs == "thread":
        raise RegistrationError(
            f"{qualified_name(function)} runs in a thread, but {spec.name} is durable, and a thread cannot be suspended: "
            "make it `async def`; what blocks belongs into a step, which runs plain functions in a thread"
        )
    if signature.is_durable and not spec.durable:
        raise RegistrationError(
            f"{qualified_name(function)} asks for a DurableContext, but {spec.name} is not durable: add durable=True to "
            "its class or subscription, or annotate CommandContext"
        )


def _positional(function: Callable[..., Any], signature: HandlerSignature) -> Invoke:
    """Return the function with the one shape that all handlers have; itself if it has that shape."""
    if signature.state is not None:
        return _with_state(function, signature.state, signature.context)
    if signature.context is None:
        return lambda command, _context: function(command)
    if signature.by_keyword:
        keyword = signature.context
        return lambda command, context: function(command, **{keyword: context})
    return function


def _with_state(function: Callable[..., Any], name: str, context: str | None) -> Invoke:
    if context is None:
        return lambda command, _context, state: function(command, **{name: state})
    return lambda command, given, state: function(command, **{name: state, context: given})


def _awaiting(call: Invoke) -> Invoke:
    async def invoke(command: Any, context: CommandContext | None, **state: Any) -> Any:
        result = call(command, context, **state)
        return await result if inspect.isawaitable(result) else result

    return invoke


def _in_thread(call: Invoke, name: str) -> Invoke:
    def invoke(command: Any, context: CommandContext | None, **state: Any) -> Any:
        result = call(command, context, **state)
        if _has(result, "__await__"):
            if inspect.iscoroutine(result):
                result.close()
            raise RegistrationError(
                f"{name} is a plain function, so it ran in a thread, but it returned an awaitable: "
                "make it `async def`, or annotate its result as Coroutine[…]"
            )
        return result

    return invoke


@asynccontextmanager
async def _opened(provide: Callable[[], Any]) -> AsyncGenerator[Any]:
    """Open the provided object for the length of a command, if it is a context manager of either kind."""
    value = await _made(provide)
    if _has(value, "__aenter__"):
        async with value as target:
            yield target
    elif _has(value, "__enter__"):
        with value as target:
            yield target
    else:
        yield value


def _scope(provide: Callable[[], Any], bound: Callable[[Any], Invoke], name: str) -> Scope:
    """Make a scope that makes the object on the loop; a plain context manager is still entered in the thread."""

    @asynccontextmanager
    async def scope() -> AsyncGenerator[Invoke]:
        value = await _made(provide)
        if _has(value, "__aenter__") and not _has(value, "__enter__"):
            async with value as target:
                yield _in_thread(bound(target), name)
        else:
            yield _entering(value, bound, name)

    return scope


async def _made(provide: Callable[[], Any]) -> Any:
    value = provide()
    return await value if inspect.isawaitable(value) and not _has(value, "__aenter__") else value


def _has(value: object, method: str) -> bool:
    """Return whether the value's class has this method, as the language looks for it; much cheaper than the abstract classes."""
    return hasattr(type(value), method)


def _entering(value: Any, bound: Callable[[Any], Invoke], name: str) -> Invoke:
    """Call the method of the object in this thread, inside the object's context if it is a context manager."""

    def invoke(command: Any, context: CommandContext | None, **state: Any) -> Any:
        if _has(value, "__enter__"):
            with value as target:
                return _in_thread(bound(target), name)(command, context, **state)
        if _has(value, "__await__") or _has(value, "__aenter__"):
            raise RegistrationError(f"{name} runs in a thread, but its object is made asynchronously: make it `async def`")
        return _in_thread(bound(value), name)(command, context, **state)

    return invoke
