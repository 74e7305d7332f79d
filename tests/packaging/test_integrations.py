"""The distribution that lets Spark find the data source by itself: what it holds, and that importing it never fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "integrations" / "pyspark_command_bus"

# What Spark's lookup_data_sources.py does with each module whose name begins with `pyspark_`.
LOOKUP = """
import json, pyspark_command_bus as found
from pyspark.sql.datasource import DataSource
source = getattr(found, "DefaultSource", None)
said = None
if source is not None:
    assert issubclass(source, DataSource), source
    try:
        source({})
    except Exception as error:
        said = str(error)
print(json.dumps([source and source.name(), source and source.__module__, said]))
"""
PYSPARK = {
    "pyspark/__init__.py": "",
    "pyspark/sql/__init__.py": "",
    "pyspark/sql/datasource.py": "class DataSource:\n    def __init__(self, options):\n        self.options = options\n",
}
WORKING = {
    "command_bus/__init__.py": "",
    "command_bus/spark/__init__.py": "",
    "command_bus/spark/source.py": (
        "from pyspark.sql.datasource import DataSource\n"
        "class CommandBusSource(DataSource):\n"
        "    @classmethod\n"
        "    def name(cls): return 'command_bus'\n"
    ),
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(FOLDER)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert run.returncode == 0, run.stdout + run.stderr
    return next(out.glob("*.whl"))


def test_the_wheel_holds_one_module_for_spark_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = next(archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
    assert names == {f"pyspark_command_bus/{name}" for name in ("__init__.py", "unavailable.py", "py.typed")}
    assert "Requires-Dist: command-bus[spark]" in metadata


def test_it_allows_the_version_beside_it() -> None:
    ours, its = (tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"] for folder in (ROOT, FOLDER))
    assert its["version"] == ours["version"]
    assert its["requires-python"] == ours["requires-python"]
    assert (FOLDER / "LICENSE").read_text(encoding="utf-8") == (ROOT / "LICENSE").read_text(encoding="utf-8")


def found(wheel: Path, folder: Path, files: dict[str, str], code: str = LOOKUP) -> Any:
    """Return what a lookup gets from the wheel in a Python that has these modules and no others."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(wheel)])}
    command = [sys.executable, "-S", "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30, cwd=folder, env=environment)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_spark_finds_the_data_source(wheel: Path, tmp_path: Path) -> None:
    assert found(wheel, tmp_path, {**PYSPARK, **WORKING}) == ["command_bus", "command_bus.spark.source", None]


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({}, "ModuleNotFoundError: No module named 'command_bus'"),
        ({**WORKING, "command_bus/spark/source.py": "import redis"}, "ModuleNotFoundError: No module named 'redis'"),
        ({**WORKING, "command_bus/__init__.py": "raise TypeError('two versions mixed')"}, "TypeError: two versions mixed"),
        ({**WORKING, "command_bus/spark/source.py": ""}, "has no attribute 'CommandBusSource'"),
    ],
    ids=["nothing", "a dependency", "any error", "a name"],
)
def test_where_the_package_is_broken_the_format_says_why(
    wheel: Path, tmp_path: Path, broken: dict[str, str], reason: str
) -> None:
    name, module, said = found(wheel, tmp_path, {**PYSPARK, **broken})
    assert (name, module) == ("command_bus", "pyspark_command_bus.unavailable")
    assert said
    assert reason in said
    assert sys.executable in said
    assert "pip install 'command-bus[spark]'" in said


def test_without_spark_there_is_no_source_and_no_error(wheel: Path, tmp_path: Path) -> None:
    code = "import json, pyspark_command_bus as found; print(json.dumps(['DefaultSource' in vars(found), *found.__all__]))"
    assert found(wheel, tmp_path, {}, code) == [False]
