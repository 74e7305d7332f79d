#!/usr/bin/env python3
"""A Java for Spark: the first that is recent enough, of JAVA_HOME, PATH and the usual folders.

`python3 scripts/java.py` prints its home, or says that there is none and fails; with `--install`, root gets Debian's package first.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts import debian

OLDEST = 17  # the class files of Spark 4 are of this version
FOLDERS = ("/usr/lib/jvm/*", "/Library/Java/JavaVirtualMachines/*/Contents/Home", "/opt/homebrew/opt/openjdk*")
PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")  # releases of Debian and Ubuntu have one or the other
NONE = f"no Java {OLDEST} or later in JAVA_HOME, on PATH or in /usr/lib/jvm"


def find() -> Path | None:
    """Return the home of the first Java that runs and is recent enough, for JAVA_HOME."""
    seen: set[Path] = set()
    for program in _candidates():
        resolved = program.resolve()
        if resolved not in seen and (home := _fitting_home(program)) is not None:
            return home
        seen.add(resolved)
    return None


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if found := shutil.which("java"):
        yield Path(found)
    for pattern in FOLDERS:
        yield from (home / "bin" / "java" for home in sorted(Path("/").glob(pattern[1:])))


def _fitting_home(program: Path) -> Path | None:
    """Return the home that this Java reports; on PATH there may be a link to it, or a script that chooses one."""
    try:
        said = subprocess.run(
            [program, "-XshowSettings:properties", "-version"], capture_output=True, text=True, check=True, timeout=60
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    facts = dict(re.findall(r"^ *(java\.home|java\.specification\.version) = (.+)$", said, re.MULTILINE))
    version = facts.get("java.specification.version", "0").partition(".")[0]
    return Path(facts["java.home"]) if "java.home" in facts and int(version) >= OLDEST else None


def install() -> Path | None:
    """Install a package and return the home of the Java that then is there, None if it did not work: the reason is printed."""
    return debian.install_first(PACKAGES, find)


if __name__ == "__main__":
    debian.main(find, install, NONE)
