"""Finds the other Pythons that the tests run on: on PATH, and in the folder of pyenv."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

TESTED = ("3.11", "3.12", "3.13")
"""The versions that every change is tested on, where there is an interpreter."""

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


def _release(python: Path) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", python.parent.parent.name)]


def _answers(python: Path) -> str | None:
    try:
        probe = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return probe.stdout.strip() if probe.returncode == 0 else None
