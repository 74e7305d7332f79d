"""Everything that the program prints goes through here, and is escaped, so that no terminal obeys it.

Names, ids and error texts come from those who send commands. Escaped is what a terminal would act on or show in another order: control
characters (ESC, and U+0080 to U+009F, which some terminals treat as ESC), marks that change the direction of writing, characters without
width, and halves of surrogate pairs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import typer
from typer import Exit

from command_bus.cli import PROGRAM
from command_bus.cli.streams import json_escape
from command_bus.clock import mono
from command_bus.spelling import did_you_mean

if TYPE_CHECKING:
    from command_bus.bus import CommandBus


class ExitCode(IntEnum):
    """Exit codes of every command but `worker` and `dev`."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNKNOWN = 3
    WORKERS_FIRST = 3
    UNREACHABLE = 4
    INTERRUPTED = 130


class WorkerExitCode(IntEnum):
    """Exit codes of `worker` and `dev`; a second signal n gives 128 + n."""

    FINISHED = 0
    NOT_STARTED = 1
    USAGE = 2
    CUT_SHORT = 3


_TWO_STOPS = re.compile(r"(?<=[^\s./])\.\.(?=\s|$)")  # neither an ellipsis nor a parent folder


class SafeText(str):
    """Text that is escaped already. It may have several lines, and this program's own styles."""

    __slots__ = ()


def echo(text: str = "", *, newline: bool = True, err: bool = False) -> None:
    """Print to standard output, or with `err` to standard error: `SafeText` as it is, any other text as one escaped line."""
    typer.echo(_one_line(text), nl=newline, err=err)


def print_error(message: str) -> None:
    """Print one line for people to standard error. A full stop is not doubled where a library's sentence ends inside ours."""
    text = _TWO_STOPS.sub(".", " ".join(message.split()))
    print(f"{PROGRAM}: {_one_line(text)}", file=sys.stderr)  # noqa: T201 - a program's answer


def usage_error(message: str) -> Exit:
    """Print what is wrong with a call, and return the exit to raise."""
    print_error(message)
    return Exit(ExitCode.USAGE)


def failure(message: str) -> Exit:
    """Print why nothing was done, and return the exit to raise."""
    print_error(message)
    return Exit(ExitCode.FAILED)


def confirm_or_exit(question: str, *, yes: bool) -> None:
    """Ask for confirmation, unless `--yes` was given. Without `--yes` and a terminal nothing is done.

    Raises:
        typer.Exit: It was not confirmed.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise usage_error(f"{question} There is no terminal to ask on: pass --yes")
    if not typer.confirm(_one_line(question)):
        raise Exit(ExitCode.FAILED)


def escape(text: str, *, kept: str = "") -> SafeText:
    """Replace characters that cannot be printed by Python's escapes, except those in `kept`."""
    if text.isprintable():
        return SafeText(text)
    return SafeText("".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text))


def escape_json(text: str) -> SafeText:
    """Replace characters that cannot be printed by JSON's escapes. A reader of JSON reads the same values."""
    return SafeText("".join(c if c.isprintable() or c == "\n" else json_escape(c) for c in text))


def format_value(value: Any) -> SafeText:
    """Return a value for people: numbers with separators, None as a dash, text escaped with its line breaks kept."""
    if value is None or value == "":
        return SafeText("-")
    if isinstance(value, bool):
        return SafeText("yes" if value else "no")
    return SafeText(f"{value:,}") if isinstance(value, int) else escape(str(value), kept="\n")


def _one_line(text: str) -> SafeText:
    return text if isinstance(text, SafeText) else escape(text)


async def warn_if_unknown(bus: CommandBus, *, entity_type: str | None = None, command: str | None = None, done: str = "") -> None:
    """Print which of these names are unknown, and similar names that are known.

    Args:
        bus: Open.
        entity_type: As it was typed; `~`, `@schedules` and None are always known.
        command: A wire name as it was typed, also of a delivery to a subscription; None is always known.
        done: A sentence about what was done although the name is unknown.

    Raises:
        TransportUnavailable: The server cannot be reached.
    """
    from command_bus.messages.policies import parts_of_delivery
    from command_bus.transport.mailboxes import SCHEDULES

    commands = {each.name: each.entity for each in [*await bus.fleet.commands(), *await bus.fleet.events()]}
    commands |= {handler.spec.name: handler.spec.entity for handler in bus.registry}
    types = {*await bus.transport.operator.types.used(), *(kind for kind in commands.values() if kind is not None)}
    for what, name, known in (
        ("entity type", None if entity_type in ("~", SCHEDULES) else entity_type, types),
        ("command", command and parts_of_delivery(command)[0], {*commands}),
    ):
        if name is not None and name not in known:
            hint = did_you_mean(name, known)
            print_error(f"no {what} {name!r} is known here{hint or (done and '.')} {done}")


def show_progress(text: str = "") -> None:
    """Write how far long work is over the last such line of a terminal, on standard error; without a text remove the line."""
    if sys.stderr.isatty():
        typer.echo(f"\r\x1b[K{_one_line(text)}", nl=False, err=True)


_PACE = 0.1


@contextmanager
def counting(total: int, done: str) -> Generator[Callable[[int], None]]:
    """Show how many of all are done, ten times a second at most, and say it if Ctrl-C stops that."""
    from asyncio import CancelledError

    count, shown = 0, 0.0

    def tell(number: int) -> None:
        nonlocal count, shown
        count = number
        if mono() - shown > _PACE:
            show_progress(f"{number:,} {done} of {total:,}")
            shown = mono()

    try:
        yield tell
    except CancelledError:
        show_progress()
        print_error(f"stopped: {count:,} {done}")
        raise
    show_progress()


def undo_hint(state: str, command: str) -> str:
    """Return a sentence: the entities are in that state all the same, and this command undoes it."""
    return f"It is {state} all the same: `{command}` undoes that"
