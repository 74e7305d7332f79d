"""The signature of a callable as a handler: does it run on the event loop, does it want the context, does it fit the message.

Handlers are written by people who use `from __future__ import annotations`, import names for type checkers only, decorate, bind
and inject. So each annotation is resolved by itself, and one that cannot be is not checked; all else is, at registration.

The check that a handler's return annotation can be the reply that its message promises.

The answer is no only where it is certain: type checkers know more than a look at annotations at run time, and a false alarm would
stop a correct program from starting. What is certain is what people get wrong: another class, a forgotten `None`, a list of
something else.
"""

from __future__ import annotations

import enum
import functools
import inspect
import re
import sys
import types
from collections.abc import Awaitable, Callable, Collection, Iterator
from types import MethodType, SimpleNamespace
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Never,
    NewType,
    NoReturn,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from typing_extensions import TypeAliasType

from command_bus.errors import RegistrationError
from command_bus.messages.context import CommandContext, ProcessContext
from command_bus.messages.durable import DurableContext
from command_bus.messages.message import Message
from command_bus.messages.state import EntityState, is_state, states_of

_PROMOTED = {float: (int,), complex: (int, float)}


def unalias(annotation: Any) -> Any:
    """Return the type behind `Annotated`, `NewType`, type aliases and type variables; `Any` where a variable has no bound."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        elif isinstance(annotation, TypeAliasType) or type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        elif isinstance(annotation, TypeVar):
            annotation = annotation.__bound__ if annotation.__bound__ is not None else Any
        else:
            return type(None) if annotation is None else annotation


def fits(returned: Any, reply: Any) -> bool:
    """Return whether a value of the type `returned` may be a `reply`: equal, a subclass, a part of a union, or not decidable."""
    returned, reply = unalias(returned), unalias(reply)
    if returned is Any or reply is Any or reply is object or returned in (NoReturn, Never) or returned == reply:
        return True
    if _is_union(returned):
        return all(fits(member, reply) for member in get_args(returned))
    if _is_union(reply):
        return any(fits(returned, member) for member in get_args(reply))
    if get_origin(returned) is Literal:
        return _literal_fits(get_args(returned), reply)
    if get_origin(reply) is Literal:
        return not isinstance(returned, type) or returned is bool or issubclass(returned, enum.Enum)
    return _class_fits(returned, reply)


def accepts_message(annotation: Any, message_type: type) -> bool:
    """Return whether a parameter with this annotation takes the message: its class, a base of it, a union with one, or not decidable."""
    annotation = unalias(annotation)
    if _is_union(annotation):
        return any(accepts_message(member, message_type) for member in get_args(annotation))
    if annotation is Any:
        return True
    origin, _ = _origin_and_arguments(annotation)
    return _is_subclass(message_type, origin)


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def _literal_fits(values: tuple[Any, ...], reply: Any) -> bool:
    if get_origin(reply) is Literal:
        return set(values) <= set(get_args(reply))
    return all(fits(type(value), reply) for value in values)


def _class_fits(returned: Any, reply: Any) -> bool:
    returned_class, returned_arguments = _origin_and_arguments(returned)
    reply_class, reply_arguments = _origin_and_arguments(reply)
    if not _is_subclass(returned_class, reply_class):
        return returned_class in _PROMOTED.get(reply_class, ())
    if (
        not reply_arguments
        or len(returned_arguments) != len(reply_arguments)
        or not _same_parameters(returned_class, reply_class)
    ):
        return True
    return all(fits(*pair) for pair in zip(returned_arguments, reply_arguments, strict=True))


def _origin_and_arguments(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Split `list[int]` into `(list, (int,))`; also pydantic's generic models, which are classes of their own."""
    generic = getattr(annotation, "__pydantic_generic_metadata__", None)
    if generic and generic["origin"] is not None:
        return generic["origin"], tuple(generic["args"])
    arguments = tuple(argument for argument in get_args(annotation) if argument is not Ellipsis)
    return get_origin(annotation) or annotation, arguments


