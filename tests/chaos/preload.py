"""Compiles what is preloaded into processes, where there is a C compiler; without one those faults are reported as not injected."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

__all__ = ["Clock", "compiled", "cut_to_synced"]

_SOURCES = Path(__file__).parent / "native"


def compiled(name: str, folder: Path) -> Path | None:
    """Compile a source of this folder; return the shared library, or None if that fails."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    library = folder / f"{name}.so"
    command = [compiler, "-O2", "-fPIC", "-shared", "-o", str(library), str(_SOURCES / f"{name}.c"), "-ldl"]
    made = subprocess.run(command, capture_output=True, check=False)
    return library if made.returncode == 0 else None


class Clock:
    """The wall clock of one process, to be stepped from outside."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self.step(0.0)
        self.environment = {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(file)}

    def step(self, seconds: float) -> None:
        """Be off by this much from now on."""
        data = int(seconds * 1e6).to_bytes(8, "little", signed=True)
        if not self._file.exists():
            self._file.write_bytes(data)
        with self._file.open("r+b") as file:  # in place: the process has it mapped
            file.write(data)


def cut_to_synced(folder: Path) -> int:
    """Cut append-only files as a power loss does, to the part covered by fsync; return the number of bytes cut."""
    lost = 0
    for file in folder.rglob("*.incr.aof"):
        side = file.with_name(file.name + ".synced")
        kept = 0
        with contextlib.suppress(FileNotFoundError, ValueError):
            kept = int(side.read_text())
        size = file.stat().st_size
        if size > kept:
            lost += size - kept
            with file.open("r+b") as cut:
                cut.truncate(kept)
    return lost
