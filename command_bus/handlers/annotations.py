"""The check that a handler's return annotation can be the reply that its message promises.

The answer is no only where it is certain: type checkers know more than a look at annotations at run time, and a false alarm would
stop a correct program from starting. What is certain is what people get wrong: another class, a forgotten `None`, a list of
something else.
"""

from __future__ import annotations

import enum
import types
from typing import Annotated, Any, Literal, Never, NewType, NoReturn, TypeVar, Union, get_args, get_origin

from typing_extensions import TypeAliasType

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
