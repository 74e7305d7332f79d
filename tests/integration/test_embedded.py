"""Real servers, processes and signals: what an embedded server promises to its owner and to the processes that meet at it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from command_bus.embedded import EmbeddedServer, binary, locks, process
from command_bus.embedded import server as server_module
from command_bus.embedded.process import state_of
from command_bus.errors import MissingExtra, TransportUnavailable
from tests.integration.embedded_programs import LINUX, Program, alive, binaries, connect, eventually

pytestmark = pytest.mark.server


@pytest.fixture(params=binaries(), ids=lambda path: path.name)
def program(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture(params=["kernel", "pipe"] if LINUX else ["pipe"])
def guard(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks that are held are taken for held at once."""
    monkeypatch.setattr(locks, "_PATIENCE", 0.05)


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
        monkeypatch.setattr(server_module, "_DEADLINE", 0.3)
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

    def test_a_server_may_load_its_data_for_long(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        with EmbeddedServer.start(persistence=tmp_path) as server, connect(server.url) as client:
            pipeline = client.pipeline(transaction=False)
            for number in range(5000):
                pipeline.set(f"key {number}", "value")
            pipeline.execute()
        monkeypatch.setattr(server_module, "_DEADLINE", 0.7)
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
