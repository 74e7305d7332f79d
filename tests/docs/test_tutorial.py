"""The tutorial (tutorial.md), followed to the letter: its files are saved when it says so, its commands typed, what they print compared."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.examples import ROOT, blocks, files

pytest.importorskip("typer")

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
WORKER = "command-bus worker"
_STEP = re.compile(r"^```(?:python|console)\n.*?^```$", re.MULTILINE | re.DOTALL)
_CONTINUED = re.compile(r"^# depot\.py, continued\n", re.MULTILINE)


class Reader:
    """A folder, and two terminals in it: one for the worker, one for everything else. The server is the one for development."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "command-bus").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m command_bus "$@"\n')
        (folder / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        for program in ("command-bus", "python"):
            (folder / program).chmod(0o755)
        hidden = {"COMMAND_BUS_URL", "REDIS_URL", "COMMAND_BUS_EMBEDDED_URL", "COMMAND_BUS_EMBEDDED_DIR"}
        self.environment = {name: value for name, value in os.environ.items() if name not in hidden} | {
            "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        self.log = folder / "log"
        self.worker: subprocess.Popen[bytes] | None = None

    def save(self, name: str, source: str, *, continued: bool) -> None:
        with (self.folder / name).open("a" if continued else "w", encoding="utf-8") as file:
            file.write("\n\n" + source if continued else source)

    def type(self, line: str) -> str:
        """Return what the line prints; a worker is left running, in place of the one before."""
        if line.startswith(WORKER):
            self.stop()
            with self.log.open("wb") as log:
                command = ["/bin/sh", "-c", f"exec {line}"]
                self.worker = subprocess.Popen(command, cwd=self.folder, env=self.environment, stderr=log)
            self._ready()
            return ""
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _ready(self, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not re.search(r"worker \w+ handles", said := self.log.read_text()):
            assert time.monotonic() < deadline, said
            time.sleep(0.02)

    def stop(self) -> None:
        """Ctrl-C in the worker's terminal."""
        if self.worker is not None:
            self.worker.send_signal(signal.SIGINT)
            self.worker.wait(30)
            self.worker = None


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    person = Reader(tmp_path)
    yield person
    person.stop()


@pytest.mark.server
@pytest.mark.timeout(200)
def test_who_follows_the_page_sees_what_it_says(reader: Reader) -> None:
    typed = 0
    for step in _STEP.finditer(PAGE):
        for block in blocks(step[0]):
            assert block.name in {"depot.py", "try_it.py"}
            reader.save(block.name, block.source, continued=block.continued)
        if step[0].startswith("```console"):
            line, *wanted = step[0].splitlines()[1:-1]
            assert reader.type(line.removeprefix("$ ")).splitlines() == wanted, line
            typed += 1
    assert typed == 10
    again = reader.type("python try_it.py").splitlines()
    assert [again[4], *again[-3:]] == ["refused: closed", "duplicate", "duplicate", "['lamp']"]


def test_the_whole_program_is_that_of_the_steps() -> None:
    steps, _, whole = PAGE.partition("## The whole program")
    assert files(blocks(whole))["depot.py"] == _CONTINUED.sub("", files(blocks(steps))["depot.py"])