def _is_subclass(candidate: Any, base: Any) -> bool:
    """Return `issubclass`, but True where the question makes no sense: text, protocols, typed dictionaries."""
    if not (isinstance(candidate, type) and isinstance(base, type)):
        return True
    try:
        return issubclass(candidate, base)
    except TypeError:
        return True


def _same_parameters(one: type, other: type) -> bool:
    """Return whether the type arguments of both mean the same: one class, or both containers of the standard library."""
    return one is other or {one.__module__, other.__module__} <= {"builtins", "collections", "collections.abc"}


Runs = Literal["loop", "thread", "either"]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class HandlerSignature(NamedTuple):
    """The shape of a handler's call.

    Attributes:
        runs: `"loop"` returns an awaitable; `"thread"` does its work when called; `"either"` is a plain wrapper around a
            coroutine function, whose result is awaited if it can be.
        context: The parameter that takes the context, or None.
        by_keyword: The context is passed by keyword rather than as the second argument.
        is_durable: It is a `DurableContext`.
        state: The parameter that takes the state of the entity, which is passed by keyword, or None.
        state_type: The class of that state, or None.
        in_process: The context is a `ProcessContext`.
    """

    runs: Runs
    context: str | None = None
    by_keyword: bool = False
    is_durable: bool = False
    state: str | None = None
    state_type: type[EntityState] | None = None
    in_process: bool = False


def read_signature(function: Callable[..., Any], message_type: type[Message[Any]]) -> HandlerSignature:
    """Read how the callable is called as a handler of this message.

    Raises:
        RegistrationError: It cannot be one: not a function, a generator, no command parameter or one of another type, a required
            parameter that is not filled, or a return annotation that is not the message's reply.
    """
    name, body = _checked(function)
    signature = _signature_of(function)
    names = _names_of(function, message_type)
    _check_command(name, list(signature.parameters.values()), names, message_type)
    state, state_type = _find_state(name, list(signature.parameters.values()), names, message_type)
    others = [each for each in signature.parameters.values() if each.name != state]
    context, by_keyword = _find_context(name, others, names)
    runs = _check_reply(function, body, _resolved(signature.return_annotation, names), message_type)
    kinds = () if context is None else _kinds(signature.parameters[context], names)
    by_keyword = by_keyword or state is not None
    return HandlerSignature(
        runs, context, by_keyword, DurableContext in kinds, state, state_type, in_process=ProcessContext in kinds
    )


def read_batch_signature(function: Callable[..., Any], message_type: type[Message[Any]], *, of_entity: bool) -> HandlerSignature:
    """Read how the callable is called with many commands of this class.

    Raises:
        RegistrationError: As `read_signature`: its first parameter is a sequence of commands, and it returns an outcome for each, or None.
    """
    name, body = _checked(function)
    signature, names = _signature_of(function), _names_of(function, message_type)
    parameters, contexts = list(signature.parameters.values()), list[inspect.Parameter]()
    first = parameters[0] if parameters and parameters[0].kind in _POSITIONAL else None
    if first is None or not _is_sequence(_resolved(first.annotation, names), lambda each: accepts_message(each, message_type)):
        raise RegistrationError(f"{name} takes no batch: {_as_batch(function, message_type)}")
    state, state_type = _find_state(name, parameters, names, message_type)
    if state is not None and not of_entity:
        raise RegistrationError(f"{name}: a batch is of several entities, so it has no state: its parameter {state!r}")
    for parameter in parameters[1:]:
        if parameter.name == state:
            continue
        annotation = unalias(_resolved(parameter.annotation, names))
        is_named = annotation is not Any or parameter.name == "contexts"
        if is_named and not contexts and _is_sequence(annotation, lambda each: unalias(each) in (CommandContext, Any)):
            contexts.append(parameter)
        elif parameter.kind not in _VARIADIC and parameter.default is inspect.Parameter.empty:
            raise RegistrationError(
                f"{name}: its parameter {parameter.name!r} is not filled: {_as_batch(function, message_type)}"
            )
    runs, returned = _runs(function, body, _resolved(signature.return_annotation, names))
    reply = message_type.spec().reply
    if returned is not type(None) and not _is_sequence(returned, lambda each: _is_outcome(each, reply)):
        raise RegistrationError(
            f"{name} returns {inspect.formatannotation(returned)}, not an outcome for each command: {_as_batch(function, message_type)}"
        )
    context = contexts[0].name if contexts else None
    return HandlerSignature(runs, context, by_keyword=True, state=state, state_type=state_type)


