"""Data of the development server in its project: a folder `.command_bus`, kept while commands wait in it.

A script may dispatch and end before a worker runs; a process may be killed, a machine restarted. Accepted commands must be there
for a later worker. So the server has an append-only file in the project's folder. It is deleted when the server is stopped
and no command waits. Otherwise a repeated experiment would find yesterday's command ids, and its commands would be duplicates.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import NamedTuple

from command_bus.embedded.folders import private_folder
from command_bus.embedded.locks import locked
from command_bus.embedded.probe import Address, ServerError, ask
from command_bus.errors import InvalidSettings

_PAUSE_MS = "5000"


class Left(NamedTuple):
    """Counts of what waits in a server.

    Attributes:
        commands: Commands that are not settled.
        letters: Dead letters.
    """

    commands: int
    letters: int

    def __str__(self) -> str:
        letters = f" and {_counted(self.letters, 'dead letter')}" if self.letters else ""
        return f"{_counted(self.commands, 'unsettled command')}{letters}"


def kept_folder(project: Path) -> Path:
    """Return the folder where a project's development server keeps its data."""
    return project / ".command_bus"


def made_folder(project: Path) -> Path | None:
    """Return that folder; create it, ignored by git, if it is missing. None if no folder there can be private to this user."""
    try:
        folder = private_folder(kept_folder(project))
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")
    except (InvalidSettings, OSError):
        return None
    return folder


def left_in(address: Address, *, closing: bool = False) -> Left | None:
    """Return what waits in the server; None if it does not answer.

    Args:
        address: Its socket.
        closing: Make it refuse new commands, because it is about to be stopped.
    """
    try:
        if closing:
            ask(address, "CLIENT", "PAUSE", _PAUSE_MS, "WRITE")
        commands = sum(int(depth) for key in ask(address, "KEYS", "{*}:stats") for depth in ask(address, "HGET", key, "depth"))
        letters = sum(int(ask(address, "XLEN", key)[0]) for key in ask(address, "KEYS", "{*}:dead"))
    except (OSError, ServerError, ValueError):
        return None
    return Left(commands, letters)


def wipe(folder: Path) -> bool:
    """Delete the data, if there is any.

    Raises:
        TransportUnavailable: A server has it open.
    """
    if not folder.is_dir():
        return False
    with locked([folder]), contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
    return True


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
