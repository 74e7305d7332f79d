#!/usr/bin/env python3
"""Set up what a command of this repository needs, then run it: nothing to install by hand, nothing outside the folder.

    python3 scripts/setup.py demo | demo-lite | demo-full | demo-stream | demo-shops | demo-checkout | demo-ledger | demo-together | test | test-all |
                             test-pythons | bench | bench-all | bench-spark | proofs | chaos | simulate | mutants | fuzz | docs | check | format |
                             setup | lock | clean   [arguments]

Any Python of 3.11 or later will do, and only its standard library is used. The first run makes `.venv` (by `uv` if there is one,
else by `venv` and `pip`) with exactly the versions and hashes of constraints.txt, and the project itself as an editable install.
Later runs see from a stamp in `.venv` that nothing has changed, and start at once. SETUP_VENV names another folder instead of `.venv`;
`test-pythons` makes `.venv-3.12` and its like so, by running this script under each of the other Pythons.

Spark is half a gigabyte and runs on Java. Its packages, in a lock of their own, are added by the first command that uses them: the
demo, the tests and the benchmark where there is a Java (the demo installs one if it may), the checks in any case, since type checkers read them.

pip refuses editable installs as soon as any requirement has a hash, so there are two steps: the locked packages with
`--require-hashes`, then the project without dependencies. Nothing is built in isolation, so that nothing unlocked gets in.
"""

import os
import shutil
import subprocess
import sys

if sys.version_info < (3, 11):  # noqa: UP036 - an older one runs this script up to here
    for minor in (14, 13, 12, 11):
        newer = shutil.which("python3.%d" % minor)  # noqa: UP031 - old pythons read this
        if newer and subprocess.call([newer, "-c", ""], stderr=subprocess.DEVNULL) == 0:
            os.execv(newer, [newer] + sys.argv)  # noqa: RUF005, S606 - the same script under a newer python
    sys.exit(
        "setup: Python 3.11 or later is needed, this is " + sys.version.split()[0] + "; try PYTHON=/path/to/python3.11 make …"
    )

import fcntl
import hashlib
import importlib.util
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # of this script alone Python would put its own folder there

from scripts import chromium, debian, java, pythons, redis62, typescript  # noqa: E402
from scripts import docs as site  # noqa: E402

VENV = ROOT / os.environ.get("SETUP_VENV", ".venv")
PYTHON = VENV / "bin" / "python"
PROCESSES = 2 * (os.cpu_count() or 1) + 1  # that run tests: many of them wait for something
CHECKED = ("command_bus", "tests", "examples", "scripts", "benchmarks", "integrations")
FASTER = ROOT / ".venv-bench"
SHAPE = tuple(f"tests/unit/test_{name}.py" for name in ("architecture", "docstrings", "exports", "sizes", "volume"))
LEFTOVERS = (".cache", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "build", "dist")


@dataclass(frozen=True)
class Part:
    """A part of the set-up, installed as one: the packages of a lock, which holds these extras, and a project of this repository."""

    name: str
    lock: Path
    extras: tuple[str, ...]
    project: Path
    size: str

    @property
    def stamp(self) -> Path:
        return VENV / f".set-up-{self.name}"

    def fingerprint(self) -> str:
        """Return a digest that changes with what must be installed, and with the folder (an editable install holds its path)."""
        digest = hashlib.sha256(str(self).encode())
        for file in (self.project / "pyproject.toml", self.lock):
            digest.update(file.read_bytes())
        return digest.hexdigest()

    def packages(self) -> list[str]:
        return sorted({line.partition("==")[0] for line in self.lock.read_text().splitlines() if "==" in line and line[0] != "#"})

    def locked(self, package: str) -> str:
        """Return the lines of one package."""
        _, line, after = self.lock.read_text().partition(f"\n{package}==")
        return line + after.partition("==")[0].rpartition("\n")[0]


BASE = Part("command_bus", ROOT / "constraints.txt", ("dev", "demo", "testing", "all"), ROOT, "150 MB")
SPARK = Part(
    "pyspark_command_bus", ROOT / "constraints-spark.txt", ("demo-spark",), ROOT / "integrations/pyspark_command_bus", "0.5 GB"
)

FUZZ_LOCK = ROOT / "constraints-fuzz.txt"
MUTANTS_LOCK = ROOT / "constraints-mutants.txt"

