"""The exit codes of the program, which the help of each command lists."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command but `worker` and `dev`."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNKNOWN = 3
    UNREACHABLE = 4
    INTERRUPTED = 130


class WorkerExitCode(IntEnum):
    """Exit codes of `worker` and `dev`; a second signal n gives 128 + n."""

    FINISHED = 0
    NOT_STARTED = 1
    USAGE = 2
    CUT_SHORT = 3
