"""Upcasters: functions that bring the fields of an older version of a command to the next one.

    class Deposit(Command[int], entity="account", version=2):
        account_id: EntityId
        cents: int

    @upcasts(Deposit, since=1)
    def cents_for_euros(fields: dict[str, Any]) -> dict[str, Any]:
        return {"account_id": fields["account_id"], "cents": fields["euros"] * 100}

A command is packed with the version of its class. A worker whose class has a later one applies the steps in between, one after
another, to the fields as they were sent, and then validates the result. So a handler sees the newest version only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from command_bus.errors import InvalidCommand, RegistrationError
from command_bus.messages.message import MOST_VERSION, Message
from command_bus.messages.state import EntityState
from command_bus.spelling import shown

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
U = TypeVar("U", bound=Upcaster)

_Upcast: TypeAlias = type[Message[Any]] | type[EntityState]
_steps: WeakKeyDictionary[_Upcast, dict[int, Upcaster]] = WeakKeyDictionary()


def upcasts(message_type: _Upcast, /, *, since: int) -> Callable[[U], U]:
    """Return the decorator for a function that makes the fields of version `since + 1` of those of version `since`.

    The function gets the fields as plain values, as they came from the wire: dates and numbers have their types, nested models are
    dicts. It may change the dict that it gets, and returns a dict. It runs on the worker's event loop, before the fields are
    validated, each time such a command is read. What it raises makes this one command invalid. The function is returned as it is.

    Args:
        message_type: The class of messages or states that has the newest version. A subclass of it has versions of its own.
        since: The older version, at least 1 and below that of the class.

    Raises:
        RegistrationError: Not a class of messages or states, no such version, a coroutine function, or another function makes this step.
    """
    if not inspect.isclass(message_type) or not issubclass(message_type, Message | EntityState):
        raise RegistrationError(f"{message_type!r} is no class of messages or states: write @upcasts(Deposit, since=1)")
    spec = message_type.spec()
    if type(since) is not int or not 1 <= since < spec.version:
        raise RegistrationError(
            f"upcasts({message_type.__qualname__}, since={since!r}): {message_type.__qualname__} has version {spec.version}, and an "
            "upcaster begins at an earlier one, from 1 on: raise version= of the class with each change of its fields"
        )

    def register(function: U) -> U:
        if inspect.iscoroutinefunction(function):
            raise RegistrationError(f"{function!r}: an upcaster is a plain function, it runs before the handler")
        known = _steps.setdefault(message_type, {}).setdefault(since, function)
        if known is not function:
            raise RegistrationError(f"{message_type.__qualname__} has an upcaster from version {since} already: {known!r}")
        return function

    return register


def check_upcasters(message_type: _Upcast) -> None:
    """Check that upcasters lead from version 1 to that of the class.

    Raises:
        RegistrationError: A step is missing.
    """
    spec, steps = message_type.spec(), _steps.get(message_type, {})
    missing = [str(number) for number in range(1, spec.version) if number not in steps]
    if missing:
        raise RegistrationError(
            f"{message_type.__qualname__} has version {spec.version}, and no upcaster from version {', '.join(missing)}: "
            f"write @upcasts({message_type.__qualname__}, since={missing[0]}) in a module that the worker imports"
        )


def upcast(message_type: _Upcast, fields: dict[str, Any], version: int) -> dict[str, Any]:
    """Return fields of an older version as those of the class's version.

    Raises:
        InvalidCommand: There is no upcaster for a step, it raised, or gave no dict. The text has no values.
    """
    spec, steps = message_type.spec(), _steps.get(message_type, {})
    for number in range(version, spec.version):
        step = steps.get(number)
        if step is None:
            raise InvalidCommand(f"{spec.name}: it has version {version}, and no upcaster leads on from version {number}")
        try:
            fields = step(fields)
        except MemoryError:
            raise
        except (Exception, SystemExit) as error:  # a worker must not stop for what an upcaster raises
            raise InvalidCommand(f"{spec.name}: the upcaster from version {number} raised {type(error).__qualname__}") from error
        if not isinstance(fields, dict):
            raise InvalidCommand(
                f"{spec.name}: the upcaster from version {number} gave a value of type {type(fields).__name__}, not a dict"
            )
    return fields


def checked_version(version: int) -> int:
    """Return the version of a command that is sent without its class.

    Raises:
        InvalidCommand: It is no whole number from 1 to a million.
    """
    if type(version) is not int or not 1 <= version <= MOST_VERSION:
        raise InvalidCommand(f"version: a whole number from 1 to {MOST_VERSION:,}, not {shown(version)}")
    return version
