"""The ways in which the library reaches executors that lack it, each with a Python of its own.

These Pythons are bare virtual environments that borrow the packages of this one by a path, which leaves out what is installed as
editable: so they have all that the library needs, but not the library. Their cluster does not know this checkout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.spark.cluster import Cluster
from tests.spark.conftest import ROOT, SETTINGS
from tests.spark.proofs.claims import Proof
from tests.spark.trucks import Namespace

__all__ = ["ship"]

ROWS = 1000
SHIPPED = """
from command_bus import Command, EntityId
class Carry(Command[None], entity="truck"):
    truck: EntityId
    seq: int
"""
Answer = dict[str, str]


def ship(proof: Proof, cluster: Cluster, namespace: Namespace, ways: list[str]) -> None:
    """Run the ways."""
    yard = Yard(cluster)
    for name in ways or list(WAYS):
        print(f" {name}: {WAYS[name].__doc__}")
        with proof.timed(name):
            WAYS[name](proof, yard, Namespace(namespace.url))


@dataclass
class Yard:
    """Builds environments once, and runs jobs."""

    cluster: Cluster
    made: dict[str, Path] = field(default_factory=dict[str, Path])

    @property
    def folder(self) -> Path:
        return self.cluster.folder

    def python(self, name: str, *wheels: Path) -> Path:
        """Return a virtual environment with all dependencies of the library, and with these wheels."""
        home = self.folder / name
        venv.create(home, with_pip=False, symlinks=True)
        site = next(home.glob("lib/python*/site-packages"))
        (site / "borrowed.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
        python = home / "bin" / "python"
        if wheels:
            install = ["install", "--quiet", "--no-deps", "--no-index", "--ignore-installed", *map(str, wheels)]
            subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True, env=_plain())
        return python

    @cached_property
    def bare(self) -> Path:
        """A Python without the library."""
        python = self.python("bare")
        found = subprocess.run(
            [python, "-c", "import command_bus"], cwd=self.folder, env=_plain(), capture_output=True, check=False
        )
        assert found.returncode, "the library is installed in this environment, and not as editable: the bare one has it, too"
        return python

    @cached_property
    def wheels(self) -> list[Path]:
        """The wheels of the library, and of the distribution by which Spark finds its format."""
        out = self.folder / "dist"
        for project in (ROOT, ROOT / "integrations" / "pyspark_command_bus"):
            build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", out, project]
            subprocess.run(build, check=True, capture_output=True)
        return sorted(out.glob("*.whl"))

    @cached_property
    def installed(self) -> Path:
        """A Python with both wheels installed."""
        return self.python("installed", *self.wheels)

    @cached_property
    def zipped(self) -> Path:
        """A zip of the whole package."""
        archive = self.folder / "command_bus.zip"
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
            for file in sorted((ROOT / "command_bus").rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    target.write(file, file.relative_to(ROOT))
        return archive

    def job(
        self,
        namespace: Namespace,
        driver: Path,
        *,
        files: tuple[Path, ...] = (),
        imports: bool,
        python: str = "",
        **settings: str,
    ) -> Answer:
        """Run the job, and return its output."""
        shipped = self.folder / "shipped.py"
        shipped.write_text(SHIPPED)
        conf = {
            **SETTINGS,
            "spark.executor.memory": "700m",
            "spark.submit.pyFiles": ",".join(map(str, (shipped, *files))),
            **settings,
        }
        words = ["--master", self.cluster.url, *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}"))]
        submit = " ".join(f'"{word}"' for word in words)
        environment = _plain() | {"PYSPARK_PYTHON": python or str(driver), "PYSPARK_SUBMIT_ARGS": f"{submit} pyspark-shell"}
        script = Path(__file__).with_name("ship_job.py")
        run = subprocess.run(
            [driver, script, namespace.url, namespace.name, str(ROWS), str(imports)],
            cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        lines = [line for line in run.stdout.splitlines() if line.startswith("ANSWER ")]
        if not lines:
            return {"python": "", "library": "", "problem": run.stderr[-1500:]}
        answer: Answer = json.loads(lines[0].removeprefix("ANSWER "))
        return answer


def by_zip(proof: Proof, yard: Yard, namespace: Namespace) -> None:
    """--py-files command_bus.zip; the driver imports command_bus.spark"""
    answer = yard.job(namespace, yard.bare, files=(yard.zipped,), imports=True)
    arrived(proof, namespace, answer)
    proof.claim("executors import it from the zip", "command_bus.zip" in answer["library"], answer["library"])


def by_wheel(proof: Proof, yard: Yard, namespace: Namespace) -> None:
    """--py-files with a wheel: Spark sends it and does not import from it"""
    answer = yard.job(namespace, yard.bare, files=(yard.wheels[0],), imports=False)
    proof.claim(
        "it does not work, as documented",
        not namespace.landed() and answer["problem"],
        answer["problem"][:150].replace("\n", " "),
    )
    proof.claim("because no process can import it", "No module named 'command_bus'" in answer["library"], answer["library"])


def by_install(proof: Proof, yard: Yard, namespace: Namespace) -> None:
    """pip install in the Python of driver and executors, or in their container; Spark finds the format by itself"""
    answer = yard.job(namespace, yard.installed, imports=False)
    arrived(proof, namespace, answer)
    proof.claim("executors import what is installed", str(yard.installed.parents[1]) in answer["library"], answer["library"])


def by_archive(proof: Proof, yard: Yard, namespace: Namespace) -> None:
    """spark.archives=environment.tar.gz#environment with a whole virtual environment; the driver has a link of that name"""
    home = yard.installed.parents[1]
    archive = yard.folder / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as target:
        target.add(home, arcname=".")
    link = yard.folder / "environment"
    link.symlink_to(home)  # the driver plans with the same PYSPARK_PYTHON
    answer = yard.job(
        namespace,
        yard.installed,
        imports=False,
        python="./environment/bin/python",
        **{"spark.archives": f"{archive}#environment"},
    )
    arrived(proof, namespace, answer)
    here = str(yard.folder / "work")
    proof.claim(
        "executors run the Python of the archive",
        here in answer["python"] or "./environment" in answer["python"],
        answer["python"],
    )
    proof.claim("and import from it", here in answer["library"], answer["library"])


def arrived(proof: Proof, namespace: Namespace, answer: dict[str, Any]) -> None:
    """Check that every row is in its mailbox once, in order."""
    landed = namespace.landed()
    proof.claim(
        "every row landed once, in order",
        len(landed) == ROWS and namespace.seqs() == EXPECTED,
        answer["problem"] or f"{len(landed):,}",
    )


EXPECTED = {f"t{truck}": list(range(ROWS // 10)) for truck in range(10)}
WAYS: dict[str, Callable[[Proof, Yard, Namespace], None]] = {
    "zip": by_zip,
    "wheel": by_wheel,
    "installed": by_install,
    "archive": by_archive,
}


def _plain() -> dict[str, str]:
    """Return the environment without variables that lead to this checkout."""
    hidden = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_SUBMIT_ARGS", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in hidden}
