#!/usr/bin/env python3
"""Debian's compiler of TypeScript, with which the generated client is compiled.

`python3 scripts/typescript.py` prints where it is, or says that there is none and fails; with `--install`, root gets Debian's package first.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts import debian

PACKAGES = ("node-typescript",)
NONE = "no tsc on PATH"


def find() -> Path | None:
    """Return the program."""
    found = shutil.which("tsc")
    return None if found is None else Path(found)


def install() -> Path | None:
    """Install the package and return the program, None if it did not work: the reason is printed."""
    return debian.install_first(PACKAGES, find)


if __name__ == "__main__":
    debian.main(find, install, NONE)
