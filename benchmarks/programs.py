"""A measured process, seen from the measuring process: started, triggered, read, ended."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

__all__ = ["ROOT", "Program", "ProgramFailed", "python"]

ROOT = Path(__file__).resolve().parent.parent
_PATIENCE = 180.0


class ProgramFailed(Exception):
    """A measured process ended, or said nothing for too long."""


class Program:
    """One process that speaks `protocol`: `with Program(command) as program: program.go(); program.report()`."""

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> None:
        self._name = " ".join(Path(word).name for word in command[:4])
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name=f"benchmarks.{self._name}", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        try:
            self.report()  # {"ready": true}
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def cpu(self) -> float:
        """Return the processor seconds that its process has used; needs /proc."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def go(self) -> None:
        """Let it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def report(self, patience: float = _PATIENCE) -> dict[str, Any]:
        """Return its next line.

        Raises:
            ProgramFailed: It ended, or there is none in time.
        """
        try:
            line = self._lines.get(timeout=patience)
        except queue.Empty:
            raise ProgramFailed(f"{self._name} said nothing for {patience:g} s{self._last_words()}") from None
        if line is None:
            raise ProgramFailed(f"{self._name} ended with code {self._process.wait()}{self._last_words()}")
        return line

    def stop(self) -> None:
        """Ask it to end in order; `report` returns its last lines."""
        self._process.terminate()

    def end(self) -> None:
        """Terminate it, and kill it if it still runs after two seconds. Idempotent."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(2)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            if text.startswith("{"):  # a library may print what it likes
                self._lines.put(json.loads(text))
        self._lines.put(None)

    def _last_words(self) -> str:
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip()
        return f":\n{text[-2000:]}" if text else ""


def python(module: str, role: str, *, interpreter: str = sys.executable, **options: Any) -> list[str]:
    """Return the command that plays a role of a program."""
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [interpreter, "-m", module, role, *words]
