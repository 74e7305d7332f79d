"""The imports that an option may name: all, or only what the process was told, where others write the options.

Importing a module runs its code, and an attribute of a module may be any function that it has imported itself. So where
`COMMAND_BUS_SPARK_PICKLE=no` is set, a name is imported from the packages in `COMMAND_BUS_SPARK_PACKAGES` alone, and what is found must have
been defined there.
"""

from __future__ import annotations

import inspect
import os
from functools import reduce
from importlib import import_module
from types import UnionType
from typing import Any, get_args

from command_bus.errors import InvalidSettings
from command_bus.handlers.signatures import return_type
from command_bus.messages.message import Message

PICKLE = "COMMAND_BUS_SPARK_PICKLE"
_PACKAGES = "COMMAND_BUS_SPARK_PACKAGES"


def are_restricted() -> bool:
    """Return whether others may write the options of this process: `COMMAND_BUS_SPARK_PICKLE=no`."""
    return os.environ.get(PICKLE, "").strip().lower() in ("no", "false", "0", "off")


def may_import(module: str) -> bool:
    """Return whether a module may be imported because an option names it."""
    if not are_restricted():
        return True
    packages = [each.strip() for each in os.environ.get(_PACKAGES, "").split(",")]
    return any(module == each or module.startswith(f"{each}.") for each in packages if each)


def import_named(module: str, name: str) -> Any:
    """Return what an option names.

    Raises:
        InvalidSettings: The module may not be imported here, or what it has under the name was defined elsewhere.
        ImportError, AttributeError, ValueError: There is no such thing.
    """
    if not may_import(module):
        raise InvalidSettings(
            f"module {module!r} is not imported here: {_PACKAGES} names the packages whose commands and mappers options may name"
        )
    if module.startswith("."):
        raise ImportError("it begins with a dot")
    found = reduce(getattr, name.split("."), import_module(module))
    if are_restricted() and not may_import(str(getattr(found, "__module__", ""))):
        raise InvalidSettings(f"{module}:{name} was not defined in a package of {_PACKAGES}")
    return found


def checked_mapper(text: str, found: Any) -> Any:
    """Return a mapper, if it may be called with rows; where others write the options that is a function that says that it returns a command.

    Raises:
        InvalidSettings: It is none.
    """
    if not callable(found):
        raise InvalidSettings(f"option mapper = {text!r} is no function")
    if are_restricted():
        made = return_type(found) if inspect.isfunction(found) else None
        kinds = get_args(made) if isinstance(made, UnionType) else (made,)
        if not all(isinstance(each, type) and issubclass(each, Message) for each in kinds):
            raise InvalidSettings(
                f"option mapper = {text!r}: with {PICKLE}=no a mapper is a function annotated to return a command, as -> Deposit"
            )
    return found