def _checked(function: Any) -> tuple[str, Any]:
    """Return the name of a callable, and the function whose code runs first."""
    name = qualified_name(function)
    if inspect.isclass(function):
        raise RegistrationError(
            f"{name} is a class: decorate its methods with @handles, then registry.include({function.__name__})"
        )
    if not callable(function):
        raise RegistrationError(f"{name} is not callable: a handler is a function or a method")
    body = _body(function)
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise RegistrationError(f"{name} is a generator: a handler returns its reply, it does not yield")
    return name, body


def _as_batch(function: Any, message_type: type[Message[Any]]) -> str:
    """Return how a function of many commands is written."""
    message, reply = message_type.__name__, inspect.formatannotation(message_type.spec().reply)
    return (
        f"write async def {getattr(innermost(function), '__name__', 'handle')}(commands: Sequence[{message}]) -> Sequence[{reply} | Exception], "
        "and contexts: Sequence[CommandContext] behind it if it needs them; it returns an outcome for each command, in their order"
    )


def _is_sequence(annotation: Any, is_item: Callable[[Any], bool]) -> bool:
    """Return whether a type may be a sequence of such items; True if that cannot be told."""
    annotation = unalias(annotation)
    if _is_union(annotation):
        return any(_is_sequence(each, is_item) for each in get_args(annotation))
    origin, items = _origin_and_arguments(annotation)
    if annotation is Any:
        return True
    return isinstance(origin, type) and issubclass(origin, Collection) and origin is not str and all(map(is_item, items[:1]))


def _is_outcome(annotation: Any, reply: Any) -> bool:
    """Return whether a value of a type may be the outcome of a command: its reply, or an exception."""
    annotation = unalias(annotation)
    if _is_union(annotation):
        return all(_is_outcome(each, reply) for each in get_args(annotation))
    return (isinstance(annotation, type) and issubclass(annotation, BaseException)) or fits(annotation, reply)


def qualified_name(function: Any) -> str:
    """Return `module.Class.method`, also for partials and callable objects."""
    for layer in layers(function):
        qualname = getattr(cast("object", layer), "__qualname__", None)
        if isinstance(qualname, str):
            return f"{getattr(layer, '__module__', None) or 'builtins'}.{qualname}"
    return repr(function)


def layers(function: Any) -> Iterator[Any]:
    """Yield the callable and all it wraps, outermost first: partials, bound methods, callable objects, decorated functions."""
    seen: set[int] = set()
    while id(function) not in seen:
        seen.add(id(function))
        yield function
        inner = unbound(function)
        function = inner if inner is not function else getattr(function, "__wrapped__", _called(function))


def innermost(function: Any) -> Any:
    """Return the function that was written, under all its wrappers."""
    return list(layers(function))[-1]


def _signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature with annotations as written, resolvable or not."""
    try:
        if sys.version_info >= (3, 14):
            import annotationlib  # new in 3.14, where annotations are evaluated late and may fail

            return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise RegistrationError(f"{qualified_name(function)} tells no signature: wrap it in a function of your own") from error


def _resolved(annotation: Any, names: dict[str, Any]) -> Any:
    """Return the type that an annotation names, with `Annotated` left on; `Any` if there is none or it cannot be resolved here."""
    if annotation is inspect.Signature.empty:
        return Any
    holder = SimpleNamespace(__annotations__={"it": annotation})
    try:
        return get_type_hints(holder, globalns=names, localns=names, include_extras=True)["it"]
    except Exception:  # noqa: BLE001 - an annotation is any expression; one that fails is not checked
        return Any


def return_type(function: Callable[..., Any]) -> Any:
    """Return the type that a callable says it returns; `Any` if it does not, or not in words that can be resolved."""
    return _resolved(_signature_of(function).return_annotation, _names_of(function, None))


def is_marker(value: object) -> bool:
    """Return whether this is `Provide[…]` or `Closing[…]` of dependency-injector, which is not imported for it."""
    return getattr(type(value), "__IS_MARKER__", False) is True


def markers(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the dependency-injector markers of a callable's parameters, by parameter name."""
    names = _names_of(function, None)
    found = {parameter.name: _marker_of(parameter, names) for parameter in _signature_of(function).parameters.values()}
    return {name: marker for name, marker in found.items() if marker is not None}


