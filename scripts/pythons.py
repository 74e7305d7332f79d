"""Finds the other Pythons: those that the tests run on, and one that is built for speed. On PATH, and in the folder of pyenv."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

TESTED = ("3.11", "3.12", "3.13")
"""The versions that every change is tested on, where there is an interpreter."""

_BUILD = """
import os, sys, sysconfig
options = sysconfig.get_config_var("CONFIG_ARGS") or ""
debian = os.path.realpath(sys.executable).startswith("/usr/bin/") and os.path.exists("/etc/debian_version")
print("PGO" if "--enable-optimizations" in options or debian else "no PGO")
"""
"""Debian profiles its builds with rules of its own, which no option shows."""

_PROBE = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"


def others() -> list[str]:
    """Return the tested versions without that of this interpreter."""
    mine = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return [version for version in TESTED if version != mine]


def find(version: str) -> Path | None:
    """Return an interpreter of this version that runs and can make virtual environments. A shim that fails is none."""
    on_path = shutil.which(f"python{version}")
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    of_pyenv = sorted((root / "versions").glob(f"{version}*/bin/python3"), key=_release, reverse=True)
    candidates = [*([Path(on_path)] if on_path else []), *of_pyenv]
    return next((python for python in candidates if _answers(python) == version), None)


def build(python: Path | str) -> str:
    """Return `PGO` of an interpreter that was built with a profile, which makes it 10 to 30 % faster; else `no PGO`."""
    return subprocess.run([python, "-c", _BUILD], capture_output=True, text=True, check=False, timeout=30).stdout.strip()


def faster() -> Path | None:
    """Return an interpreter that is built with a profile, the same version first; None if this one is, or there is none."""
    if build(sys.executable) == "PGO":
        return None
    mine = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for version in (mine, *others()):
        for python in (Path(f"/usr/bin/python{version}"), find(version)):
            if python is not None and _answers(python) == version and build(python) == "PGO":
                return python
    return None


def _release(python: Path) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", python.parent.parent.name)]


def _answers(python: Path) -> str | None:
    try:
        probe = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return probe.stdout.strip() if probe.returncode == 0 else None
