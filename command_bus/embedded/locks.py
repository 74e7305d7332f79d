"""Locks of folders: one server each.

A lock is held by the *server process*, which inherits the locked file: so it is free exactly when the server is dead, however
it died, and there is nothing stale to detect. Lock files are never deleted, because two processes could then hold two files of
one name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path

from command_bus.clock import mono
from command_bus.errors import InvalidSettings, TransportUnavailable

__all__ = ["POLL", "locked", "try_lock", "unlock"]

_LOCK = "server.lock"
_PATIENCE = 2.0  # seconds for a server that is just ending
POLL = 0.005
"""Seconds between two looks at what another process is doing."""

_in_hand: set[int] = set()


def try_lock(folder: Path) -> int | None:
    """The folder's lock as a file descriptor that the caller hands to the server and then closes; None if a server has it."""
    path = folder / _LOCK
    while True:
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise InvalidSettings(
                f"cannot open {path} ({error.strerror}); set COMMAND_BUS_URL to use a server of your own"
            ) from error
        _in_hand.add(lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Cleaners of temporary folders delete old files: a lock on a deleted one would shut nobody out.
            if path.exists() and os.path.samestat(os.fstat(lock), path.stat()):
                return lock
        except BlockingIOError:
            unlock((lock,))
            return None
        except OSError as error:
            unlock((lock,))
            raise InvalidSettings(
                f"cannot lock {path} ({error.strerror}); set COMMAND_BUS_URL to use a server of your own"
            ) from error
        unlock((lock,))


def _wait_lock(folder: Path) -> int:
    """The folder's lock, waiting for a server that is just ending.

    Raises:
        TransportUnavailable: Another server lives there.
    """
    until = mono() + _PATIENCE
    while (lock := try_lock(folder)) is None:
        if mono() > until:
            raise TransportUnavailable(f"another server runs in {folder}: stop it, or choose another folder")
        time.sleep(POLL)
    return lock


def unlock(locks: Iterable[int]) -> None:
    """Close this process's copies."""
    for lock in locks:
        _in_hand.discard(lock)
        os.close(lock)


@contextlib.contextmanager
def locked(folders: Iterable[Path]) -> Generator[Sequence[int]]:
    """The folders' locks, to be inherited by a server within the block; this process's copies are closed at its end.

    Raises:
        TransportUnavailable: Another server lives in one of them.
    """
    locks: list[int] = []
    try:
        for folder in folders:
            locks.append(_wait_lock(folder))  # noqa: PERF401 - those taken are closed if the next fails
        yield locks
    finally:
        unlock(locks)


def _drop_locks() -> None:
    for lock in _in_hand:
        os.close(lock)
    _in_hand.clear()


os.register_at_fork(after_in_child=_drop_locks)  # else a forked child would hold the lock for a server that is dead