LOCK_HEADER = """\
# Every package of the set-up (extras {extras}), pinned by version and hash, for Python 3.11 and later on Linux and macOS.
# Written by `python3 scripts/setup.py lock` (arguments such as --upgrade are passed on to `uv pip compile`); do not edit.
# Install it {after}with: pip install --no-deps --no-build-isolation --require-hashes -r {file}
"""


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def environment(venv: Path = VENV) -> dict[str, str]:
    """Return what an activated `.venv` would set, so that `command-bus` is found on PATH and no other environment interferes."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "PYTHONPATH")}
    return {**kept, "VIRTUAL_ENV": str(venv), "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}


def is_set_up(part: Part) -> bool:
    return PYTHON.exists() and part.stamp.exists() and part.stamp.read_text() == part.fingerprint()


def set_up(*parts: Part) -> None:
    """Make the environment what the locks of these parts say, unless it is. Two terminals may do so at a time: the second waits."""
    if all(map(is_set_up, parts)):
        return
    VENV.mkdir(exist_ok=True)
    with (VENV / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for part in parts:
            if not is_set_up(part):
                part.stamp.unlink(missing_ok=True)
                if not install_with_uv(part):
                    install_with_pip(part)
                part.stamp.write_text(part.fingerprint())


def install_with_uv(part: Part) -> bool:
    """Return whether `uv` is there and could do it; if it could not, pip may: it reads other configuration."""
    uv = shutil.which("uv")
    if uv is None:
        return False
    install = [uv, "pip", "install", "--quiet", "--python", str(PYTHON), "--no-deps", "--no-build-isolation"]
    try:
        if not PYTHON.exists():
            run(
                f"creating {VENV.name} with uv and Python {sys.version.split()[0]}",
                [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(VENV)],
            )
        install_part(part, "uv", install)
    except subprocess.CalledProcessError as error:
        say(f"uv failed with exit code {error.returncode}; trying pip")
        return False
    return True


def install_with_pip(part: Part) -> None:
    if importlib.util.find_spec("ensurepip") is None:
        sys.exit(f"setup: {sys.executable} cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv")
    if not (PYTHON.exists() and (VENV / "bin" / "pip").exists()):
        run(f"creating {VENV.name} with Python {sys.version.split()[0]}", [sys.executable, "-m", "venv", str(VENV)])
    options = ["-qq", "--no-compile", "--use-pep517", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    install_part(part, "pip", [str(PYTHON), "-m", "pip", "install", *options])


def install_part(part: Part, tool: str, install: list[str]) -> None:
    if part is BASE:  # some packages come as source; all are built before any is installed, so what builds them goes ahead
        ahead = VENV / ".ahead.txt"
        ahead.write_text(part.locked("setuptools"))
        run(f"installing setuptools with {tool}", [*install, "--require-hashes", "-r", str(ahead)])
    run(
        f"installing {len(part.packages())} packages of {part.lock.name} with {tool} ({part.size}, once)",
        [*install, "--require-hashes", "-r", str(part.lock)],
    )
    run(f"installing {part.name} from this folder", [*install, "-e", str(part.project)])


def set_up_spark(home: Path | None) -> str | None:
    """Make Spark ready to run on this Java; return the reason if that fails."""
    if home is None:
        return java.NONE
    try:
        set_up(SPARK)
    except subprocess.CalledProcessError as error:
        return f"the packages of {SPARK.lock.name} could not be installed (exit code {error.returncode}, see above)"
    os.environ["JAVA_HOME"] = str(home)
    return None


def set_up_with_spark() -> None:
    """Set up the base and Spark; exit with the reason if Spark cannot run."""
    set_up(BASE)
    missing = set_up_spark(java.find())
    if missing is not None:
        sys.exit(f"setup: {missing}")


def run(what: str, command: list[str]) -> None:
    say(what)
    subprocess.run(command, check=True, cwd=ROOT, env=environment())


def become(command: list[str]) -> NoReturn:
    """Run the command in this process's place, so that signals and the exit code are its own."""
    say(f"running {' '.join(Path(part).name if part == str(PYTHON) else part for part in command)}")
    os.chdir(ROOT)
    os.execve(command[0], command, environment())  # noqa: S606 - no shell is wanted


