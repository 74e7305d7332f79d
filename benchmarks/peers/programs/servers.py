"""Servers that a peer needs besides Redis: started by the peer's program, measured by /proc, ended with it.

The measuring process may kill the program. Linux then ends its servers: each has asked for a signal at the death of its parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["Server", "end_in_order", "free_port", "wait_for"]

_PATIENCE = 60.0
_PR_SET_PDEATHSIG = 1


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def wait_for(what: Callable[[], object]) -> None:
    """Wait until this raises no `OSError` any more."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            what()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


def end_in_order() -> None:
    """Let SIGTERM end the program as Ctrl-C does: its servers are ended, and their folders removed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


class Server:
    """A process and its children."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        with (folder / f"{Path(command[0]).name}.log").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - the program has no other threads yet
            )

    def cpu(self) -> float:
        """Return the processor seconds that it and its living children have used."""
        return sum(_seconds(each) for each in self._family())

    def wait(self) -> None:
        """Wait until it has ended by itself."""
        self._process.wait(_PATIENCE)

    def end(self) -> None:
        """Terminate it; kill it if that takes long."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()

    def _family(self) -> list[int]:
        parents = dict(_parents())
        family = [self._process.pid]
        for each in family:  # it grows while it is read
            family += [child for child, parent in parents.items() if parent == each]
        return family


def _end_with_parent() -> None:
    """Ask for SIGTERM when the program ends. A change of user forgets it, so `setpriv` asks again."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _parents() -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                found.append((int(folder.name), int(_fields(int(folder.name))[1])))
    return found


def _seconds(process: int) -> float:
    with suppress(OSError):
        fields = _fields(process)
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _fields(process: int) -> list[str]:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