def unfilled(function: Callable[..., Any]) -> str | None:
    """Return the first parameter that a call without arguments lacks, or None."""
    given = markers(function)
    for parameter in _signature_of(function).parameters.values():
        if parameter.default is inspect.Parameter.empty and parameter.kind not in _VARIADIC and parameter.name not in given:
            return parameter.name
    return None


def unbound(function: Any) -> Any:
    """Return what a partial or a bound method calls; anything else itself."""
    if isinstance(function, functools.partial):
        return function.func
    if isinstance(function, MethodType | staticmethod | classmethod):
        return cast("Any", function).__func__
    return function


def _called(function: Any) -> Any:
    """Return the `__call__` of a callable object; a function or class itself."""
    if not callable(function) or inspect.isroutine(function) or inspect.isclass(function):
        return function
    return cast("Any", type(function)).__call__


def _body(function: Any) -> Any:
    """Return the function whose code runs first when the callable is called: what it wraps does not count."""
    while (inner := _called(unbound(function))) is not function:
        function = inner
    return function


def _names_of(function: Any, message_type: type[Message[Any]] | None) -> dict[str, Any]:
    """Return the names that annotations may use: the module's, and what is often not there, being local or for type checkers only."""
    known: dict[str, Any] = {each.__name__: each for each in (CommandContext, DurableContext, ProcessContext)}
    if message_type is not None:
        known[message_type.__name__] = message_type
    written = function.__init__ if inspect.isclass(function) else function
    written = innermost(written)
    names: dict[str, Any] = getattr(written, "__globals__", {})
    scope = getattr(written, "__qualname__", "").rpartition(".")[0]
    states = [] if message_type is None else list(states_of(message_type.spec().entity))
    elsewhere = {each.__name__: each for each in states}
    beside = {each.__name__: each for each in states if scope and _place_of(each) == (written.__module__, scope)}
    is_local = "<locals>" in scope  # then a name may hide the module's
    return (elsewhere | names | known if is_local else elsewhere | known | names) | beside


def _place_of(each: type) -> tuple[str, str]:
    return each.__module__, each.__qualname__.rpartition(".")[0]


def _marker_of(parameter: inspect.Parameter, names: dict[str, Any]) -> Any:
    if is_marker(parameter.default):
        return parameter.default
    annotation = _resolved(parameter.annotation, names)
    extras = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    return next((extra for extra in extras if is_marker(extra)), None)


def _check_command(
    name: str, parameters: list[inspect.Parameter], names: dict[str, Any], message_type: type[Message[Any]]
) -> None:
    first = parameters[0] if parameters else None
    if first is None or first.kind not in (*_POSITIONAL, inspect.Parameter.VAR_POSITIONAL):
        raise RegistrationError(f"{name} takes no command: its first parameter is the {message_type.__name__} to handle")
    if _marker_of(first, names) is not None:
        raise RegistrationError(f"{name}: its first parameter {first.name!r} is injected, but the first one is the command")
    annotation = _resolved(first.annotation, names)
    if first.kind is not inspect.Parameter.VAR_POSITIONAL and not accepts_message(annotation, message_type):
        shown = inspect.formatannotation(annotation)
        raise RegistrationError(
            f"{name} is registered for {message_type.__qualname__}, but its parameter {first.name!r} is a {shown}"
        )


