"""An environment for each peer, made once from pinned requirements under build/peers: never the project's own."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.field import Peer

__all__ = ["EnvironmentFailed", "install"]


class EnvironmentFailed(Exception):
    """A peer could not be installed."""


def install(peer: Peer) -> None:
    """Make the peer's environment, unless it is there as its requirements say.

    Raises:
        EnvironmentFailed: A tool is missing or failed.
    """
    stamp = peer.folder / ".installed"
    files = [each for each in (peer.requirements, peer.server_requirements) if each is not None]
    python = os.path.realpath(sys.executable).encode()
    wanted = hashlib.sha256(python + b"".join(each.read_bytes() for each in files)).hexdigest()
    if stamp.exists() and stamp.read_text(encoding="ascii") == wanted:
        return
    shutil.rmtree(peer.folder, ignore_errors=True)
    peer.folder.mkdir(parents=True)
    sys.stderr.write(f"benchmarks: installing {peer.name} {peer.version()} under build/peers, once\n")
    if peer.language == "Node":
        _with_npm(peer, peer.requirements)
    else:
        _with_python(peer)
    if peer.server_requirements is not None:
        _with_npm(peer, peer.server_requirements)
    stamp.write_text(wanted, encoding="ascii")


def _with_npm(peer: Peer, requirements: Path) -> None:
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise EnvironmentFailed("there is no node and npm on PATH")
    shutil.copy(requirements, peer.folder / "package.json")
    _run([npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--silent"], peer)


def _with_python(peer: Peer) -> None:
    uv, locked = shutil.which("uv"), ["--no-deps", "--require-hashes", "-r", str(peer.requirements)]
    python = str(peer.folder / "bin" / "python")
    if uv:
        _run([uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(peer.folder)], peer)
        _run([uv, "pip", "install", "--quiet", "--python", python, *locked], peer)
    else:
        _run([sys.executable, "-m", "venv", str(peer.folder)], peer)
        _run([python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *locked], peer)


def _run(command: Sequence[str], peer: Peer) -> None:
    done = subprocess.run(command, cwd=peer.folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EnvironmentFailed(f"{command[0]} failed with code {done.returncode}: {done.stderr.strip()[-500:]}")
