"""Packages of Debian and Ubuntu, for root, without a question."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_APT = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]


def can_install() -> bool:
    """Return whether a package can be installed without a question."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install_first(packages: Sequence[str], find: Callable[[], Path | None]) -> Path | None:
    """Install the first package that brings what is looked for, and return that; None if none does: the reason is printed."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    steps = [[*_APT, "update"], *([*_APT, "install", "-y", "--no-install-recommends", package] for package in packages)]
    for step in steps:  # a list that could not be updated matters only if the package is not found
        done = subprocess.run(step, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode == 0 and (found := find()) is not None:
            return found
        for line in done.stderr.strip().splitlines()[-1:]:
            print(f"{' '.join(step[-1:])}: {line}", file=sys.stderr)
    return None


def main(find: Callable[[], Path | None], install: Callable[[], Path | None], none: str) -> None:
    """Print where a program is; with `--install`, install it first if it is not there. End with `none` if there still is none."""
    found = find()
    if found is None and "--install" in sys.argv[1:] and can_install():
        found = install()
    if found is None:
        sys.exit(none)
    print(found)
