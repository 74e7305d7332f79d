"""The registry of handlers: a handler for each class of message.

    @handles(Deposit)
    async def deposit(command: Deposit) -> int: ...

`@handles` returns the function untouched, so that it stays callable and testable as what it is. The one of this module fills
`default_registry`; a `HandlerRegistry` of your own keeps parts of a program, or tests, apart.

Handler objects: `HandlerRegistry.include` takes objects with marked methods, and what makes such objects.

`@handles` on a method only marks it, because there is no object yet. Including an instance binds its methods; including a class,
a function without arguments or a dependency-injector provider gives an object per command.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from asyncio import Future
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
    Sequence,
)
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from types import MethodType, ModuleType
from typing import Any, Generic, Literal, ParamSpec, TypeGuard, TypeVar, Unpack, cast, get_args, get_origin, overload

from command_bus.clock import duration_fault
from command_bus.errors import InvalidSettings, RegistrationError
from command_bus.handlers.handler import (
    BatchSpec,
    Handler,
    ObjectSource,
    batch_handler,
    function_handler,
    process_handler,
    scoped_handler,
)
from command_bus.handlers.injection import is_provider, provided_type
from command_bus.handlers.signatures import layers, qualified_name, return_type, unbound, unfilled
from command_bus.messages.event import (
    Declared,
    RawEvent,
    SubscriptionOptions,
    checked_pattern,
    checked_subscription,
    family_of,
    matcher,
)
from command_bus.messages.message import MOST_VERSION, Event, Message, is_internal, policy_faults
from command_bus.messages.policies import delivered_name, parts_of_delivery
from command_bus.messages.schedule_declarations import DeclaredSchedule, ScheduleOptions
from command_bus.messages.schedule_specs import Cron, Every, SchedulePolicy
from command_bus.messages.state import check_defaults
from command_bus.spelling import check_names, shown

_MARK = "__command_bus_handles__"
_MOST_IN_BATCH, _MOST_IN_RUN = 10_000, 256
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


F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")
P = ParamSpec("P")


class Registration(Generic[R]):
    """The decorator for handlers whose reply is `R`: `handles(Deposit)` returns it."""

    __slots__ = ("_message_type", "_registry", "_runs_in")

    def __init__(
        self, registry: HandlerRegistry, message_type: type[Message[R]], runs_in: Literal["process"] | None = None
    ) -> None:
        self._registry = registry
        self._message_type = message_type
        self._runs_in = runs_in

    # Overloads rather than one type variable for the function, because its result must be seen to be checked against R. They name
    # no Awaitable: a coroutine is one too, so mypy would find two overloads that fit, give up and make the function's type Any.
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Callable[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, Future[R]], /) -> Callable[P, Future[R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...
    def __call__(self, function: Any, /) -> Any:
        """Register the function, or mark it if it is a method of a class that is being defined; it is returned as it is.

        Raises:
            RegistrationError: It cannot handle the message, or another handler does.
        """
        if self._runs_in is not None:
            self._registry.add(process_handler(self._message_type, function))
        elif in_class_body(function):
            self._registry.declare(self._message_type)
            mark(function, self._message_type)
        else:
            self._registry.add(function_handler(self._message_type, function))
        return function


def _batch(name: str, size: int | None, wait: float | None, of: Literal["entity"] | None) -> BatchSpec:
    """Return how many messages a function takes.

    Raises:
        RegistrationError: One of these is not what it may be.
    """
    most, usual = (_MOST_IN_RUN, 100) if of is not None else (_MOST_IN_BATCH, 500)
    size, fault = usual if size is None else size, None if wait is None else duration_fault(wait)
    what = f"wait {fault}" if fault else ""
    if of not in (None, "entity"):
        what = f'of is "entity" or None, not {of!r}'
    elif of is not None and wait is not None:
        what = 'of="entity" does not wait: a call has what stands in the line of its entity'
    elif type(size) is not int or not 2 <= size <= most:
        what = f"size is a whole number from 2 to {most:,}, not {size!r}"
    if what:
        raise RegistrationError(f"{name}: {what}")
    usual_wait = 0.01 if wait is None else wait
    return BatchSpec(size, 0.0 if of else usual_wait, of_entity=of is not None)


class BatchRegistration(Generic[R]):
    """The decorator for handlers of many commands whose reply is `R`: `handles_many(Insert)` returns it."""

    __slots__ = ("_message_type", "_registry", "_spec")

    def __init__(self, registry: HandlerRegistry, message_type: type[Message[R]], spec: BatchSpec) -> None:
        self._registry = registry
        self._message_type = message_type
        self._spec = spec

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, Sequence[R | Exception]]], /
    ) -> Callable[P, Coroutine[Any, Any, Sequence[R | Exception]]]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, None]], /) -> Callable[P, Coroutine[Any, Any, None]]: ...
    @overload
    def __call__(
        self, function: Callable[P, Sequence[R | Exception] | None], /
    ) -> Callable[P, Sequence[R | Exception] | None]: ...
    def __call__(self, function: Any, /) -> Any:
        """Register the function; it is returned as it is.

        Raises:
            RegistrationError: It cannot handle a batch of the message, another handler does, or it is a method.
        """
        if in_class_body(function):
            raise RegistrationError(f"{qualified_name(function)} is a method: handles_many takes functions, and bound methods")
        self._registry.add(batch_handler(self._message_type, function, self._spec))
        return function


class SubscriptionRegistration:
    """The decorator for handlers of events: `subscribes("ledger", Deposited)` returns it."""

    __slots__ = ("_batch", "_events", "_name", "_policy", "_registry", "_revision")

    def __init__(
        self,
        registry: HandlerRegistry,
        name: str,
        events: Sequence[type[Event] | str],
        revision: int,
        policy: SubscriptionOptions,
        batch: BatchSpec | None = None,
    ) -> None:
        self._registry = registry
        self._name = name
        self._events = events
        self._revision = revision
        self._policy = policy
        self._batch = batch

    def __call__(self, function: F, /) -> F:
        """Register the function; it is returned as it is.

        Raises:
            RegistrationError: It cannot handle an event, another handler of the subscription does, or it is a method.
        """
        if in_class_body(function):
            raise RegistrationError(f"{qualified_name(function)} is a method: subscribes takes functions, and bound methods")
        for event in self._events:
            kind, pattern = (RawEvent, event) if isinstance(event, str) else (event, event.spec().name)
            spec = replace(kind.spec(), name=delivered_name(pattern, self._name), **self._policy)
            changes: dict[str, Any] = {"version": MOST_VERSION}  # without a class the fields may be of any version
            if spec.entity is not None:
                changes = {"entity": delivered_name(spec.entity, self._name)}
            spec = replace(spec, **changes)
            made = (
                function_handler(kind, function, spec)
                if self._batch is None
                else batch_handler(kind, function, self._batch, spec)
            )
            if made.state is not None:
                raise RegistrationError(
                    f"{made.name} takes {made.state.__qualname__}, but what {self._name!r} gets stands in a line of its own: send a command "
                    "to the entity, whose handler has its state"
                )
            self._registry.add(replace(made, declared=Declared(self._name, pattern, self._revision)))
        return function


class HandlerRegistry:
    """The handlers of a program or of a part of it, one per message type."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._patterns: dict[str, list[tuple[Callable[[str], object], Handler]]] = {}
        self._messages: dict[str, type[Message[Any]]] = {}
        self._schedules: dict[str, DeclaredSchedule] = {}

    def handles(self, message_type: type[Message[R]], /, *, runs_in: Literal["process"] | None = None) -> Registration[R]:
        """Return the decorator that registers a function as the handler of a message.

        On a method it only marks it: `include` an instance, or what makes one, to register it.

        Args:
            message_type: A class of commands or queries.
            runs_in: `"process"`: the function, a plain one of a module, runs in a process of its own, which is killed when its
                `attempt_timeout` is over or it is cancelled, and which takes nothing along when it crashes. None: in the event loop, or in a
                thread if it is no coroutine function.

        Raises:
            RegistrationError: Not a message class, or its wire name belongs to another class; or `runs_in` is not what it may be.
        """
        self._admit_command(message_type)
        if runs_in not in (None, "process"):
            raise RegistrationError(f'runs_in is "process" or None, not {runs_in!r}')
        return Registration(self, message_type, runs_in)

    def handles_many(
        self,
        message_type: type[Message[R]],
        /,
        *,
        size: int | None = None,
        wait: float | None = None,
        of: Literal["entity"] | None = None,
    ) -> BatchRegistration[R]:
        """Return the decorator that registers a function as the handler of many commands of a class.

        It gets a sequence of commands, and a sequence of their contexts if it has a parameter for them, and returns an outcome for each in
        their order: a reply, or an exception such as `Reject`. Returning None replies None to each. If it raises, it is called again with
        the halves: so make its work one transaction.

        Args:
            message_type: A class of commands that are neither durable nor at_most_once.
            size: Commands of one call, at most: 2 to 10,000, by default 500; with `of="entity"` 2 to 256, by default 100.
            wait: Seconds for which the first of them waits for others, by default 0.01; not with `of="entity"`.
            of: `"entity"`: a call has neighbours of one entity, in their order; the function may take its state. None: a call has commands of as many
                entities.

        Raises:
            RegistrationError: Not a message class, or its wire name belongs to another class; a size, a wait or an `of` is not what it may be.
        """
        self._admit_command(message_type)
        return BatchRegistration(self, message_type, _batch(f"handles_many({message_type.__qualname__})", size, wait, of))

    def subscribes(
        self,
        name: str,
        /,
        *events: type[Event] | str,
        revision: int = 1,
        size: int | None = None,
        wait: float | None = None,
        of: Literal["entity"] | None = None,
        **policy: Unpack[SubscriptionOptions],
    ) -> SubscriptionRegistration:
        """Return the decorator that registers a function as a handler of events: `@registry.subscribes("ledger", Deposited)`.

        What is published reaches the subscription once for each entity's event, in the order of publication, in a line of its own
        (`account@ledger:a-1`), so that it holds up nothing else. Workers put the subscription as they start.

        Args:
            name: The subscription; handlers of several classes may share it, and then an entity's line.
            events: Classes of events, whose function gets them; or names, in which `*` stands for any text, whose function gets a `RawEvent`.
            revision: Raise it with a change of the events or of `delivery`: a lower one never replaces a higher.
            size: As for `handles_many`. With this, `wait` or `of` the function takes a sequence of events, as the functions of that do.
            wait: As for `handles_many`.
            of: As for `handles_many`; not with names.
            **policy: `retry`, `delivery`, `attempt_timeout`, `on_poison` and `durable`, as classes of commands say them.

        Raises:
            RegistrationError: A name cannot be one, a class is no event, or an option is not what it may be.
        """
        check_names(policy, SubscriptionOptions)
        try:
            checked_subscription(name)
            for event in events:
                if isinstance(event, str):
                    checked_pattern(event)
                elif not (inspect.isclass(event) and issubclass(event, Event)):
                    raise InvalidSettings(
                        f"{shown(event)} is no class of events: handlers of commands are registered by @handles"
                    )
            fault = None if events else "name an event: a class, or names"
            fault = fault or next(policy_faults(policy), None)
        except InvalidSettings as error:
            fault = error.message
        if fault or type(revision) is not int or revision < 1:
            raise RegistrationError(f"subscribes({shown(name)}): {fault or 'revision is a whole number of at least 1'}")
        takes_one = size is None and wait is None and of is None
        batch = None if takes_one else _batch(f"subscribes({shown(name)})", size, wait, of)
        return SubscriptionRegistration(self, name, events, revision, policy, batch)

    def subscriptions(self) -> dict[str, list[Handler]]:
        """Return the handlers of each subscription that is declared here."""
        found: dict[str, list[Handler]] = {}
        for handler in self._handlers.values():
            if handler.declared is not None and "*" not in handler.declared.subscription:
                found.setdefault(handler.declared.subscription, []).append(handler)
        return found

    def add(self, handler: Handler) -> None:
        """Add a handler; the same one again changes nothing.

        Raises:
            RegistrationError: Its message has another handler, or its wire name belongs to another class.
        """
        if not is_internal(handler.message_type.spec().name) or handler.declared is None:
            self.declare(handler.message_type)
        self._check_state(handler)
        self._check_subscription(handler)
        present = self._handlers.setdefault(handler.spec.name, handler)
        if not present.same_as(handler):
            raise RegistrationError(
                f"{handler.spec.name!r} is handled by {present.name} already; {handler.name} cannot handle it too"
            )
        if present is handler and handler.declared is not None and "*" in handler.declared.pattern:
            found = self._patterns.setdefault(handler.declared.subscription, [])
            found.append((matcher(handler.declared.pattern), handler))

    def include(self, source: Any, *, of: type | None = None) -> None:
        """Add all handlers of a source, as it is now.

        Args:
            source: Another registry; a module, or its name, which is imported (a package with what is imported of it): what it
                registered with `@handles`, and the messages that it defines; an object with marked methods; or what gives such an
                object for each command: a class, a function without arguments, a dependency-injector provider. An object that is
                a context manager, synchronous or not, is entered before its command and left after it.
            of: The class of the objects, where a function or provider does not show it.

        Raises:
            RegistrationError: Nothing that can be included, no marked method, or a handler that clashes.
        """
        if isinstance(source, HandlerRegistry):
            self.declare(*source.messages())
            for handler in source:
                self.add(handler)
            for declared in source.schedules():
                self._add_schedule(declared)
        elif isinstance(source, str | ModuleType):
            self._include_module(importlib.import_module(source) if isinstance(source, str) else source)
        else:
            for handler in handlers_of(source, of):
                self.add(handler)

    def declare(self, *message_types: type[Message[Any]]) -> None:
        """Note messages that ought to have a handler; `unhandled` names those that have none.

        Raises:
            RegistrationError: Not a message class, or its wire name belongs to another class.
        """
        for message_type in message_types:
            self._admit(message_type)
            self._messages[message_type.spec().name] = message_type

    def schedule(
        self, name: str, command: Message[Any], spec: Cron | Every, *, revision: int = 1, **options: Unpack[ScheduleOptions]
    ) -> None:
        """Declare a schedule, which a worker puts when it starts: `registry.schedule("close-books", CloseBooks(…), cron("0 2 * * *"))`.

        Args:
            name: Unique in the namespace.
            command: What each tick dispatches.
            spec: `cron(…)` or `every(seconds)`.
            revision: Raise it with each change: a lower one never replaces a higher.
            **options: See `SchedulePolicy`.

        Raises:
            RegistrationError: Another schedule of this name is declared.
            InvalidSettings: A name, time or option is not what it may be.
        """
        if not revision:
            raise InvalidSettings("revision must be a whole number of at least 1")
        self._add_schedule(DeclaredSchedule(name, command, spec, SchedulePolicy(**options), revision))

    def schedules(self) -> tuple[DeclaredSchedule, ...]:
        """Return the declared schedules, in their order."""
        return tuple(self._schedules.values())

    def lookup(self, name: str) -> Handler | None:
        """Return the handler of a wire name, or None."""
        found = self._handlers.get(name)
        if found is None and self._patterns:
            event, subscription = parts_of_delivery(name)
            patterns = self._patterns.get(subscription) or self._patterns.get(family_of(subscription), [])
            found = next((handler for matches, handler in patterns if matches(event)), None)
        return found

    def names(self) -> tuple[str, ...]:
        """Return the wire names that have a handler, in order of registration."""
        return tuple(self._handlers)

    def messages(self) -> tuple[type[Message[Any]], ...]:
        """Return all message classes known here, with or without a handler."""
        return tuple(self._messages.values())

    def unhandled(self) -> tuple[str, ...]:
        """Return the wire names of declared messages without a handler."""
        missing = [name for name in self._messages if name not in self._handlers and not is_internal(name)]
        return tuple(name for name in missing if not issubclass(self._messages[name], Event))

    def clear(self) -> None:
        """Forget everything: for notebooks and for tests of the default registry."""
        self._handlers.clear()
        self._patterns.clear()
        self._messages.clear()
        self._schedules.clear()

    def __iter__(self) -> Iterator[Handler]:
        return iter(tuple(self._handlers.values()))

    def __len__(self) -> int:
        return len(self._handlers)

    def __bool__(self) -> bool:
        return True  # an empty registry is a registry: `registry or default_registry` must not replace it

    def __contains__(self, message: object) -> bool:
        """Return whether a message class, or a wire name, has a handler."""
        if isinstance(message, str):
            return message in self._handlers
        return any(message is handler.message_type for handler in self._handlers.values())

    def __repr__(self) -> str:
        return f"HandlerRegistry({', '.join(self._handlers)})"

    def _check_state(self, handler: Handler) -> None:
        """Check that the handlers of an entity type have one class of states, whose defaults are what its fields allow.

        Raises:
            RegistrationError: Another handler has another one, or a default is of another type.
        """
        if handler.state:
            check_defaults(handler.state)
        for other in self._handlers.values():
            if handler.state and other.state and other.state is not handler.state and other.spec.entity == handler.spec.entity:
                raise RegistrationError(
                    f"{handler.name} takes {handler.state.__qualname__}, and {other.name} {other.state.__qualname__}: entities of type "
                    f"{handler.spec.entity!r} have one class of states"
                )

    def _check_subscription(self, handler: Handler) -> None:
        """Check that the handlers of a subscription agree on what senders have to know.

        Raises:
            RegistrationError: They do not.
        """
        for other in self.subscriptions().get(handler.declared.subscription, []) if handler.declared is not None else []:
            if other.spec.delivery != handler.spec.delivery:
                raise RegistrationError(f"{handler.name} and {other.name} are of one subscription, so they have one delivery")

    def _add_schedule(self, declared: DeclaredSchedule) -> None:
        if declared.command is not None:
            self.declare(type(declared.command))
        if self._schedules.setdefault(declared.name, declared) != declared:
            raise RegistrationError(f"two schedules are named {declared.name!r}: give one of them another name")

    def _admit_command(self, message_type: type[Message[Any]]) -> None:
        self._admit(message_type)
        if issubclass(message_type, Event):
            raise RegistrationError(
                f"{message_type.__qualname__} is an event, which goes to subscriptions: write @subscribes(NAME, {message_type.__name__})"
            )

    def _admit(self, message_type: type[Message[Any]]) -> None:
        if not _is_message_class(message_type):
            raise RegistrationError(
                f"{message_type!r} is no message class: write @handles(Deposit), where Deposit is a Command or Query"
            )
        name = message_type.spec().name
        known = self._messages.get(name, message_type)
        if known is not message_type:
            raise RegistrationError(
                f"{qualified_name(known)} and {qualified_name(message_type)} have one wire name, {name!r}: "
                f'give one of them another with `name=`, as in class {message_type.__name__}(Command[…], name="…")'
            )

    def _include_module(self, module: ModuleType) -> None:
        modules = {name for name in sys.modules if name == module.__name__ or name.startswith(f"{module.__name__}.")}
        for name in sorted(modules):
            self.declare(*_messages_defined_in(sys.modules[name]))
        if self is not default_registry:
            for handler in default_registry:
                if handler.module in modules:
                    self.add(handler)


def _is_message_class(value: Any) -> TypeGuard[type[Message[Any]]]:
    return inspect.isclass(value) and issubclass(value, Message)


def _messages_defined_in(module: ModuleType) -> list[type[Message[Any]]]:
    """Return the message classes of a module, without those that only serve as bases of others."""
    return [
        value
        for value in vars(module).values()
        if _is_message_class(value)
        and value.__module__ == module.__name__
        and value.__message_spec__ is not None
        and not value.__subclasses__()
    ]


default_registry = HandlerRegistry()
"""Where `@handles` registers, and what a bus uses that was given no registry."""

handles = default_registry.handles
"""Registers a function as the handler of a message in the default registry: `@handles(Deposit)`. See `HandlerRegistry.handles`."""

handles_many = default_registry.handles_many
"""Registers a function as the handler of many commands in the default registry. See `HandlerRegistry.handles_many`."""

subscribes = default_registry.subscribes
"""Registers a function as a handler of events in the default registry. See `HandlerRegistry.subscribes`."""

include = default_registry.include
"""Adds the handlers of an object, a class or a module to the default registry: `include(Customers)`. See `HandlerRegistry.include`."""
