"""Prints the help of every command, for the page of the command line on the site: `python -m scripts.cli_help`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from command_bus.cli.app import app


def helps() -> str:
    """Return the help of every command as sessions of a page."""
    return "\n".join(f"```console\n$ {name} --help\n{text}\n```\n" for name, text in _helps(get_command(app), "command-bus"))


def _helps(command: Any, name: str) -> Iterator[tuple[str, str]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        context = command.context_class(command, info_name=name, terminal_width=80)
        yield name, "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    else:
        for each in inner:
            yield from _helps(inner[each], f"{name} {each}")


if __name__ == "__main__":
    print(helps())
