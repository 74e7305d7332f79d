"""mypy and pyright agree with the annotations in `cases`: what is right has its exact type, what is wrong is an error.

In the cases `assert_type` states types, and each expected error has an ignore comment, which is an error where it is not needed.
So a case is right if the checker has nothing to say; and without the comments it must print_error at exactly those lines.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CASES = sorted((Path(__file__).parent / "cases").glob("*.py"))
NEEDS = {"call_replies": "command_bus.bus", "injection": "dependency_injector"}

pytestmark = pytest.mark.timeout(300)


def available() -> list[Path]:
    """Return the cases whose modules there are."""
    return [case for case in CASES if importlib.util.find_spec(NEEDS.get(case.stem, "command_bus")) is not None]


def ran(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"MYPYPATH": str(ROOT), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=240, check=False)


def mypy(cases: list[Path], cache: Path) -> list[str]:
    """Return what mypy has to say, as `file:line message`."""
    run = ran("mypy", "--strict", "--config-file=", "--scripts-are-modules", f"--cache-dir={cache}", "--no-error-summary", *cases)
    assert run.returncode in (0, 1), run.stderr + run.stdout
    return [line for line in run.stdout.splitlines() if ": error:" in line and "/cases/" in line.replace(os.sep, "/")]


def pyright(project: Path) -> list[str]:
    """Return what pyright has to say, as `file:line message`."""
    run = ran("pyright", "--outputjson", "--pythonpath", sys.executable, "--project", project)
    assert run.stdout.startswith("{"), run.stderr + run.stdout
    report = json.loads(run.stdout)
    assert report["summary"]["filesAnalyzed"] > 0
    return [f"{item['file']}:{item['range']['start']['line'] + 1} {item['message']}" for item in report["generalDiagnostics"]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a folder with the cases that can be checked here, and pyright's settings."""
    (tmp_path / "cases").mkdir()
    for case in available():
        shutil.copy(case, tmp_path / "cases" / case.name)
    settings = json.loads((Path(__file__).parent / "pyrightconfig.json").read_text(encoding="utf-8"))
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps(settings | {"extraPaths": [str(ROOT)], "include": ["cases", "bare"]}), encoding="utf-8"
    )
    return tmp_path


def without_ignores(project: Path) -> set[str]:
    """Put copies of the cases beside them that lack the ignore comments, and say where those were."""
    places: set[str] = set()
    (project / "bare" / "cases").mkdir(parents=True)
    for case in (project / "cases").glob("*.py"):
        lines = case.read_text(encoding="utf-8").splitlines()
        places |= {f"{case.name}:{number}" for number, line in enumerate(lines, start=1) if "# type: ignore[" in line}
        bare = "\n".join(re.sub(r"  # type: ignore\[.*$", "", line) for line in lines) + "\n"
        (project / "bare" / "cases" / case.name).write_text(bare, encoding="utf-8")
    return places


def places_of(messages: list[str]) -> set[str]:
    """`case.py:12` of each message."""
    found = {re.search(r"([\w.]+):(\d+)", message.replace(os.sep, "/").rpartition("/cases/")[2]) for message in messages}
    return {match.group(0) for match in found if match is not None}


def test_mypy_finds_what_is_wrong_and_nothing_else(project: Path) -> None:
    mistakes = without_ignores(project)  # both runs have one cache: reading the package is most of the time
    assert mypy(sorted((project / "cases").glob("*.py")), project / "cache") == []
    assert places_of(mypy(sorted((project / "bare" / "cases").glob("*.py")), project / "cache")) == mistakes


def test_pyright_finds_what_is_wrong_and_nothing_else(project: Path) -> None:
    mistakes = without_ignores(project)
    found = pyright(project)
    assert [message for message in found if "/bare/" not in message.replace(os.sep, "/")] == []
    assert places_of(found) == mistakes
