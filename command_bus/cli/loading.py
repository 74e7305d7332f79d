"""Loading an application: from an import string, `module:attribute`, to a `CommandBus`."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from command_bus.bus import CommandBus
from command_bus.errors import CommandBusError, InvalidSettings
from command_bus.handlers.registry import HandlerRegistry

DEFAULT_ATTRIBUTE = "bus"
_OURS = ("command_bus.cli", "importlib", "_frozen_importlib")
_log = logging.getLogger("command_bus.cli")


def parse_import_string(import_string: str) -> tuple[str, str]:
    """Return the module and the attribute that an import string names.

    Raises:
        InvalidSettings: It is not of the form `module` or `module:attribute`.
    """
    module, colon, attribute = import_string.partition(":")
    attribute = attribute if colon else DEFAULT_ATTRIBUTE
    if "/" in module or module.endswith(".py"):
        dotted = module.removesuffix(".py").replace("/", ".").strip(".")
        raise InvalidSettings(f"{import_string}: name the module as in an import, {dotted}:{attribute}")
    if not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        raise InvalidSettings(f"{import_string!r} is not of the form module:attribute, such as shop.app:bus")
    return module, attribute


def import_object(import_string: str) -> Any:
    """Import the object that an import string names: a bus, or a function that returns one. The current folder is searched, too.

    Raises:
        InvalidSettings: There is no such module or attribute.
        Exception: The module raised it while it was imported.
    """
    name, attribute = parse_import_string(import_string)
    if (folder := os.getcwd()) not in sys.path:  # noqa: PTH109 - sys.path has strings
        sys.path.insert(0, folder)
    module = _imported(name, import_string)
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        raise InvalidSettings(f"{import_string}: {error}{_suggestion(name, vars(module))}") from None


async def resolve_bus(import_string: str, found: Any) -> CommandBus:
    """Return the object if it is a bus, or else call it and return the bus that it returns.

    Raises:
        InvalidSettings: It is no bus and returns none.
        Exception: The function raised it.
    """
    if isinstance(found, CommandBus):
        return found
    if not callable(found) or inspect.isclass(found) or _needs_arguments(found):
        raise InvalidSettings(
            f"{import_string} is {_described(found)}: name a CommandBus, or a function without arguments that gives one"
        )
    made: Any = found()
    if inspect.isawaitable(made):
        made = await made
    if not isinstance(made, CommandBus):
        raise InvalidSettings(f"{import_string} gave something {_described(made)}, not a CommandBus")
    return made


def include_modules(registry: HandlerRegistry, modules: Iterable[str]) -> None:
    """Import modules and add their handlers to a registry.

    Raises:
        InvalidSettings: There is no such module, or it registers no handler here.
        RegistrationError: A handler clashes with another.
        Exception: A module raised it while it was imported.
    """
    for name in modules:
        if not all(part.isidentifier() for part in name.split(".")):
            dotted = name.partition(":")[0].removesuffix(".py").replace("/", ".").strip(".")
            raise InvalidSettings(f"--include {name}: name the module as in an import, --include {dotted}")
        _imported(name, f"--include {name}")
        registry.include(name)
        if not any(handler.module == name or handler.module.startswith(f"{name}.") for handler in registry):
            raise InvalidSettings(
                f"--include {name}: the module registers no handler of this bus; decorate them with @handles(…), or with "
                "@registry.handles(…) of the registry that the bus was made with"
            )


def _imported(name: str, given: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise  # the module exists, and imports one that does not
        raise InvalidSettings(f"{given}: there is no module {error.name!r} in {Path.cwd()} or installed") from None


def log_start_failure(error: Exception, import_string: str) -> None:
    """Log why an application does not start: the advice of this library's errors, the traceback of the application's own."""
    if isinstance(error, CommandBusError):
        _log.error("%s", error.message or type(error).__name__)
    else:
        _log.error("%s could not be started", import_string, exc_info=(type(error), error, _own_frames(error.__traceback__)))


def _needs_arguments(function: Any) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    except ValueError:  # a built-in without a signature: the call will fail if it needs arguments
        return False
    return False


def _described(value: Any) -> str:
    return f"the class {value.__name__}" if inspect.isclass(value) else f"of type {type(value).__name__}"


def _suggestion(module: str, names: Mapping[str, Any]) -> str:
    buses = [name for name, value in names.items() if isinstance(value, CommandBus)]
    return f"; did you mean {' or '.join(f'{module}:{name}' for name in buses)}?" if buses else ""


def _own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback without its first frames, which are this program's and importlib's."""
    while traceback is not None:
        module: str = traceback.tb_frame.f_globals.get("__name__", "")
        if not module.startswith(_OURS):
            return traceback
        traceback = traceback.tb_next
    return None