def _find_state(
    name: str, parameters: list[inspect.Parameter], names: dict[str, Any], message_type: type[Message[Any]]
) -> tuple[str | None, type[EntityState] | None]:
    """Return the parameter that takes the state of the entity, and its class."""
    annotations = [(each, unalias(_resolved(each.annotation, names))) for each in parameters[1:]]
    for each, annotation in annotations:
        if _is_union(annotation) and any(map(is_state, get_args(annotation))):
            raise RegistrationError(f"{name}: a state is never None: annotate its parameter {each.name!r} with the class alone")
    found = [(each, annotation) for each, annotation in annotations if is_state(annotation)]
    if not found:
        return None, None
    (parameter, state), entity = found[0], message_type.spec().entity
    if len(found) > 1 or parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
        raise RegistrationError(f"{name} has one state at most, and it is given by keyword: {parameter.name!r}")
    if state.spec().entity != entity:
        whose = "no entity" if entity is None else f"an entity of type {entity!r}"
        raise RegistrationError(
            f"{name}: {state.__qualname__} is the state of entities of type {state.spec().entity!r}, but {message_type.__qualname__} "
            f"is a command of {whose}"
        )
    return parameter.name, state


def _find_context(name: str, parameters: list[inspect.Parameter], names: dict[str, Any]) -> tuple[str | None, bool]:
    context: str | None = None
    by_keyword = False
    for index, parameter in enumerate(parameters[1:], start=1):
        if parameter.kind in _VARIADIC:
            continue
        if context is None and _is_context(parameter, names):
            context, by_keyword = parameter.name, index != 1 or parameter.kind not in _POSITIONAL
        elif parameter.default is inspect.Parameter.empty and _marker_of(parameter, names) is None:
            raise RegistrationError(
                f"{name}: its parameter {parameter.name!r} is not filled. A handler is given the command; the context, for a "
                "parameter annotated CommandContext or DurableContext; and the state of its entity, for one annotated with a class "
                "of that; give others a default such as Provide[…], bind them with "
                "functools.partial, or write a method"
            )
    return context, by_keyword


def _is_context(parameter: inspect.Parameter, names: dict[str, Any]) -> bool:
    if parameter.annotation is inspect.Parameter.empty:
        return parameter.name == "context"
    annotation = unalias(_resolved(parameter.annotation, names))
    if annotation is Any:  # perhaps a name that only type checkers can see: go by how it is written
        written = getattr(parameter.annotation, "__forward_arg__", parameter.annotation)
        return isinstance(written, str) and re.search(r"\b(Command|Durable|Process)Context\b", written) is not None
    return any(each in (CommandContext, DurableContext, ProcessContext) for each in (annotation, *get_args(annotation)))


def _kinds(parameter: inspect.Parameter, names: dict[str, Any]) -> tuple[Any, ...]:
    """Return the classes with which a context is annotated."""
    annotation = unalias(_resolved(parameter.annotation, names))
    return (annotation, *get_args(annotation))


def _runs(function: Any, body: Any, returned: Any) -> tuple[Runs, Any]:
    """Return whether a handler runs on the loop or in a thread, and what it returns once that is awaited."""
    runs: Runs = "thread"
    if getattr(getattr(body, "__code__", None), "co_flags", 0) & inspect.CO_COROUTINE:
        runs = "loop"
    elif any(inspect.iscoroutinefunction(layer) for layer in layers(function)):
        runs = "either"
    else:
        origin = get_origin(returned) or returned
        if isinstance(origin, type) and issubclass(origin, Awaitable):
            runs, returned = "either", (get_args(returned) or (Any,))[-1]
    return runs, returned


def _check_reply(function: Any, body: Any, returned: Any, message_type: type[Message[Any]]) -> Runs:
    """Check the return annotation against the reply; return whether the handler runs on the loop or in a thread."""
    runs, returned = _runs(function, body, returned)
    reply = message_type.spec().reply
    if not fits(returned, reply):
        raise RegistrationError(
            f"{qualified_name(function)} returns {inspect.formatannotation(returned)}, "
            f"but the reply of {message_type.__qualname__} is {inspect.formatannotation(reply)}"
        )
    return runs
