"""Runs a program as the systemd unit confines it, as far as the kernel does that for anybody: its system calls, no new privileges, no
memory that is writable and executable.

    python -m tests.deploy.confined UNIT PROGRAM ARGUMENT…

What the unit's groups of calls are, systemd says itself. Linux on x86-64 only.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

NUMBERS = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _EPERM = 0x7FFF0000, 0x00050001
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER, _MDWE = 38, 22, 2, 65


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def missing() -> str | None:
    """Return what this machine lacks for it; None if nothing."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return "only on Linux on x86-64"
    if shutil.which("systemd-analyze") is None:
        return "no systemd-analyze on PATH"
    return None if NUMBERS.exists() else f"no {NUMBERS} (linux-libc-dev)"


def allowed(unit: str) -> set[str]:
    """Return the calls that a unit's SystemCallFilter leaves."""
    names = group("@default")
    for words in re.findall(r"^SystemCallFilter=(.*)$", unit, re.MULTILINE):
        taken = words.startswith("~")
        for word in words.lstrip("~").split():
            names = names - group(word) if taken else names | group(word)
    return names


def group(name: str) -> set[str]:
    """Return the calls of a group, those of the groups in it included."""
    if not name.startswith("@"):
        return {name}
    listed = subprocess.run(["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True).stdout
    words = [line.split("#")[0].strip() for line in listed.splitlines()[1:]]
    return set().union(*(group(word) for word in words if word))


def confine(calls: set[str]) -> None:
    """Give up all other calls, for this process and what it becomes."""
    known = dict(re.findall(r"#define __NR_(\w+) (\d+)", NUMBERS.read_text(encoding="utf-8")))
    steps = [(_LOAD, 0, 0, 0)]
    for name in sorted(calls & known.keys()):
        steps += [(_EQUAL, 0, 1, int(known[name])), (_RETURN, 0, 0, _ALLOW)]
    steps.append((_RETURN, 0, 0, _EPERM))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = _Program(len(steps), ctypes.cast(code, ctypes.c_void_p).value)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_MDWE, 1, 0, 0, 0)  # kernels before 6.3 lack it
    for request in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SECCOMP, _FILTER, ctypes.byref(program), 0, 0)):
        if libc.prctl(*request):
            raise OSError(ctypes.get_errno(), "the kernel refuses to confine this process")


if __name__ == "__main__":
    confine(allowed(Path(sys.argv[1]).read_text(encoding="utf-8")))
    os.execv(sys.argv[2], sys.argv[2:])
