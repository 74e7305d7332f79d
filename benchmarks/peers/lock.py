"""Pins the Python peers again: `python -m benchmarks.peers.lock [--upgrade]`; needs uv. `package.json` is edited by hand.

No registry is named: requirement files have versions and hashes only, and npm's lock file, which would hold addresses, is not kept.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

from benchmarks.peers.field import PEERS

__all__ = ["main"]


def main(words: list[str]) -> None:
    uv = shutil.which("uv")
    if uv is None:
        sys.exit("benchmarks: pinning needs uv on PATH: python3 -m pip install uv, in a virtual environment")
    options = [
        "--universal",
        "--python-version",
        "3.11",
        "--generate-hashes",
        "--no-emit-index-url",
        "--no-header",
        "--no-annotate",
    ]
    for peer in PEERS:
        if peer.language == "Python":
            asked = str(peer.requirements.with_suffix(".in"))
            subprocess.run([uv, "pip", "compile", asked, "-o", str(peer.requirements), "--quiet", *options, *words], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
