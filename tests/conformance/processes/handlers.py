"""Handlers that run in processes, and end in many ways; a child process finds them by name."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from command_bus import Command, EntityId, HandlerRegistry, ProcessContext, Reject, RetryPolicy

ONCE = RetryPolicy(attempts=1)


class Compute(Command[int], entity="sheet", retry=ONCE):
    sheet: EntityId
    how: str = "returns"
    value: int = 0


class Slow(Command[int], entity="sheet", retry=ONCE, attempt_timeout=0.5):
    sheet: EntityId
    how: str = "sleeps"
    value: int = 0


class Careful(Command[int], entity="sheet", delivery="at_most_once"):
    sheet: EntityId
    how: str = "returns"
    value: int = 0


class Again(Command[int], entity="sheet", retry=RetryPolicy(attempts=3, delay=0.01)):
    sheet: EntityId


class Told(Command[list[str]], entity="sheet"):
    sheet: EntityId


class Odd(Exception):
    """An exception that cannot be packed."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")
        self.lock = threading.Lock()


class Unreadable(Exception):
    """An exception that has no text, and whose packing fails."""

    def __str__(self) -> str:
        raise RuntimeError

    def __reduce__(self) -> Any:
        raise RuntimeError


class Doubled(Command[bytes], entity="sheet", retry=ONCE):
    sheet: EntityId
    data: bytes


registry = HandlerRegistry()


def hold_interpreter(seconds: float) -> None:
    """Hold the interpreter's lock, as an extension may that never gives it back."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def raise_(error: BaseException) -> None:
    raise error


def start_child() -> None:
    subprocess.Popen(["sleep", "60"])
    time.sleep(60)


WAYS: dict[str, Callable[[int], Any]] = {
    "returns": lambda value: value + 1,
    "raises": lambda _: raise_(ValueError("raised")),
    "rejects": lambda value: raise_(Reject("refused", code="no", details={"value": value})),
    "raises what cannot be packed": lambda _: raise_(Odd(1, 2)),
    "returns what cannot be packed": lambda _: "text",
    "exits": lambda _: sys.exit(3),
    "exits at once": lambda _: os._exit(3),
    "is killed": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "reads where nothing is": lambda _: ctypes.string_at(0),
    "interrupts itself": lambda _: raise_(KeyboardInterrupt()),
    "needs too much memory": lambda _: raise_(MemoryError()),
    "prints": lambda _: print("x" * 200_000, file=sys.stderr),
    "starts a thread": lambda _: threading.Thread(target=time.sleep, args=(60,), daemon=True).start(),
    "starts a child": lambda _: multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,)).start(),
    "starts a child and sleeps": lambda _: start_child(),
    "raises what cannot be read": lambda _: raise_(Unreadable()),
    "closes all descriptors": lambda _: os.closerange(3, 1000),
    "sleeps": lambda value: time.sleep(value or 60),
    "holds the interpreter": lambda value: hold_interpreter(value or 60),
}
"""Ways in which a call can end."""


def end(how: str, value: int) -> int:
    """End in one of many ways."""
    result = WAYS[how](value)
    return value if result is None else result


@registry.handles(Compute, runs_in="process")
def compute(command: Compute) -> int:
    return end(command.how, command.value)


@registry.handles(Slow, runs_in="process")
def slow(command: Slow) -> int:
    return end(command.how, command.value)


@registry.handles(Careful, runs_in="process")
def careful(command: Careful) -> int:
    return end(command.how, command.value)


@registry.handles(Again, runs_in="process")
def again(command: Again, context: ProcessContext) -> int:
    if context.attempt < 3:
        os._exit(1)
    return context.attempt


@registry.handles(Told, runs_in="process")
def told(command: Told, context: ProcessContext) -> list[str]:
    return [context.command_id, str(context.fence > 0), str(context.attempt), str(os.getpid())]


@registry.handles(Doubled, runs_in="process")
def doubled(command: Doubled) -> bytes:
    return command.data * 2
