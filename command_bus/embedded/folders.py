"""Folders and socket paths: private folders, the meeting place of a project's processes, and the length limit of socket paths."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from hashlib import blake2b
from pathlib import Path

from command_bus.errors import InvalidSettings

SOCKET = "server.sock"
_LONGEST_SOCKET = 103  # bytes; macOS takes 104 with the closing zero, Linux 108
_ADVICE = "set COMMAND_BUS_URL to use a server of your own"


def private_folder(path: Path) -> Path:
    """Return the folder, which only this user can read; create it if it is missing.

    Raises:
        InvalidSettings: It is not a folder, belongs to another user, is open to others, or cannot be created.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()  # not stat: a link in a world-writable place is another user's choice of folder
    except OSError as error:
        raise InvalidSettings(f"cannot make the folder {path} for the embedded server ({error.strerror}); {_ADVICE}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise InvalidSettings(f"{path} is not a folder, the embedded server needs it to be one: remove it, or {_ADVICE}")
    if found.st_uid != os.geteuid():
        raise InvalidSettings(
            f"{path} belongs to another user (uid {found.st_uid}), who could read the commands: remove it, or {_ADVICE}"
        )
    if found.st_mode & 0o077:
        raise InvalidSettings(f"{path} is open to other users, who could read the commands: chmod 700 {path}, or {_ADVICE}")
    return path


def data_folder(path: Path) -> Path:
    """Return the folder that the user named for data; create it (mode 700) if it is missing.

    Its permissions are not checked: they are the user's decision.

    Raises:
        InvalidSettings: It cannot be created, or is not a folder.
    """
    try:
        path = path.expanduser().resolve()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise InvalidSettings(f"cannot use {path} as the embedded server's data folder ({error}); name another one") from error
    return path


def fits_socket(folder: Path) -> bool:
    """Return whether the path of a socket in the folder is short enough for the system."""
    return len(os.fsencode(folder / SOCKET)) <= _LONGEST_SOCKET


def short_folder() -> Path:
    """Create a private folder with a path short enough for a socket."""
    parents = [Path(tempfile.gettempdir()), Path("/tmp")]  # noqa: S108 - safe with mkdtemp
    parent = next((parent for parent in parents if fits_socket(parent / "command_bus-12345678")), parents[-1])
    try:
        return Path(tempfile.mkdtemp(prefix="command_bus-", dir=parent))
    except OSError as error:
        raise InvalidSettings(
            f"cannot make a folder in {parent} for the embedded server ({error.strerror}); {_ADVICE}"
        ) from error


def project_folder(start: Path | None = None) -> Path:
    """Return the nearest folder, from `start` (the current folder) upwards, with a `pyproject.toml` or `.git`; else `start`."""
    try:
        start = (start or Path.cwd()).resolve()
    except OSError as error:
        raise InvalidSettings(f"the current folder does not exist any more: change to another one, or {_ADVICE}") from error
    with_mark = (
        folder for folder in (start, *start.parents) if (folder / "pyproject.toml").exists() or (folder / ".git").exists()
    )
    return next(with_mark, start)


def runtime_root() -> Path:
    """Return this user's folder for all meeting places: in $XDG_RUNTIME_DIR, else in the temporary folder."""
    name = f"command_bus-{os.geteuid()}"
    parents = [Path(tempfile.gettempdir()), Path("/tmp")]  # noqa: S108 - private_folder refuses folders of other users
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    # After su or sudo the variable may still name the other user's folder.
    if os.path.isabs(runtime) and os.path.isdir(runtime) and os.stat(runtime).st_uid == os.geteuid():  # noqa: PTH112, PTH116, PTH117
        parents.insert(0, Path(runtime))
    return next((parent / name for parent in parents if fits_socket(parent / name / _digest(Path()))), parents[-1] / name)


def meeting_place(project: Path) -> Path:
    """Return the folder where all processes of this user and project find their server.

    Raises:
        InvalidSettings: The folder is not safe to use; see `private_folder`.
    """
    return private_folder(private_folder(runtime_root()) / _digest(project.resolve()))


def _digest(path: Path) -> str:
    return blake2b(os.fsencode(path), digest_size=8).hexdigest()
