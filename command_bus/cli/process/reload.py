"""Notices that an application's files have changed, for `--reload`.

By looking, twice a second, at the times of the Python files below the current folder: a few hundred files take a millisecond or two,
it needs no package, and it works where file events do not (network and container mounts). It runs in the supervisor, which has loaded
none of the application, so that a file which does not even compile only waits for its next change.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["FileWatcher", "changed_files", "snapshot"]

_EVERY = 0.5
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})

Times = Mapping[str, tuple[int, int]]
"""By file, when it was changed in ns, and its size."""


def snapshot(folder: Path) -> Times:
    """The Python files below a folder. Hidden folders and environments are left out."""
    return dict(_files(os.fspath(folder)))


def changed_files(before: Times, now: Times) -> list[str]:
    """The files that came, went or changed."""
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


class FileWatcher:
    """The files of a folder, watched from now on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known = snapshot(folder)

    async def wait(self) -> list[str]:
        """Wait until some have changed, and tell which."""
        while True:
            await asyncio.sleep(_EVERY)
            now = await asyncio.to_thread(snapshot, self._folder)
            found = changed_files(self._known, now)
            self._known = now
            if found:
                return found


def _files(folder: str) -> Iterator[tuple[str, tuple[int, int]]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:  # gone meanwhile, or not ours
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(".") and entry.name not in _SKIPPED and not Path(entry.path, "pyvenv.cfg").exists():
                    yield from _files(entry.path)
            elif entry.name.endswith(".py"):
                found = entry.stat()
                yield entry.path, (found.st_mtime_ns, found.st_size)
        except OSError:
            continue
