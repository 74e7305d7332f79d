"""The development server that all processes of a project share."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from command_bus.embedded import locks, process, shared_server, stop_shared_server
from command_bus.embedded import server as server_module
from command_bus.embedded.process import process_id, state_of
from command_bus.errors import InvalidSettings, TransportUnavailable
from tests.integration.embedded_programs import LINUX, ROOT, Program, alive, binaries, connect, eventually

pytestmark = pytest.mark.server


@pytest.fixture(params=binaries(), ids=lambda path: path.name)
def program(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture(params=["kernel", "pipe"] if LINUX else ["pipe"])
def guard(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Runtime and temporary folder of the test, with a short name; killed owners cannot clean up after themselves."""
    tmp_path_factory.getbasetemp()  # before the temporary folder is another
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        monkeypatch.setenv("TMPDIR", name)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


@pytest.fixture
def project(tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Provide a separate project, with nothing inherited; stop its server at the end."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("COMMAND_BUS_EMBEDDED_URL", "")  # set, so that what the code puts there is undone, too
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    monkeypatch.chdir(folder)
    yield folder
    stop_shared_server()


@contextlib.contextmanager
def try_to_lock(folder: Path) -> Generator[bool]:
    lock = locks.try_lock(folder)
    yield lock is not None
    if lock is not None:
        locks.unlock((lock,))


SHARE = "url = shared_server(); tell(url=url, pid=pid_at(url)); wait()"


class TestSharedServer:
    def test_one_process_has_one(self, project: Path):
        url = shared_server()
        assert shared_server() == url
        assert os.environ["COMMAND_BUS_EMBEDDED_URL"] == url
        with connect(url) as client:
            assert client.ping()
        stop_shared_server()
        stop_shared_server()
        assert "COMMAND_BUS_EMBEDDED_URL" not in os.environ
        assert shared_server() == url

    def test_threads_meet(self, project: Path):
        urls: list[str] = []
        threads = [threading.Thread(target=lambda: urls.append(shared_server())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(urls) == 8
        assert len(set(urls)) == 1

    def test_processes_that_start_together_meet(self, project: Path, run: Callable[..., Program]):
        code = "tell(up=1); wait()\n" + SHARE
        programs = [run(code) for _ in range(4)]
        for program in programs:
            program.heard()
        for program in programs:
            program.go()
        told = [program.heard() for program in programs]
        assert len({facts["url"] for facts in told}) == 1
        assert len({facts["pid"] for facts in told}) == 1
        for program in programs:
            program.go()
        said = [program.finished()[1] for program in programs]
        assert sum("for development" in text for text in said) == 1
        assert sorted(said)[:-1] == ["", "", ""]

    def test_the_notice_is_one_line_that_shows_the_way(self, project: Path, run: Callable[..., Program]):
        program = run("shared_server(); shared_server()")
        _, said = program.finished()
        assert said.count("\n") == 1
        assert "for development" in said
        assert "ends with this process" in said
        assert "COMMAND_BUS_URL" in said

    def test_a_folder_within_the_project_is_the_same_place(self, project: Path, run: Callable[..., Program]):
        inner = project / "src" / "package"
        inner.mkdir(parents=True)
        assert run(SHARE, cwd=inner).heard()["url"] == shared_server()

    def test_projects_are_apart(self, project: Path, tmp_path: Path):
        url = shared_server()
        other = tmp_path / "other"
        other.mkdir()
        assert shared_server(other) != url
        assert os.environ["COMMAND_BUS_EMBEDDED_URL"] == url
        assert shared_server(project) == url

    def test_a_crashed_server_is_replaced_by_its_owner(self, project: Path, guard: str, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(process, "GUARD", guard)
        url = shared_server()
        path = Path(url.removeprefix("unix://"))
        pid = process_id(path)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: not alive(pid))

        def is_free() -> bool:
            with try_to_lock(path.parent) as free:
                return free

        assert eventually(
            is_free
        )  # although its owner, and its watchdog if any, are alive; the last thread of a process may end late
        assert shared_server() == url
        assert process_id(path) not in {pid, None}
        assert [server.folder for server in server_module._live].count(path.parent) == 1

    def test_a_killed_owners_server_is_replaced(self, project: Path, run: Callable[..., Program]):
        owner = run(SHARE)
        first = owner.heard()
        assert shared_server() == first["url"]
        with connect(first["url"]) as client:
            client.set("key", "value")
        owner.kill()
        assert eventually(lambda: not alive(first["pid"]), within=2)
        url = shared_server()
        assert url == first["url"]
        with connect(url) as client:
            assert client.get("key") == "value"  # what it had is kept with the project
        assert process_id(Path(url.removeprefix("unix://"))) != first["pid"]

    def test_a_stale_socket_and_lock_are_no_obstacle(self, project: Path):
        url = shared_server()
        stop_shared_server()
        path = Path(url.removeprefix("unix://"))
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        (path.parent / "server.lock").write_text("1\n")
        assert shared_server() == url
        assert state_of(path) == "ready"

    def test_a_server_that_hangs_is_reported(self, project: Path, run: Callable[..., Program], monkeypatch: pytest.MonkeyPatch):
        from command_bus.embedded import development_server as shared

        pid = run(SHARE).heard()["pid"]
        monkeypatch.setattr(shared, "_PATIENCE", 0.2)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(TransportUnavailable, match=r"does not answer.*COMMAND_BUS_URL"):
                shared_server()
        finally:
            os.kill(pid, signal.SIGCONT)

    @pytest.mark.parametrize("inherits", [False, True])
    def test_an_unsafe_runtime_folder_is_refused(
        self, project: Path, runtime: Path, inherits: bool, monkeypatch: pytest.MonkeyPatch
    ):
        root = runtime / f"command_bus-{os.geteuid()}"
        root.mkdir(mode=0o755)
        with pytest.raises(InvalidSettings, match="open to other users"):
            shared_server()
        root.chmod(0o700)
        url = shared_server()
        stop_shared_server()
        monkeypatch.setenv("COMMAND_BUS_EMBEDDED_URL", url if inherits else "")
        next(root.iterdir()).chmod(0o770)
        with pytest.raises(InvalidSettings, match="open to other users"):
            shared_server()

    def test_children_inherit_it_wherever_they_run(self, project: Path, tmp_path: Path, run: Callable[..., Program]):
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        url = shared_server()
        child = run(SHARE, cwd=elsewhere)
        assert child.heard()["url"] == url
        child.go()
        assert child.finished() == ("", "")
        assert state_of(Path(url.removeprefix("unix://"))) == "ready"

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_multiprocessing_children_join(self, project: Path, run: Callable[..., Program], tmp_path: Path, method: str):
        script = tmp_path / "script.py"
        script.write_text(f"""
import multiprocessing, os, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from command_bus.embedded import shared_server, stop_shared_server
def child(queue):
    os.chdir("/")
    url = shared_server()
    stop_shared_server()
    queue.put((url, shared_server()))
if __name__ == "__main__":
    url = shared_server()
    context = multiprocessing.get_context({method!r})
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    same = queue.get(timeout=20) == (url, url)
    process.join()
    print(same, process.exitcode, shared_server() == url)
""")
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=30, check=False)
        assert done.stdout == "True 0 True\n", done.stderr
        assert done.stderr.count("for development") == 1  # the child did not have to start another

    def test_a_child_replaces_a_dead_server_at_the_same_place(self, project: Path, tmp_path: Path, run: Callable[..., Program]):
        owner = run(SHARE)
        url = owner.heard()["url"]
        child = run("wait()\n" + SHARE, cwd=tmp_path, COMMAND_BUS_EMBEDDED_URL=url)
        owner.kill()
        child.go()
        successor = child.heard()
        assert successor["url"] == url
        assert shared_server() == url
        assert process_id(Path(url.removeprefix("unix://"))) == successor["pid"]

    def test_a_vanished_runtime_folder_is_made_again(self, project: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch):
        url = shared_server()
        stop_shared_server()
        shutil.rmtree(next(runtime.iterdir()))
        monkeypatch.setenv("COMMAND_BUS_EMBEDDED_URL", url)
        assert shared_server() == url

    def test_a_variable_of_another_kind_is_explained(self, project: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("COMMAND_BUS_EMBEDDED_URL", "redis://localhost")
        with pytest.raises(InvalidSettings, match=r"name a server of your own with COMMAND_BUS_URL"):
            shared_server()

    def test_a_program_that_replaces_itself_starts_a_new_server(self, project: Path, run: Callable[..., Program]):
        code = """
url = shared_server()
if "again" in sys.argv: tell(url=url, pid=pid_at(url)); wait()
else: tell(url=url, pid=pid_at(url)); os.execv(sys.executable, [*sys.orig_argv, "again"])
"""
        program = run(code)
        before, after = program.heard(), program.heard()
        assert before["url"] == after["url"]
        assert before["pid"] != after["pid"]

    def test_a_forked_child_does_not_hold_the_lock(self, project: Path, run: Callable[..., Program]):
        code = """
import warnings; warnings.simplefilter("ignore", DeprecationWarning)
from command_bus.embedded.locks import locked
folder = Path(sys.argv[1])
with locked([folder]):
    child = os.fork()
    if child == 0:
        tell(forked=1); wait(); os._exit(0)
with locked([folder]):  # soon: the child may not have run yet
    tell(free=True); wait()
"""
        program = run(code, str(project))
        assert sorted(str(program.heard()) for _ in range(2)) == ["{'forked': 1}", "{'free': True}"]
        program.go()


class TestSharedPersistence:
    def test_data_survives_the_owner(self, project: Path, run: Callable[..., Program], monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("COMMAND_BUS_EMBEDDED_DIR", "data")
        owner = run(SHARE)
        first = owner.heard()
        with connect(first["url"]) as client:
            client.set("key", "value")
        owner.kill()
        assert (project / "data").is_dir()
        with connect(shared_server()) as client:
            assert client.get("key") == "value"

    def test_a_successor_is_not_stopped_by_the_first_owner(
        self, project: Path, run: Callable[..., Program], monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setenv("COMMAND_BUS_EMBEDDED_DIR", "data")
        path = Path(shared_server().removeprefix("unix://"))
        pid = process_id(path)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: not alive(pid))
        successor = run(SHARE).heard()
        assert successor["pid"] != pid
        stop_shared_server()
        assert process_id(path) == successor["pid"]

    def test_asking_for_what_runs_already_joins(self, project: Path, tmp_path: Path):
        url = shared_server(persistence=tmp_path / "data")
        assert shared_server() == url
        assert shared_server(persistence=tmp_path / "data") == url

    @pytest.mark.parametrize(("first", "where"), [(None, r"in .*/\.command_bus"), ("elsewhere", "in .*elsewhere")])
    def test_asking_for_another_folder_is_refused(self, project: Path, tmp_path: Path, first: str | None, where: str):
        shared_server(persistence=tmp_path / first if first else None)
        with pytest.raises(InvalidSettings, match=rf"{where}, not in .*data: end the program"):
            shared_server(persistence=tmp_path / "data")
