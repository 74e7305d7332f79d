"""Commands whose modules are imported when they are called, so that no command waits for the imports of another.

`--help` shows the summaries of a table. A command is built from its function, or a group from its typer application, on first use.
"""

from __future__ import annotations

import gc
import math
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from typing import Any, NamedTuple

from typer import BadParameter, Typer
from typer.core import TyperGroup
from typer.main import get_command


class LazyCommand(NamedTuple):
    """A command of the program, which is imported on first use.

    Attributes:
        name: Its name on the command line and in the module.
        summary: Its line in `--help`.
        module: Name of the module in `command_bus.cli.commands` that has the function or the `typer.Typer` of that name; empty: the same.
    """

    name: str
    summary: str
    module: str = ""


class _Commands(Mapping[str, Any]):
    """Commands that exist, followed by lazy ones, which are built on first access."""

    def __init__(self, present: Mapping[str, Any], listed: Sequence[LazyCommand]) -> None:
        self._present = present
        self._listed = {each.name: each for each in listed}

    def __getitem__(self, name: str) -> Any:
        return self._present[name] if name in self._present else _build(self._listed[name])

    def __iter__(self) -> Iterator[str]:
        yield from self._present
        yield from self._listed

    def __len__(self) -> int:
        return len(self._present) + len(self._listed)

    def summaries(self) -> list[tuple[str, str]]:
        """Return names and summaries, without building a lazy command."""
        return [
            *((name, command.get_short_help_str()) for name, command in self._present.items()),
            *((each.name, each.summary) for each in self._listed.values()),
        ]


def lazy_group(listed: Sequence[LazyCommand]) -> type[TyperGroup]:
    """Return the class of a group that adds lazy commands to its own."""

    class Program(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            found: Any = _Commands(self.commands, listed)
            self.commands = found

        def list_commands(self, ctx: Any) -> list[str]:
            return list(self.commands)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            found: Any = self.commands
            with formatter.section("Commands"):
                formatter.write_dl(found.summaries())

    return Program


@cache
def _build(listed: LazyCommand) -> Any:
    """Build the command that click runs."""
    found: Any = getattr(import_module(f"command_bus.cli.commands.{listed.module or listed.name}"), listed.name)
    if not isinstance(found, Typer):
        alone = Typer(add_completion=False, rich_markup_mode=None)
        alone.command(listed.name)(found)
        found = alone
    made: Any = get_command(found)
    made.name = listed.name
    _refuse_odd_numbers(made)
    return made


def _refuse_odd_numbers(command: Any) -> None:
    """Let every number of a command, or of those of a group, be finite: `nan` is not below any minimum."""
    for each in getattr(command, "commands", {}).values():
        _refuse_odd_numbers(each)
    for each in command.params:
        each.callback = partial(_finite, each.callback)


def _finite(then: Callable[..., Any] | None, context: Any, param: Any, value: Any) -> Any:
    """Return the value of an option or argument, by its own callback if it has one; refuse `nan` and `inf`."""
    if isinstance(value, float) and not math.isfinite(value):
        raise BadParameter(f"{value} is not a finite number.", ctx=context, param=param)
    return value if then is None else then(context, param, value)


def import_bus() -> None:
    """Import what every command that talks to a server needs."""
    with _light_imports():
        import_module("command_bus.bus")
        import_module("command_bus.transport.redis.namespace")


@contextmanager
def _light_imports() -> Generator[None]:
    """Leave out of imports what a short program does not need. Not used with `--app`: an application may need it.

    It saves a quarter of the time. The garbage collector would scan the imported modules many times and find nothing. pydantic would
    read the metadata of every installed package to look for plugins. redis-py would load OpenTelemetry if it is installed.
    """
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    modules: dict[str, Any] = sys.modules
    unwanted = {"opentelemetry"} - modules.keys()
    modules.update(dict.fromkeys(unwanted))  # None in sys.modules makes an import fail
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        for name in unwanted:
            del modules[name]
