"""`make test-pythons`: which interpreters count, where their environments are, and what is said of those that are missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from scripts import pythons, setup

ROOT = Path(__file__).resolve().parents[2]
MINE = f"{sys.version_info[0]}.{sys.version_info[1]}"


class Places:
    """A PATH and a folder of pyenv with interpreters that say what they are told to."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path, self._pyenv = folder / "bin", folder / "pyenv"
        self._path.mkdir()
        monkeypatch.setenv("PATH", f"{self._path}{os.pathsep}/usr/bin:/bin")
        monkeypatch.setenv("PYENV_ROOT", str(self._pyenv))

    def on_path(self, version: str, script: str) -> Path:
        return _program(self._path / f"python{version}", script)

    def in_pyenv(self, release: str, script: str) -> Path:
        folder = self._pyenv / "versions" / release / "bin"
        folder.mkdir(parents=True)
        return _program(folder / "python3", script)


def _program(place: Path, script: str) -> Path:
    place.write_text(f"#!/bin/sh\n{script}\n")
    place.chmod(0o755)
    return place


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    return Places(tmp_path, monkeypatch)


def test_one_on_path_is_taken_first(places: Places) -> None:
    wanted = places.on_path("3.12", "echo 3.12")
    places.in_pyenv("3.12.9", "echo 3.12")
    assert pythons.find("3.12") == wanted


def test_a_shim_that_fails_does_not_count(places: Places) -> None:
    places.on_path("3.12", "echo 3.12; exit 127")
    wanted = places.in_pyenv("3.12.1", "echo 3.12")
    assert pythons.find("3.12") == wanted


def test_the_newest_of_pyenv_is_taken_and_only_of_this_version(places: Places) -> None:
    places.in_pyenv("3.12.9", "echo 3.12")
    wanted = places.in_pyenv("3.12.10", "echo 3.12")
    places.in_pyenv("3.12.11", "exit 1")  # one that was not built to its end
    places.in_pyenv("3.13.0", "echo 3.13")
    assert pythons.find("3.12") == wanted


def test_none_is_none(places: Places) -> None:
    places.on_path("3.12", "echo 3.11")
    assert pythons.find("3.12") is None


def test_a_python_without_venv_does_not_count(places: Places) -> None:
    places.on_path(MINE, f'exec {sys.executable} -c \'import sys; sys.modules["ensurepip"] = None; exec(sys.argv[2])\' "$@"')
    assert pythons.find(MINE) is None
    wanted = places.in_pyenv(f"{MINE}.99", f'exec {sys.executable} "$@"')
    assert pythons.find(MINE) == wanted


def test_a_machine_without_others_says_so_and_passes(
    places: Places, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pythons, "others", lambda: ["3.97", "3.98"])
    setup.test_pythons([])
    assert capfd.readouterr().out == "".join(
        f"setup: no Python {version} on PATH or in pyenv's folder: not tested on it\n" for version in ("3.97", "3.98")
    )


def _run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, places: Places, *given: str, tests: str, made: str = "exit 0"
) -> list[str]:
    """Run `test-pythons` with an interpreter of 3.98 whose set-up and tests are these scripts; what was run."""
    log = tmp_path / "log"
    monkeypatch.setattr(pythons, "others", lambda: ["3.97", "3.98"])
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    _program(
        _folder(tmp_path / ".venv-3.98" / "bin") / "python", f'echo "$COMMAND_BUS_TEST_SERVERS $VIRTUAL_ENV $@" >>{log}\n{tests}'
    )
    places.in_pyenv("3.98.1", f'[ "$1" = -c ] && echo 3.98 && exit 0\necho "$SETUP_VENV $2" >>{log}\n{made}')
    try:
        setup.test_pythons([*given, "-n", "4"])
    finally:
        found = log.read_text().splitlines()
    return found


def _folder(place: Path) -> Path:
    place.mkdir(parents=True)
    return place


def test_each_gets_an_environment_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, places: Places) -> None:
    venv = tmp_path / ".venv-3.98"
    assert _run(monkeypatch, tmp_path, places, tests="exit 0") == [
        f"{venv.name} setup",
        f"valkey {venv} -m pytest -q -m not slow -n {setup.PROCESSES} tests/unit tests/conformance -n 4",
    ]


def test_tests_that_are_named_stand_for_the_usual_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, places: Places) -> None:
    ran = _run(monkeypatch, tmp_path, places, "3.98", "tests/unit", tests="exit 0")[-1]
    assert ran.endswith(f" -n {setup.PROCESSES} tests/unit -n 4")


def test_tests_that_fail_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, places: Places) -> None:
    with pytest.raises(SystemExit, match=r"the tests failed on Python 3\.98"):
        _run(monkeypatch, tmp_path, places, tests="exit 1")


def test_an_environment_that_cannot_be_made_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, places: Places) -> None:
    with pytest.raises(SystemExit, match="could not be made"):
        _run(monkeypatch, tmp_path, places, tests="exit 0", made="exit 1")


def test_this_one_is_not_tested_again() -> None:
    assert MINE not in pythons.others()
    assert set(pythons.others()) < set(pythons.TESTED) | {"none"}


def test_another_folder_can_be_set_up(tmp_path: Path) -> None:
    code = "from scripts import setup; print(setup.VENV, setup.PYTHON, setup.BASE.stamp, setup.environment()['VIRTUAL_ENV'])"
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "SETUP_VENV": ".venv-3.98"},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert all(place.startswith(str(ROOT / ".venv-3.98")) for place in run.stdout.split())


@pytest.mark.parametrize(
    ("options", "wanted"), [("'--enable-optimizations' '--with-lto'", "PGO"), ("'--enable-shared'", "no PGO")]
)
def test_the_build_of_an_interpreter_is_told_by_its_options(tmp_path: Path, options: str, wanted: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sysconfig\nsysconfig.get_config_var = lambda name: {options!r}\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    if Path(sys.executable).resolve().parent == Path("/usr/bin"):
        pytest.skip("a distribution's interpreter is profiled whatever its options say")
    assert pythons.build(python) == wanted


def test_the_benchmark_runs_on_a_faster_interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    builds = {sys.executable: "no PGO", str(tmp_path / "slow"): "no PGO", str(tmp_path / "fast"): "PGO"}
    found = {pythons.others()[0]: tmp_path / "slow", pythons.others()[1]: tmp_path / "fast"}
    monkeypatch.setattr(pythons, "build", lambda python: builds.get(str(python), "no PGO"))
    monkeypatch.setattr(pythons, "find", found.get)
    monkeypatch.setattr(pythons, "_answers", lambda python: next((key for key, value in found.items() if value == python), None))
    assert pythons.faster() == tmp_path / "fast"
    builds[sys.executable] = "PGO"
    assert pythons.faster() is None


def test_clean_removes_their_environments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    folders = [
        _folder(tmp_path / name) for name in (".venv", ".venv-docs", ".venv-bench", *(f".venv-{each}" for each in pythons.TESTED))
    ]
    setup.clean([])
    assert not [folder for folder in folders if folder.exists()]


def test_readme_and_package_name_the_versions() -> None:
    """Check that the texts name the tested versions only: one that should work has its classifier, and its place in the README."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    classified = {each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r"Python :: 3\.\d+$", each)}
    row = next(line for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("| Python |"))
    _, _, _, tested, untested, _ = row.split("|")
    assert set(re.findall(r"3\.\d+", tested)) == set(pythons.TESTED)
    assert set(re.findall(r"3\.\d+", untested)) == classified - set(pythons.TESTED)
