"""Distributions that users install: the wheel holds the package and claims no other name, and the sdist is enough to build it from."""

from __future__ import annotations

import email.message
import email.parser
import json
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LINKS = ("transport", "serialization")


@dataclass(frozen=True)
class Built:
    wheel: Path
    sdist: Path

    def wheel_names(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return set(archive.namelist())

    def sdist_members(self) -> dict[str, tarfile.TarInfo]:
        """Return the members by path below the sdist's one top folder."""
        with tarfile.open(self.sdist) as archive:
            return {member.name.partition("/")[2]: member for member in archive.getmembers()}

    def metadata(self) -> email.message.Message:
        with zipfile.ZipFile(self.wheel) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            return email.parser.BytesParser().parsebytes(archive.read(name))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build an sdist of this folder, and a wheel built from that sdist: what is missing in one is missing in both."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert run.returncode == 0, run.stdout + run.stderr
    return Built(next(out.glob("*.whl")), next(out.glob("*.tar.gz")))


def package_files() -> set[str]:
    """Return the files of the package here, as a user would get them."""
    found = (path for path in (ROOT / "command_bus").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in found}


def test_the_wheel_claims_one_name(built: Built) -> None:
    tops = {name.partition("/")[0] for name in built.wheel_names()}
    assert tops == {"command_bus", f"command_bus-{PROJECT['version']}.dist-info"}


def test_the_wheel_holds_the_whole_package(built: Built) -> None:
    inside = {name for name in built.wheel_names() if name.startswith("command_bus/")}
    assert inside == package_files()
    assert "command_bus/py.typed" in inside


DASHBOARD = (".css", ".html", ".js", ".svg")
"""Suffixes of the dashboard's files."""


def test_the_wheel_holds_nothing_but_code_scripts_and_the_marker(built: Built) -> None:
    inside = (Path(name) for name in built.wheel_names() if name.startswith("command_bus/"))
    assert {path.suffix for path in inside} <= {".jinja", ".lua", ".py", ".ts", ".typed", *DASHBOARD}


def test_scripts_are_readable_from_the_zip(built: Built, tmp_path: Path) -> None:
    """Spark ships packages as zips: what is not Python has to be read through importlib.resources."""
    code = """
import json, sys
sys.path.insert(0, sys.argv[1])
import command_bus
from importlib.resources import files
lua = files("command_bus").joinpath("transport", "redis", "lua")
folders = [lua, *(item for item in lua.iterdir() if item.is_dir())]
names = [item.name for folder in folders for item in folder.iterdir() if item.name.endswith(".lua") and item.read_text()]
print(json.dumps([command_bus.__file__, sorted(names)]))
"""
    command = [sys.executable, "-I", "-c", code, str(built.wheel)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=30)
    assert run.returncode == 0, run.stderr
    origin, names = json.loads(run.stdout)
    assert origin.startswith(str(built.wheel))
    assert names == sorted(path.name for path in (ROOT / "command_bus").rglob("*.lua"))


def test_the_sdist_has_no_links(built: Built) -> None:
    members = built.sdist_members()
    assert not [name for name, member in members.items() if member.issym() or member.islnk()]
    assert not [name for name in members if name.partition("/")[0] in LINKS]


def test_the_sdist_has_what_a_packager_needs(built: Built) -> None:
    members = set(built.sdist_members())
    assert {
        "pyproject.toml",
        "PKG-INFO",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "constraints.txt",
        "constraints-spark.txt",
    } <= members
    assert {"tests/conftest.py", "scripts/setup.py", "Makefile", "integrations/pyspark_command_bus/pyproject.toml"} <= members
    assert package_files() <= members
    assert not [name for name in members if "__pycache__" in name or name.startswith((".git/", ".venv", "dist/"))]


def test_the_metadata_says_what_pyproject_says(built: Built) -> None:
    metadata = built.metadata()
    assert metadata["Name"] == "command-bus"
    assert metadata["Version"] == PROJECT["version"]
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Requires-Python"] == ">=3.11"
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])


def test_the_root_links_lead_into_the_package() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("the links are in the repository only")
    for link in LINKS:
        assert (ROOT / link).is_symlink()
        assert (ROOT / link).readlink() == Path("command_bus") / link
