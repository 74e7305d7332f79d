"""Locks of folders: one server each.

The *server process* holds the lock, because it inherits the locked file. So the lock is free exactly when the server is dead, whatever
ended it, and no lock can be stale. Lock files are never deleted, because two processes could then hold two files of one name.
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

_LOCK = "server.lock"
_PATIENCE = 2.0  # seconds for a server that is ending
POLL = 0.005
"""Seconds between two looks at what another process is doing."""

_in_hand: set[int] = set()


def try_lock(folder: Path) -> int | None:
    """Take the folder's lock. Return a file descriptor that the caller passes to the server and then closes; None if a server has it."""
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
            # Cleaners of temporary folders delete old files: a lock on a deleted file would exclude no process.
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
    """Take the folder's lock; wait for a server that is ending.

    Raises:
        TransportUnavailable: Another server runs there.
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
    """Take the folders' locks; a server started within the block inherits them. This process's copies are closed at the block's end.

    Raises:
        TransportUnavailable: Another server runs in one of them.
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
