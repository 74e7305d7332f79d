"""What the development server keeps with its project: a folder `.command_bus`, as long as something in it waits.

A script may dispatch and end before there is a worker; a process may be killed, a machine restarted. What was accepted must be there
for the worker that comes later. So the server has an append-only file in the project's folder. It is deleted when the server is
stopped and nothing waits: otherwise an experiment that is repeated would find yesterday's command ids, and call itself a duplicate.
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

__all__ = ["Left", "kept_folder", "left_in", "made_folder", "wipe"]

_PAUSE_MS = "5000"


class Left(NamedTuple):
    """What waits in a server.

    Attributes:
        commands: Not settled.
        letters: Dead letters.
    """

    commands: int
    letters: int

    def __str__(self) -> str:
        letters = f" and {_counted(self.letters, 'dead letter')}" if self.letters else ""
        return f"{_counted(self.commands, 'unsettled command')}{letters}"


def kept_folder(project: Path) -> Path:
    """Where a project's development server keeps its data."""
    return project / ".command_bus"


def made_folder(project: Path) -> Path | None:
    """The same, made if it is missing, and ignored by git; None if there can be none that only this user can read."""
    try:
        folder = private_folder(kept_folder(project))
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")
    except (InvalidSettings, OSError):
        return None
    return folder


def left_in(address: Address, *, closing: bool = False) -> Left | None:
    """What waits in the server there; None if it does not say.

    Args:
        address: Its socket.
        closing: Let it accept nothing more, for it is going to be stopped.
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
    """Delete the data, if there is any and no server has it open.

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
