"""One development server per user and project, found by all processes of the project.

There is no registry and no daemon. The meeting place is a folder named after the project, with the server's socket and a lock that the
server itself holds (see `locks`). So there are only three cases: a server answers: join it; the lock is free: start a server; else
another process is starting or ending one: look again. Child processes get the URL through the environment, because they may run in
another folder.

Waiting commands, states of entities and the history outlive the server in the project's folder, and the next process goes on with them.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from command_bus.clock import mono
from command_bus.embedded.folders import SOCKET, data_folder, meeting_place, private_folder, project_folder, runtime_root
from command_bus.embedded.locks import POLL, locked, try_lock, unlock
from command_bus.embedded.process import Address, ServerError, ask, config_value, process_id, state_of
from command_bus.embedded.server import EmbeddedServer, unix_url
from command_bus.errors import InvalidSettings, TransportUnavailable

_PAUSE_MS = "5000"


class LeftCounts(NamedTuple):
    """Counts of what must outlive a server: what waits, and what was stored to be kept.

    Attributes:
        commands: Those that are not settled.
        letters: Dead letters.
        states: Those of entities.
        ends: Those that the history keeps.
    """

    commands: int
    letters: int
    states: int
    ends: int

    def __str__(self) -> str:
        nouns = ("unsettled command", "dead letter", "state", "kept end")
        return " and ".join(
            f"{count:,} {noun}{'' if count == 1 else 's'}" for count, noun in zip(self, nouns, strict=True) if count
        )


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


def left_in(address: Address, *, closing: bool = False) -> LeftCounts | None:
    """Return what must outlive the server; None if it does not answer.

    Args:
        address: Its socket.
        closing: Make it refuse new commands, because it is about to be stopped.
    """
    try:
        if closing:
            ask(address, "CLIENT", "PAUSE", _PAUSE_MS, "WRITE")
        commands = sum(int(depth) for key in ask(address, "KEYS", "{*}:stats") for depth in ask(address, "HGET", key, "depth"))
        kept = {"dead": "XLEN", "states": "HLEN", "history": "XLEN"}
        counts = (
            sum(int(ask(address, size, key)[0]) for key in ask(address, "KEYS", f"{{*}}:{name}")) for name, size in kept.items()
        )
        return LeftCounts(commands, *counts)
    except (OSError, ServerError, ValueError):
        return None


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


URL_VARIABLE = "COMMAND_BUS_EMBEDDED_URL"
"""URL of the server, set by each process that starts or joins it, for its child processes."""

DIR_VARIABLE = "COMMAND_BUS_EMBEDDED_DIR"
"""Folder for the data of a development server that keeps all data, not only while commands wait."""

_PATIENCE = 15.0  # seconds; more than another process needs to start a server or to fail

_logger = logging.getLogger("command_bus")
_PROJECT = "project"  # a file in the meeting place: the project of the server


class _Own(NamedTuple):
    """A server of this process, and the folder that is kept if something of it must be."""

    server: EmbeddedServer
    kept: Path | None


_own: dict[Path, _Own] = {}


def shared_server(folder: Path | None = None, *, persistence: Path | None = None) -> str:
    """Return the URL of the project's development server; start the server if none runs.

    Blocks for some 60 ms if it starts the server, else for 1 ms.

    The process that starts the server owns it: the server ends with that process. Commands that are not settled by then stay in the
    project's folder `.command_bus`, with states and the history, and the next server goes on with them. If the server is dead, the next
    caller starts another one at the same URL, so that clients that keep reconnecting find it.

    Args:
        folder: The project's. By default the server inherited from a parent process; else that of the nearest folder with a
            `pyproject.toml` or `.git`, from the current one upwards; else of the current one. A folder named here is not passed
            on to child processes.
        persistence: Folder where all data is kept; by default `$COMMAND_BUS_EMBEDDED_DIR`.

    Raises:
        MissingExtra: There is no server program to start.
        InvalidSettings: A folder is not safe or not usable, or a server already runs that keeps its data elsewhere.
        TransportUnavailable: The server did not start, or that of another process does not answer.
    """
    inherited = _inherited() if folder is None else None
    if inherited is not None and persistence is None and state_of(inherited) == "ready":
        return unix_url(inherited)
    place = _place_of(inherited)
    project = folder or project_folder() if place is None else _project_of(place)
    url = _join_or_start(place or meeting_place(project), project, _wanted(persistence))
    if folder is None:
        os.environ[URL_VARIABLE] = url
    return url


def stop_shared_server() -> None:
    """Stop the servers that this process owns, and forget their URL. Idempotent; runs at exit."""
    while _own:
        place, own = _own.popitem()
        if os.environ.get(URL_VARIABLE) == own.server.url:
            del os.environ[URL_VARIABLE]
        _end(place, own)


atexit.register(stop_shared_server)


def forget_shared_server(folder: Path | None = None) -> Path | None:
    """Delete the data that a project's development server left behind, by default this project's.

    Returns:
        The folder; None if there was none.

    Raises:
        InvalidSettings: The server runs.
    """
    project = folder or project_folder()
    place = meeting_place(project)
    lock = try_lock(place)
    if lock is None:
        raise InvalidSettings(
            f"the development server of {project} runs (pid {process_id(place / SOCKET)}): end the program that started it first"
        )
    try:
        return kept_folder(project) if wipe(kept_folder(project)) else None
    finally:
        unlock((lock,))


def _inherited() -> Path | None:
    url = os.environ.get(URL_VARIABLE)
    if not url:
        return None
    parts = urlsplit(url)
    if parts.scheme != "unix" or not parts.path:
        raise InvalidSettings(
            f"{URL_VARIABLE} is set by command_bus itself, to unix://…; name a server of your own with COMMAND_BUS_URL"
        )
    return Path(unquote(parts.path))


def _place_of(inherited: Path | None) -> Path | None:
    """Return the inherited server's meeting place if it is this user's: a new server there is found by its owner and all children."""
    if inherited is None or inherited.name != SOCKET or inherited.parent.parent != runtime_root():
        return None
    private_folder(inherited.parent.parent)
    return private_folder(inherited.parent)


def _project_of(place: Path) -> Path:
    """Return the project whose processes meet there."""
    try:
        return Path((place / _PROJECT).read_text(encoding="utf-8"))
    except OSError:
        return project_folder()


def _wanted(persistence: Path | None) -> Path | None:
    named = persistence or os.environ.get(DIR_VARIABLE)
    return data_folder(Path(named)) if named else None


def _join_or_start(place: Path, project: Path, persistence: Path | None) -> str:
    address = place / SOCKET
    until = mono() + _PATIENCE
    while mono() < until:
        match state_of(address):
            case "ready":
                _refuse_other_data(address, persistence)
                return unix_url(address)
            case "loading":  # it is alive: its data may take long to load
                until = mono() + _PATIENCE
            case "silent":
                lock = try_lock(place)
                if lock is not None:
                    return _start(place, project, lock, persistence)
        time.sleep(POLL)
    raise TransportUnavailable(
        f"the development server in {place} is there but does not answer: end the program that started it, or set COMMAND_BUS_URL"
    )


def _start(place: Path, project: Path, lock: int, persistence: Path | None) -> str:
    if place in _own:  # it crashed, for its lock was free
        _own.pop(place).server.stop()
    kept = made_folder(project) if persistence is None else None
    try:
        (place / _PROJECT).write_text(str(project), encoding="utf-8")
        server = EmbeddedServer.start(place, persistence=persistence or kept, held=(lock,))
    except TransportUnavailable as error:
        if kept is None:
            raise
        raise TransportUnavailable(f"{error.message}\nIts data is in {kept}: `command-bus forget` deletes it") from error
    finally:
        unlock((lock,))
    _own[place] = _Own(server, kept)
    _logger.warning(
        "started a Redis-compatible server for development (pid %d) at %s: it ends with this process, and %s. "
        "For a real one set COMMAND_BUS_URL, for example redis://localhost:6379",
        server.pid,
        server.url,
        _future(place / SOCKET, persistence, kept),
    )
    return server.url


def _future(address: Path, persistence: Path | None, kept: Path | None) -> str:
    """Return what happens to its data when it ends."""
    if persistence is not None:
        return f"its data stays in {persistence}"
    if kept is None:
        return f"its data with it ({DIR_VARIABLE} names a folder to keep it in)"
    left = left_in(address)
    found = f"; it goes on with {left} from there" if left is not None and any(left) else ""
    return f"what is not settled by then stays in {kept}, and so do states{found}"


def _end(place: Path, own: _Own) -> None:
    """Stop a server, and delete its data if nothing of it must be kept. It accepts no command between that look and its end."""
    if own.kept is None or not own.server.running:
        own.server.stop()
        return
    left = left_in(place / SOCKET, closing=True)
    own.server.stop()
    if left is None or left.commands or left.letters:
        _logger.warning(
            "the development server has ended with %s: they stay in %s, and the next one goes on with them. `command-bus worker MODULE:BUS` "
            "handles them, `command-bus entities` shows them, `command-bus forget` deletes them",
            left or "what it had",
            own.kept,
        )
    elif not any(left) and (lock := try_lock(place)) is not None:  # else another process has started the next one
        try:
            wipe(own.kept)
        finally:
            unlock((lock,))


def _refuse_other_data(address: Path, wanted: Path | None) -> None:
    if wanted is None:
        return
    persistent = config_value(address, "appendonly") == "yes"
    actual = config_value(address, "dir") if persistent else "memory"
    if not persistent or Path(actual).resolve() != wanted:
        raise InvalidSettings(
            f"the development server of this project (pid {process_id(address)}) keeps its data in {actual}, not in {wanted}: "
            f"end the program that started it, or ask for the same folder there with {DIR_VARIABLE}"
        )


os.register_at_fork(after_in_child=_own.clear)  # they are the parent's to stop
