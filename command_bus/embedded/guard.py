"""A program, not a module: ties itself to the life of the process that started it, and becomes the given command.

    python -I -S guard.py MODE OWNER COMMAND…

`kernel` (Linux) asks the kernel for a SIGKILL when the parent dies. The child must ask, between fork and exec, where Python cannot
safely run code if the program has threads (`preexec_fn`). So a fresh interpreter asks and then execs. `pipe` (elsewhere) leaves a
small child behind that waits for end of file on standard input; the owner holds the other end.

SIGKILL, because a server that takes a tenth of a second to shut down still answers, and the next process would join a dying server. An
append-only file loses nothing that the operating system has: all acknowledged writes, unless the disk cannot keep up.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(mode: str, owner: str, *command: str) -> None:
    """Guard this process, then become `command`."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a thread with blocked signals would hand its mask down to the server
    if mode == "kernel":
        _ask_kernel(int(owner))
    else:
        _leave_watchdog()
    try:
        os.execv(command[0], command)  # noqa: S606 - becoming the command is this program's purpose
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


def _ask_kernel(owner: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, *(ctypes.c_ulong(value) for value in (signal.SIGKILL, 0, 0, 0))) != 0:
        sys.exit("prctl: " + os.strerror(ctypes.get_errno()))
    if os.getppid() != owner:  # it died before the request: no signal will come
        sys.exit("the owner is gone")


def _leave_watchdog() -> None:
    server = os.getpid()
    nothing = os.open(os.devnull, os.O_RDWR)
    if os.fork() != 0:
        os.dup2(nothing, 0)  # only the watchdog reads the pipe
        return
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    os.closerange(3, max(os.sysconf("SC_OPEN_MAX"), 1024))  # above all the locks: they are the server's, not the watchdog's
    while os.read(0, 64):
        pass
    if os.getppid() == server:  # still our parent, so alive, and the number is not another process's by now
        os.kill(server, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
