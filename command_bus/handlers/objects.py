"""Handler objects: `HandlerRegistry.include` takes objects with marked methods, and what makes such objects.

`@handles` on a method only marks it, because there is no object yet. Including an instance binds its methods; including a class,
a function without arguments or a dependency-injector provider gives an object per command.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from types import MethodType
from typing import Any, cast, get_args, get_origin

from command_bus.errors import RegistrationError
from command_bus.handlers.handler import Handler, ObjectSource, function_handler, scoped_handler
from command_bus.handlers.injection import is_provider, provided_type
from command_bus.handlers.signatures import layers, qualified_name, return_type, unbound, unfilled
from command_bus.messages.message import Message

_MARK = "__command_bus_handles__"
_ASYNC = (AsyncGenerator, AsyncIterator, AsyncIterable, Coroutine, Awaitable, AbstractAsyncContextManager)
_WRAPPERS = (*_ASYNC, Generator, Iterator, Iterable, AbstractContextManager)


def in_class_body(function: Any) -> bool:
    """Return whether a function is written inside a class, so that it will be a method; a bound method no longer is one."""
    if isinstance(function, MethodType | functools.partial) or inspect.isclass(function):
        return False
    owner = getattr(function, "__qualname__", "").rpartition(".")[0]
    return owner != "" and not owner.endswith("<locals>")


def mark(function: Any, message_type: type[Message[Any]]) -> None:
    """Note on a method which message it handles."""
    written = unbound(function)
    setattr(written, _MARK, (*_marks(written), message_type))


def marked_methods(cls: type) -> dict[str, tuple[type[Message[Any]], ...]]:
    """Return the marked methods of a class with their messages. An override keeps the mark of what it overrides."""
    found: dict[str, tuple[type[Message[Any]], ...]] = {}
    for owner in reversed(cls.__mro__):
        for name, value in vars(owner).items():
            if marks := _marks(value):
                found[name] = marks
    return {name: marks for name, marks in found.items() if callable(getattr(cls, name, None))}


def handlers_of(source: Any, of: type | None) -> list[Handler]:
    """Return the handlers of an instance, a class, a function that makes an object, or a provider.

    Raises:
        RegistrationError: There are none, or the class is not known or cannot be made.
    """
    if not inspect.isclass(source) and (methods := marked_methods(cast("object", source).__class__)):
        return [
            function_handler(message_type, getattr(source, attribute))
            for attribute, messages in methods.items()
            for message_type in messages
        ]
    made = _object_source(source, of)
    methods = marked_methods(made.cls)
    if not methods:
        raise RegistrationError(f"{qualified_name(made.cls)} has no method decorated with @handles")
    return [scoped_handler(message_type, made, attribute) for attribute, messages in methods.items() for message_type in messages]


def _marks(value: Any) -> tuple[type[Message[Any]], ...]:
    written = unbound(value)
    marks: Any = getattr(written, _MARK, None) if callable(written) else None
    return cast("tuple[type[Message[Any]], ...]", marks) if isinstance(marks, tuple) else ()


def _object_source(source: Any, of: type | None) -> ObjectSource:
    if is_provider(source):
        made = of if of is not None else _class_in(provided_type(source))
        if made is None:
            raise RegistrationError(f"the class that {source!r} provides is not known: include(provider, of=TheClass)")
        return ObjectSource(source, made, on_loop=True, origin=source)
    if not callable(source):
        raise RegistrationError(
            f"{source!r} cannot be included: give a registry, a module, an object or class with methods decorated with @handles, "
            "or a function or provider that makes such an object"
        )
    name = qualified_name(source)
    if (missing := unfilled(source)) is not None:
        raise RegistrationError(
            f"{name} is called without arguments for each command, but needs {missing!r}: include an instance, or a "
            "function or provider that fills it"
        )
    returned = source if inspect.isclass(source) else return_type(source)
    made = of if of is not None else _class_in(returned)
    if made is None:
        raise RegistrationError(
            f"the class that {name} makes is not known: annotate what it returns, or include it with of=TheClass"
        )
    return ObjectSource(_entered(source), made, _is_made_on_loop(source, returned), origin=source, callables=(source,))


def _class_in(annotation: Any) -> type | None:
    """Return `Accounts` of `Accounts`, `AsyncIterator[Accounts]`, `Coroutine[Any, Any, Accounts]` and the like."""
    while get_origin(annotation) in _WRAPPERS:
        arguments = get_args(annotation)
        annotation = arguments[-1] if get_origin(annotation) in (Coroutine, Awaitable) else arguments[0]
    return None if annotation is Any or not inspect.isclass(annotation) else annotation


def _is_made_on_loop(source: Any, returned: Any) -> bool:
    if inspect.isclass(source):
        return hasattr(source, "__aenter__") and not hasattr(source, "__enter__")
    asynchronous = any(inspect.iscoroutinefunction(layer) or inspect.isasyncgenfunction(layer) for layer in layers(source))
    return asynchronous or get_origin(returned) in _ASYNC


def _entered(source: Callable[[], Any]) -> Callable[[], Any]:
    """Turn a generator function into the context manager that it is meant to be; leave anything else as it is."""
    if inspect.isasyncgenfunction(source):
        return asynccontextmanager(source)
    return contextmanager(source) if inspect.isgeneratorfunction(source) else source