def demo(arguments: list[str]) -> None:
    set_up(BASE)
    home = java.find()
    if home is None and debian.can_install():
        say(f"{java.NONE}: installing Debian's {java.PACKAGES[0]}, once")
        home = java.install()
    missing = set_up_spark(home)
    if missing is not None:
        say(f"{missing}: running the demo without Spark")
        demo_lite(arguments)
    become([str(PYTHON), "-m", "examples.flights", *arguments])


def demo_lite(arguments: list[str]) -> None:
    set_up(BASE)
    become([str(PYTHON), "-m", "examples.flights", "--lite", *arguments])


def demo_full(arguments: list[str]) -> None:
    demo(["--full", *arguments])


def test(arguments: list[str]) -> None:
    """Run the tests but the slow ones, conformance tests on some of the servers: in parallel. pytest names what was left out."""
    run_tests(["-m", "not slow", *arguments])


def test_all(arguments: list[str]) -> None:
    """Run all tests, conformance tests on every server, those of pages in a browser, those of the TypeScript client."""
    for tool, tests in ((chromium, "in a browser"), (typescript, "of the TypeScript client")):
        if tool.find() is None and debian.can_install():
            say(f"{tool.NONE}: installing Debian's, once")
            tool.install()
        if tool.find() is None:
            say(f"{tool.NONE}: the tests {tests} are skipped")
    os.environ.setdefault("COMMAND_BUS_TEST_SERVERS", "all")
    run_tests(arguments)


def run_tests(arguments: list[str]) -> None:
    set_up(BASE)
    missing = set_up_spark(java.find())
    if missing is not None:
        say(f"{missing}: the tests that need Spark are skipped")
    missing = redis62.fetch(VENV)
    if missing is not None:
        say(f"no Redis 6.2 ({missing}): its tests are skipped")
    become([str(PYTHON), "-m", "pytest", "-n", str(PROCESSES), "--dist", "loadgroup", *arguments])


def test_pythons(arguments: list[str]) -> None:
    """Run the tests of units on every other Python that is here, and those of one server on the newest; without Spark.

    Versions among the arguments choose, and so do tests: `test-pythons 3.13 tests/unit`.
    """
    others = pythons.others()
    chosen = [version for version in others if version in arguments] or others
    arguments = [argument for argument in arguments if argument not in others]
    found: dict[str, Path] = {}
    for version in chosen:
        python = pythons.find(version)
        if python is None:
            say(f"no Python {version} on PATH or in pyenv's folder: not tested on it")
        else:
            found[version] = python
    make_environments(found)
    newest = max(found, key=lambda version: [int(part) for part in version.split(".")], default="")
    folders = {version: ["tests/unit"] for version in found} | {newest: ["tests/unit", "tests/conformance"]}
    if any(argument.startswith("tests/") for argument in arguments):
        folders = {version: [] for version in found}
    failed = [version for version in found if not passes_on(version, [*folders[version], *arguments])]
    if failed:
        sys.exit(f"setup: the tests failed on Python {' and '.join(failed)}")


def make_environments(found: dict[str, Path]) -> None:
    """Run this script's set-up under each of these Pythons, all at a time: most of it is one process that unpacks."""
    environments = {version: {**os.environ, "SETUP_VENV": venv_of(version).name} for version in found}
    made = [subprocess.Popen([str(found[version]), __file__, "setup"], env=environments[version]) for version in found]
    if any([process.wait() for process in made]):  # noqa: C419 - all are waited for
        sys.exit("setup: an environment could not be made, see above")


def passes_on(version: str, arguments: list[str]) -> bool:
    say(f"testing on Python {version}")
    python = venv_of(version) / "bin" / "python"
    chosen = {"COMMAND_BUS_TEST_SERVERS": "valkey", **environment(venv_of(version))}
    quickly = ["-q", "-m", "not slow", "-n", str(PROCESSES)]
    command = [str(python), "-m", "pytest", *quickly, *arguments]
    return subprocess.run(command, cwd=ROOT, env=chosen, check=False).returncode == 0


def venv_of(version: str) -> Path:
    return ROOT / f".venv-{version}"


def demo_stream(arguments: list[str]) -> None:
    set_up_with_spark()
    become([str(PYTHON), "-m", "examples.retail", *arguments])


def demo_shops(arguments: list[str]) -> None:
    set_up(BASE)
    become([str(PYTHON), "-m", "examples.synchroniser", *arguments])


def demo_checkout(arguments: list[str]) -> None:
    set_up(BASE)
    become([str(PYTHON), "-m", "examples.checkout", *arguments])


