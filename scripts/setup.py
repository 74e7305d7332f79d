#!/usr/bin/env python3
"""Sets up what a command of this repository needs, then runs it: nothing to install by hand, nothing outside the folder.

    python3 scripts/setup.py demo | demo-full | test | check | format | setup | lock | clean   [arguments are passed on]

Any Python of 3.11 or later will do, and only its standard library is used. The first run makes `.venv` (by `uv` if there is one,
else by `venv` and `pip`) with exactly the versions and hashes of constraints.txt, and the project itself as an editable install.
Later runs see from a stamp in `.venv` that nothing has changed, and start at once.

pip refuses editable installs as soon as any requirement has a hash, so there are two steps: the locked packages with
`--require-hashes`, then the project without dependencies and, so that nothing unlocked gets in, without build isolation.
"""

import os
import shutil
import subprocess
import sys

if sys.version_info < (3, 11):  # noqa: UP036 - an older one runs this script up to here, and is told
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
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".set-up"
LOCK = ROOT / "constraints.txt"
EXTRAS = ("dev", "demo", "testing", "all")
CHECKED = ("command_bus", "tests", "examples", "scripts", "benchmarks")
LEFTOVERS = (".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "build", "dist")

LOCK_HEADER = """\
# Every package of the set-up (extras {extras}), pinned by version and hash, for Python 3.11 and later on Linux and macOS.
# Written by `python3 scripts/setup.py lock` (arguments such as --upgrade are passed on to `uv pip compile`); do not edit.
# Install it with: pip install --no-deps --require-hashes -r constraints.txt
"""


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def environment() -> dict[str, str]:
    """What an activated `.venv` would set, so that `command-bus` is found on PATH and no other environment interferes."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "PYTHONPATH")}
    return {**kept, "VIRTUAL_ENV": str(VENV), "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}


def fingerprint() -> str:
    """Changes whenever what has to be installed changes, or the folder was moved (an editable install holds its path)."""
    digest = hashlib.sha256(f"{ROOT} {EXTRAS}".encode())
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def is_set_up() -> bool:
    return PYTHON.exists() and STAMP.exists() and STAMP.read_text() == fingerprint()


def set_up() -> None:
    """Make `.venv` what constraints.txt says, unless it is. Two terminals may do so at a time: the second waits."""
    if is_set_up():
        return
    VENV.mkdir(exist_ok=True)
    with (VENV / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_set_up():
            STAMP.unlink(missing_ok=True)
            if not install_with_uv():
                install_with_pip()
            STAMP.write_text(fingerprint())


def install_with_uv() -> bool:
    """Whether `uv` is there and could do it; if it could not, pip may: it reads other configuration."""
    uv = shutil.which("uv")
    if uv is None:
        return False
    install = [uv, "pip", "install", "--quiet", "--python", str(PYTHON), "--no-deps"]
    try:
        if not PYTHON.exists():
            run(
                f"creating .venv with uv and Python {sys.version.split()[0]}",
                [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(VENV)],
            )
        run(f"installing {locked_packages()} locked packages with uv", [*install, "--require-hashes", "-r", str(LOCK)])
        run("installing command_bus from this folder", [*install, "--no-build-isolation", "-e", str(ROOT)])
    except subprocess.CalledProcessError as error:
        say(f"uv failed with exit code {error.returncode}; trying pip")
        return False
    return True


def install_with_pip() -> None:
    if importlib.util.find_spec("ensurepip") is None:
        sys.exit(f"setup: {sys.executable} cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv")
    if not (PYTHON.exists() and (VENV / "bin" / "pip").exists()):
        run(f"creating .venv with Python {sys.version.split()[0]}", [sys.executable, "-m", "venv", str(VENV)])
    install = [
        str(PYTHON),
        "-m",
        "pip",
        "install",
        "-qq",
        "--no-compile",
        "--use-pep517",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    run(
        f"installing {locked_packages()} locked packages with pip (170 MB, once; a minute or so)",
        [*install, "--require-hashes", "-r", str(LOCK)],
    )
    run("installing command_bus from this folder", [*install, "--no-build-isolation", "-e", str(ROOT)])


def locked_packages() -> int:
    return len({line.partition("==")[0] for line in LOCK.read_text().splitlines() if "==" in line and not line.startswith("#")})


def run(what: str, command: list[str]) -> None:
    say(what)
    subprocess.run(command, check=True, cwd=ROOT, env=environment())


def become(command: list[str]) -> None:
    """Run the command in this process's place, so that signals and the exit code are its own."""
    say(f"running {' '.join(Path(part).name if part == str(PYTHON) else part for part in command)}")
    os.chdir(ROOT)
    os.execve(command[0], command, environment())  # noqa: S606 - no shell is wanted


def demo(arguments: list[str]) -> None:
    set_up()
    become([str(PYTHON), "-m", "examples.flights", *arguments])


def demo_full(arguments: list[str]) -> None:
    demo(["--full", *arguments])


def test(arguments: list[str]) -> None:
    set_up()
    become([str(PYTHON), "-m", "pytest", *arguments])


def check(arguments: list[str]) -> None:
    """All checks, also after one that failed: one run shows everything that is to be mended."""
    set_up()
    present = [name for name in CHECKED if (ROOT / name).is_dir()]
    steps = {
        "ruff check": ["ruff", "check", *(arguments or ["."])],
        "ruff format": ["ruff", "format", "--check", *(arguments or ["."])],
        "mypy": ["mypy", *(arguments or present)],
        "pyright": ["pyright", "--pythonpath", str(PYTHON), *(arguments or present)],
        "architecture": ["python", "-m", "pytest", "-q", "tests/unit/test_architecture.py"],
    }
    failed: list[str] = []
    for name, command in steps.items():
        try:
            run(name, [str(VENV / "bin" / command[0]), *command[1:]])
        except subprocess.CalledProcessError:
            failed.append(name)
    if failed:
        sys.exit(f"setup: failed: {', '.join(failed)}")
    say("all checks passed")


def format_code(arguments: list[str]) -> None:
    set_up()
    ruff = str(VENV / "bin" / "ruff")
    run("sorting imports and mending what is safe to mend", [ruff, "check", "--fix-only", "--quiet", *(arguments or ["."])])
    become([ruff, "format", *(arguments or ["."])])


def only_set_up(_arguments: list[str]) -> None:
    set_up()
    say("ready: source .venv/bin/activate")


def lock(arguments: list[str]) -> None:
    """Pin anew. What is pinned already stays unless pyproject.toml rules it out, or `--upgrade` is given."""
    uv = shutil.which("uv")
    if uv is None:
        sys.exit("setup: `lock` needs uv on PATH: python3 -m pip install uv, in a virtual environment")
    extras = [part for extra in EXTRAS for part in ("--extra", extra)]
    compiled = LOCK.with_suffix(".new")
    compiled.write_text(LOCK.read_text() if LOCK.exists() else "")
    options = ["--universal", "--python-version", "3.11", "--generate-hashes", "--no-header", "--no-annotate", "--quiet"]
    command = [
        uv,
        "pip",
        "compile",
        "pyproject.toml",
        *extras,
        *options,
        "--no-emit-package",
        "command-bus",
        "-o",
        str(compiled),
        *arguments,
    ]
    try:
        run("pinning every package in constraints.txt", command)
        LOCK.write_text(LOCK_HEADER.format(extras=", ".join(EXTRAS)) + compiled.read_text())
    finally:
        compiled.unlink()


def clean(_arguments: list[str]) -> None:
    for name in (".venv", *LEFTOVERS):
        shutil.rmtree(ROOT / name, ignore_errors=True)
    say("removed .venv, caches and builds")


COMMANDS = {
    "demo": demo,
    "demo-full": demo_full,
    "test": test,
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
