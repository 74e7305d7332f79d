#!/usr/bin/env python3
"""Debian's chromium, in which the dashboard is tested.

`python3 scripts/chromium.py` prints where it is, or says that there is none and fails; with `--install`, root gets Debian's package first.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts import debian

NAMES = ("chromium", "chromium-browser")
PACKAGES = ("chromium",)
NONE = "no chromium on PATH"


def find() -> Path | None:
    """Return the program."""
    return next((Path(found) for name in NAMES if (found := shutil.which(name)) is not None), None)


def install() -> Path | None:
    """Install the package and return the program, None if it did not work: the reason is printed."""
    return debian.install_first(PACKAGES, find)


if __name__ == "__main__":
    debian.main(find, install, NONE)
