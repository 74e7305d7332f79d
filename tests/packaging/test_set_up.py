"""The two commands of the README rest on these: the lock, the script that installs it, and the Makefile over the script."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from scripts.setup import COMMANDS, EXTRAS, LOCK

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "setup.py"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pins() -> dict[str, list[str]]:
    """The locked versions by name; several where they differ between Pythons."""
    found: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^\s;\\]+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE):
        found.setdefault(canonicalize_name(name), []).append(version)
    return found


def requirements(extra: str | None = None) -> list[Requirement]:
    """What the project, or one of its extras, asks for; extras that name extras are followed."""
    texts = PROJECT["dependencies"] if extra is None else PROJECT["optional-dependencies"][extra]
    found: list[Requirement] = []
    for requirement in map(Requirement, texts):
        if requirement.name == PROJECT["name"]:
            found += [inner for name in requirement.extras for inner in requirements(name)]
        else:
            found.append(requirement)
    return found


# One order in every process: pytest-xdist compares what each worker collects.
NEEDED = sorted({each for extra in (None, *EXTRAS) for each in requirements(extra)}, key=str)


@pytest.mark.parametrize("requirement", NEEDED, ids=str)
def test_the_lock_answers_every_requirement(requirement: Requirement) -> None:
    locked = pins().get(canonicalize_name(requirement.name))
    assert locked, f"{requirement.name} is not in constraints.txt: run `make lock`"
    assert all(requirement.specifier.contains(Version(version), prereleases=True) for version in locked), "run `make lock`"


def test_every_locked_package_has_hashes() -> None:
    blocks = re.split(r"\n(?=\w)", re.sub(r"^#.*\n", "", LOCK.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert len(blocks) > 20
    assert not [block.partition(" ")[0] for block in blocks if "--hash=sha256:" not in block]


def test_the_lock_names_no_address() -> None:
    assert "://" not in LOCK.read_text(encoding="utf-8")


def test_spark_is_not_in_the_set_up() -> None:
    assert "pyspark" not in pins()


def test_the_build_backend_is_locked() -> None:
    """The project is built without isolation, so its backend has to come from the lock."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    assert {canonicalize_name(Requirement(text).name) for text in build} <= set(pins())


def test_the_script_needs_the_standard_library_only() -> None:
    tree = ast.parse(SCRIPT.read_text(encoding="utf-8"))
    plain = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    origins = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in plain | origins} <= sys.stdlib_module_names


def test_an_unknown_command_lists_the_known() -> None:
    run = subprocess.run([sys.executable, str(SCRIPT), "dance"], capture_output=True, text=True, check=False, timeout=30)
    assert run.returncode == 1
    assert all(command in run.stderr for command in COMMANDS)


def refusal(script: Path, changes: str) -> str:
    """What `setup.py setup` says when it gives up, in a Python that these statements have changed."""
    code = f"import importlib.util, runpy, shutil, sys\n{changes}\nsys.argv[1:] = ['setup']\n"
    code += f"runpy.run_path({str(script)!r}, run_name='__main__')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30)
    assert run.returncode == 1, run.stderr
    return run.stderr


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """The script in a copy that is not set up."""
    (tmp_path / "scripts").mkdir()
    for name in ("pyproject.toml", "constraints.txt", "scripts/setup.py"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    return tmp_path / "scripts" / "setup.py"


def test_an_old_python_is_told_what_is_needed(fresh: Path) -> None:
    assert "Python 3.11 or later is needed" in refusal(fresh, "sys.version_info = (3, 10, 4)\nshutil.which = lambda name: None")


def test_a_python_without_venv_is_told_what_to_install(fresh: Path) -> None:
    said = refusal(fresh, "shutil.which = importlib.util.find_spec = lambda name: None")
    assert "apt-get install python3-venv" in said
    assert not (fresh.parents[1] / ".venv" / ".set-up").exists()


def test_make_has_a_target_for_every_command() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = dict(re.findall(r"^([a-z-]+):.*\n\t@(.*)$", makefile, re.MULTILINE))
    assert set(targets) == {*COMMANDS, "help"}
    assert all(targets[command].startswith(f"$(SETUP) {command}") for command in COMMANDS)