def demo_together(arguments: list[str]) -> None:
    set_up(BASE)
    become([str(PYTHON), "-m", "examples.together", *arguments])


def demo_ledger(arguments: list[str]) -> None:
    set_up(BASE)
    become([str(PYTHON), "-m", "examples.ledger", *arguments])


def bench(arguments: list[str]) -> None:
    """Measure, on an interpreter that is built with a profile where there is one: what others are measured on, and run in production."""
    faster = None if "SETUP_VENV" in os.environ else pythons.faster()
    if faster is not None:
        say(f"measuring on {faster}, which is built with a profile; SETUP_VENV=.venv measures on this Python")
        os.environ["SETUP_VENV"] = FASTER.name
        become([str(faster), __file__, "bench", *arguments])
    set_up(BASE)
    become([str(PYTHON), "-m", "benchmarks", *arguments])


def bench_all(arguments: list[str]) -> None:
    bench(["--all", *arguments])


def bench_spark(arguments: list[str]) -> None:
    set_up_with_spark()
    become([str(PYTHON), "-m", "benchmarks.spark", *arguments])


def proofs(arguments: list[str]) -> None:
    set_up_with_spark()
    become([str(PYTHON), "-m", "tests.spark.proofs", *(arguments or ["all"])])


def add_tool(lock: Path) -> bool:
    """Install what this lock names into the environment; return whether that worked."""
    uv = shutil.which("uv")
    install = (
        [uv, "pip", "install", "--python", str(PYTHON)]
        if uv
        else [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check"]
    )
    install += ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", str(lock)]
    return subprocess.run(install, cwd=ROOT, env=environment(), capture_output=True, check=False).returncode == 0


def fuzz(arguments: list[str]) -> None:
    """Fuzz the decoders: with atheris where it can be had, else with hypothesis alone."""
    set_up(BASE)
    if not add_tool(FUZZ_LOCK):
        say(f"there is no atheris for Python {sys.version.split()[0]} on this machine: fuzzing with hypothesis alone")
    become([str(PYTHON), "-m", "tests.fuzz.decode", *arguments])


def chaos(arguments: list[str]) -> None:
    set_up(BASE)
    become([str(PYTHON), "-m", "tests.chaos", *arguments])


def simulate(arguments: list[str]) -> None:
    set_up(BASE)
    become([str(PYTHON), "-m", "tests.simulation", *arguments])


def mutants(arguments: list[str]) -> None:
    """Hunt the mutants of the list, and those that mutmut makes of pure modules, where mutmut can be had."""
    set_up(BASE)
    if not add_tool(MUTANTS_LOCK):
        say(f"the packages of {MUTANTS_LOCK.name} could not be installed: pure modules are not mutated")
    become([str(PYTHON), "-m", "tests.mutants", *arguments])


def docs(_arguments: list[str]) -> None:
    """Build the site: warnings are errors."""
    set_up(BASE)
    if site.main():
        sys.exit("setup: the documentation does not build, see above")
    say("the site is in build/site: open build/site/index.html")


def check(arguments: list[str]) -> None:
    """Run all checks, several at a time, also after one that failed: one run shows all errors."""
    set_up(BASE, SPARK)
    present = [name for name in CHECKED if (ROOT / name).is_dir()]
    steps = {
        "ruff check": ["ruff", "check", *(arguments or ["."])],
        "ruff format": ["ruff", "format", "--check", *(arguments or ["."])],
        "mypy": ["mypy", *(arguments or present)],
        "pyright": ["pyright", "--pythonpath", str(PYTHON), *(arguments or present)],
        "architecture": ["python", "-m", "pytest", "-q", *SHAPE],
        "commits": ["python", "-m", "scripts.commits"],
    }
    failed: list[str] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, done in zip(steps, pool.map(_checked, steps.values()), strict=True):
            say(name)
            print(done.stdout, end="", flush=True)
            if done.returncode != 0:
                failed.append(name)
    if failed:
        sys.exit(f"setup: failed: {', '.join(failed)}")
    say("all checks passed")


def _checked(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment; return how it ended, with all that it wrote."""
    program = [str(VENV / "bin" / command[0]), *command[1:]]
    return subprocess.run(
        program, cwd=ROOT, env=environment(), check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def format_code(arguments: list[str]) -> None:
    set_up(BASE)
    ruff = str(VENV / "bin" / "ruff")
    run("sorting imports and fixing what is safe to fix", [ruff, "check", "--fix-only", "--quiet", *(arguments or ["."])])
    become([ruff, "format", *(arguments or ["."])])


def only_set_up(_arguments: list[str]) -> None:
    set_up(BASE)
    say(f"ready: source {VENV.name}/bin/activate")


def lock(arguments: list[str]) -> None:
    """Pin all packages again. A pinned version stays unless pyproject.toml rules it out, or `--upgrade` is given."""
    uv = shutil.which("uv")
    if uv is None:
        sys.exit("setup: `lock` needs uv on PATH: python3 -m pip install uv, in a virtual environment")
    compiler = [uv, "pip", "compile", "pyproject.toml", "--universal", "--python-version", "3.11", "--generate-hashes"]
    compiler += ["--no-header", "--no-annotate", "--quiet", *arguments]
    compile_lock(BASE, compiler, left_out=["command-bus"])
    after = ["--constraint", str(BASE.lock)]
    compile_lock(SPARK, [*compiler, *after], left_out=["command-bus", *BASE.packages()], after=f"after {BASE.lock.name} ")
    given = [*compiler[:3], "-", *compiler[4:]]
    compile_tool_lock(site.LOCK, site.REQUIREMENTS, "of the documentation", given)
    left_out = [word for name in BASE.packages() for word in ("--no-emit-package", name)]
    compile_tool_lock(
        MUTANTS_LOCK, ("mutmut>=3.8",), "of `make mutants`", [*given, *after, *left_out], f"after {BASE.lock.name} "
    )


def compile_lock(part: Part, compiler: list[str], left_out: list[str], after: str = "") -> None:
    compiled = part.lock.with_suffix(".new")
    compiled.write_text(part.lock.read_text() if part.lock.exists() else "")
    options = [word for extra in part.extras for word in ("--extra", extra)]
    options += [word for name in left_out for word in ("--no-emit-package", name)]
    header = LOCK_HEADER.format(extras=", ".join(part.extras), after=after, file=part.lock.name)
    try:
        run(f"pinning every package in {part.lock.name}", [*compiler, *options, "-o", str(compiled)])
        part.lock.write_text(header + compiled.read_text())
    finally:
        compiled.unlink()


def compile_tool_lock(lock: Path, requirements: tuple[str, ...], purpose: str, compiler: list[str], after: str = "") -> None:
    say(f"pinning every package in {lock.name}")
    given = "\n".join(requirements)
    compiled = subprocess.run(compiler, input=given, text=True, stdout=subprocess.PIPE, check=True, cwd=ROOT, env=environment())
    header = LOCK_HEADER.replace("(extras {extras})", purpose).format(after=after, file=lock.name)
    lock.write_text(header + compiled.stdout)


def clean(_arguments: list[str]) -> None:
    for name in (".venv", ".venv-docs", FASTER.name, *(venv_of(version).name for version in pythons.TESTED), *LEFTOVERS):
        shutil.rmtree(ROOT / name, ignore_errors=True)
    say("removed the environments, caches and builds")


COMMANDS = {
    "demo": demo,
    "demo-lite": demo_lite,
    "demo-full": demo_full,
    "demo-stream": demo_stream,
    "demo-shops": demo_shops,
    "demo-checkout": demo_checkout,
    "demo-ledger": demo_ledger,
    "demo-together": demo_together,
    "test": test,
    "test-all": test_all,
    "test-pythons": test_pythons,
    "bench": bench,
    "bench-all": bench_all,
    "bench-spark": bench_spark,
    "proofs": proofs,
    "fuzz": fuzz,
    "docs": docs,
    "chaos": chaos,
    "simulate": simulate,
    "mutants": mutants,
    "check": check,
    "format": format_code,
    "setup": only_set_up,
    "lock": lock,
    "clean": clean,
}


def main(arguments: list[str]) -> None:
    if not arguments or arguments[0] not in COMMANDS:
        sys.exit(f"usage: python3 scripts/setup.py {' | '.join(COMMANDS)}   [arguments are passed on]")
    try:
        COMMANDS[arguments[0]](arguments[1:])
    except subprocess.CalledProcessError as error:
        sys.exit(f"setup: `{Path(error.cmd[0]).name}` failed with exit code {error.returncode}; its message is above")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main(sys.argv[1:])
