"""The development server as a newcomer meets it: one program dispatches and ends, a worker comes later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.docs.examples import blocks, saved
from tests.selection import quick

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]
_SHOP = """
import sys
from pathlib import Path
from command_bus import Command, CommandBus, EntityId, RetryPolicy, SyncCommandBus, handles

class Ship(Command[None], entity="order"):
    order: EntityId

class Break(Command[None], entity="order", retry=RetryPolicy(attempts=1)):
    order: EntityId

@handles(Ship)
def ship(command: Ship) -> None:
    with open("shipped.txt", "a") as file:
        file.write(f"{command.order}\\n")

@handles(Break)
def fail(command: Break) -> None:
    raise OSError("broken")

bus = CommandBus()

if __name__ == "__main__":
    with SyncCommandBus() as blocking:
        for order in sys.argv[2:]:
            print(blocking.dispatch(Ship(order=order), command_id=f"ship-{order}").status, flush=True)
        if sys.argv[1] == "die":
            import os, signal
            os.kill(os.getpid(), signal.SIGKILL)
        if sys.argv[1] == "break":
            blocking.dispatch(Break(order="b"))
"""


WORKS = " types of commands, for up to "  # what a worker logs when it has started


class Project:
    """A folder with the shop, and programs in it."""

    def __init__(self, folder: Path, runtime: Path) -> None:
        self.folder = folder
        self.kept = folder / ".command_bus"
        self._started: list[subprocess.Popen[str]] = []
        strange = {"COMMAND_BUS_URL", "REDIS_URL", "COMMAND_BUS_EMBEDDED_URL", "COMMAND_BUS_EMBEDDED_DIR"}
        self.environment = {name: value for name, value in os.environ.items() if name not in strange}
        self.environment |= {"PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(runtime), "COMMAND_BUS_LEASE": "2"}
        (folder / ".git").mkdir()
        (folder / "shop.py").write_text(_SHOP)

    def run(self, *words: str, code: int | None = 0) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def cli(self, *words: str, code: int = 0) -> str:
        return self.run("-m", "command_bus", *words, code=code)

    def start(self, *words: str) -> subprocess.Popen[str]:
        with (self.folder / f"{len(self._started)}.log").open("w") as log:
            self._started.append(
                subprocess.Popen(
                    [sys.executable, *words], cwd=self.folder, env=self.environment, stderr=log, stdout=log, text=True
                )
            )
        return self._started[-1]

    def worker(self, bus: str = "shop:bus") -> subprocess.Popen[str]:
        """Start a worker, and wait until it runs commands: until then another program may be the one that starts the server."""
        log = self.folder / f"{len(self._started)}.log"
        worker = self.start("-m", "command_bus", "worker", bus)
        assert eventually(lambda: WORKS in log.read_text()), log.read_text()
        return worker

    @property
    def shipped(self) -> list[str]:
        file = self.folder / "shipped.txt"
        return file.read_text().split() if file.exists() else []

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def end(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(30)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    for name in ("shop", "run"):
        (tmp_path / name).mkdir(mode=0o700)
    project = Project(tmp_path / "shop", tmp_path / "run")
    yield project
    project.close()


@pytest.mark.promise("The program that started the development server ends or is killed, or the socket is gone after a restart")
@pytest.mark.parametrize("how", quick(["end", "die"], ["end"]))
@pytest.mark.slow
def test_what_a_script_dispatched_is_there_for_the_worker_that_comes_later(project: Project, how: str) -> None:
    said = project.run("shop.py", how, "o-1", "o-2", code=None)
    assert said.count("accepted") == 2
    assert ("2 unsettled commands" in said) == (how == "end")
    if how == "end":
        assert "command-bus worker" in said
        assert "command-bus forget" in said
    again = project.run("shop.py", "end", "o-1", "o-3")
    assert "goes on with 2 unsettled commands" in again
    assert again.count("duplicate") == 1
    assert "order:o-3" in project.cli("entities")
    worker = project.worker()
    assert eventually(lambda: len(project.shipped) == 3)
    assert sorted(project.shipped) == ["o-1", "o-2", "o-3"]
    eventually(lambda: '"depth": 0' in project.cli("stats", "--json"))
    assert end(worker) == 0
    assert not project.kept.exists()  # nothing waits: nothing is left
    assert "accepted" in project.run("shop.py", "end", "o-1")


@pytest.mark.promise("The program that started the development server ends or is killed, or the socket is gone after a restart")
def test_a_restart_of_the_machine_takes_only_the_socket(project: Project, tmp_path: Path) -> None:
    project.run("shop.py", "die", "o-1", code=None)
    (tmp_path / "run").rename(tmp_path / "gone")
    (tmp_path / "run").mkdir(mode=0o700)
    worker = project.worker()
    assert eventually(lambda: project.shipped == ["o-1"])
    assert end(worker) == 0


@pytest.mark.slow
def test_two_programs_meet_and_the_end_of_the_first_loses_nothing(project: Project) -> None:
    worker = project.worker()
    assert "accepted" in project.run("shop.py", "end", "o-1")
    assert eventually(lambda: project.shipped == ["o-1"])
    worker.kill()
    worker.wait()
    assert "accepted" in project.run("shop.py", "end", "o-2")
    second = project.worker()
    assert eventually(lambda: project.shipped == ["o-1", "o-2"])
    assert end(second) == 0


@pytest.mark.slow
def test_forget_deletes_what_is_left_and_nothing_that_is_in_use(project: Project) -> None:
    project.run("shop.py", "end", "o-1")
    worker = project.worker()
    assert eventually(lambda: project.shipped == ["o-1"])
    assert "end the program that started it" in project.cli("forget", "--yes", code=1)
    assert end(worker) == 0
    project.run("shop.py", "end", "o-2")
    assert "--yes" in project.cli("forget", code=2)
    assert "which no --url" in project.cli("--url", "redis://127.0.0.1:1", "forget", "--yes", code=2)
    assert project.kept.is_dir()
    assert (project.kept / ".gitignore").read_text() == "*\n"
    assert str(project.kept) in project.cli("forget", "--yes")
    assert not project.kept.exists()
    assert "nothing to delete" in project.cli("forget", "--yes")
    assert "no development server" in project.cli("stats", code=2)


@pytest.mark.slow
def test_dead_letters_are_kept_too(project: Project) -> None:
    project.run("shop.py", "break")
    worker = project.worker()
    assert eventually(lambda: "Break" in project.cli("dlq", "list"))
    assert end(worker) == 0
    assert "Break" in project.cli("dlq", "list")


def test_the_programs_of_the_readme_share_a_balance_that_outlives_them(project: Project) -> None:
    saved(blocks((ROOT / "README.md").read_text(encoding="utf-8")), project.folder)
    deposit = ("call", "Deposit", '{"account_id": "a-17", "amount": 7}')
    assert "12" in project.run("bank.py").splitlines()
    worker = project.worker("bank:bus")
    assert [project.cli(*deposit).strip() for _ in range(2)] == ["19", "26"]
    assert end(worker) == 0
    assert "balance     26" in project.cli("state", "show", "account:a-17")
    project.cli("state", "delete", "account:a-17")
    assert not project.kept.exists()


@pytest.mark.slow
def test_the_history_is_kept_too(project: Project) -> None:
    project.environment["COMMAND_BUS_HISTORY"] = "30 days"
    project.run("shop.py", "end", "o-1")
    worker = project.worker()
    assert eventually(lambda: project.shipped == ["o-1"])
    assert end(worker) == 0
    assert "ship-o-1" in project.cli("history", "search")


def test_where_nothing_can_be_kept_the_notice_says_so(project: Project) -> None:
    project.kept.write_text("not a folder")
    said = project.run("shop.py", "end", "o-1")
    assert "its data with it" in said
    assert "COMMAND_BUS_EMBEDDED_DIR" in said
