"""A child process that cannot outlive this one, even if this one is killed.

The odd part is the thread. Linux sends the parent-death signal when the *thread* that forked ends, not the process: a server
started from a pool's thread would die with it. So one daemon thread, which sleeps until the process ends, forks all servers. (A
pool cannot do this: pools are joined before `atexit` runs, while the server is still needed.)
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from importlib.resources import files
from pathlib import Path
from typing import BinaryIO, Literal

from command_bus.errors import MissingExtra

GUARD: str = "kernel" if sys.platform == "linux" else "pipe"
"""How a child notices this process's death; see `guard`."""

_Child = subprocess.Popen[bytes]


class GuardedProcess:
    """A child process that is killed when this process ends. After a fork it belongs to the parent only.

    Args:
        command: Program and arguments.
        log: File for its output.
        keep: File descriptors that it inherits.

    Raises:
        MissingExtra: There is no Python program to run the guard with.
    """

    def __init__(self, command: Sequence[str], *, log: BinaryIO, keep: Sequence[int] = ()) -> None:
        # The guard travels as text, not as a path: a package may be imported from a zip.
        source = files("command_bus.embedded").joinpath("guard.py").read_text(encoding="utf-8")
        line = [_interpreter(), "-I", "-S", "-c", source, GUARD, str(os.getpid()), *command]
        self._process = _on_lasting_thread(
            lambda: subprocess.Popen(
                line,
                stdin=subprocess.PIPE if GUARD == "pipe" else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=keep,
                start_new_session=True,  # Ctrl-C in the terminal is for the owner, which needs its server in order to finish
                umask=0o077,
            )
        )

    @property
    def pid(self) -> int:
        """The process id. The guard becomes the command, so it is the command's."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Exit code; None while it runs, negative for the signal that ended it."""
        return self._process.poll()

    def end(self, number: signal.Signals = signal.SIGKILL, *, patience: float = 10.0) -> None:
        """Send the signal, wait, and kill it after `patience` seconds. Idempotent."""
        self._process.send_signal(number)
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._let_go_of_pipe()

    def disown(self) -> None:
        """Forget the process without touching it: in the child of a fork, because it is the parent's."""
        self._let_go_of_pipe()  # else the watchdog would wait for us, too
        self._process.returncode = 0  # else Popen warns, when collected, of a process still running

    def _let_go_of_pipe(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()


class _LastingThread:
    """One daemon thread that runs functions until the process ends."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], _Child], Future[_Child]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="command_bus-embedded", daemon=True).start()

    def do(self, job: Callable[[], _Child]) -> _Child:
        future: Future[_Child] = Future()
        self._jobs.put((job, future))
        try:
            return future.result()
        except BaseException:  # Ctrl-C while waiting: the process would have no owner
            future.add_done_callback(_kill_unclaimed)
            raise

    def _run(self) -> None:
        while True:
            job, future = self._jobs.get()
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001 - raised in the caller
                future.set_exception(error)
            del job, future  # else the frame would keep the last child's Popen for as long as it waits


def _kill_unclaimed(future: Future[_Child]) -> None:
    if future.exception() is None:
        future.result().kill()
        future.result().wait()


_lock = threading.Lock()
_thread: _LastingThread | None = None


def _on_lasting_thread(job: Callable[[], _Child]) -> _Child:
    global _thread  # noqa: PLW0603 - one per process
    with _lock:
        _thread = _thread or _LastingThread()
    return _thread.do(job)


def _forget_thread() -> None:
    global _thread, _lock
    _thread, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_thread)  # threads do not survive a fork


def _interpreter() -> str:
    """Return a Python program to run the guard. `sys.executable` may be another program: where Python is embedded or frozen."""
    ours: tuple[str | None, ...] = (sys.executable, getattr(sys, "_base_executable", None))
    for candidate in (*(() if getattr(sys, "frozen", False) else ours), shutil.which("python3")):
        if candidate and "python" in os.path.basename(candidate).lower() and os.access(candidate, os.X_OK):  # noqa: PTH119
            return candidate
    raise MissingExtra(
        "no python3 found, which the embedded server needs at its side: set COMMAND_BUS_URL to a server of your own"
    )


Address = Path | tuple[str, int]
"""A unix socket, or host and port."""

State = Literal["ready", "loading", "silent"]

_PATIENCE = 0.5  # seconds for one answer


class ServerError(Exception):
    """The server's error reply."""


def state_of(address: Address) -> State:
    """Return `ready` if a server answers PING, `loading` if it still reads its data, `silent` if there is no valid answer."""
    try:
        return "ready" if ask(address, "PING") == ["PONG"] else "silent"
    except ServerError as error:
        return "loading" if str(error).startswith("LOADING") else "silent"
    except OSError:
        return "silent"


def process_id(address: Address) -> int | None:
    """Return the id of the process that answers there; None if none does."""
    try:
        lines = ask(address, "INFO", "server")[0].splitlines()
    except (OSError, ServerError):
        return None
    return next((int(line.partition(":")[2]) for line in lines if line.startswith("process_id:")), None)


def config_value(address: Address, name: str) -> str:
    """Return one setting of the server; empty if it does not report it."""
    try:
        reply = ask(address, "CONFIG", "GET", name)
    except (OSError, ServerError):
        return ""
    return reply[1] if len(reply) > 1 else ""


def shut_down(address: Address) -> None:
    """Ask the server to write its data and to end; it answers only if it refuses."""
    with contextlib.suppress(OSError, ServerError):
        ask(address, "SHUTDOWN")


def ask(address: Address, *words: str) -> list[str]:
    """Send one command; return its reply as a flat list of texts.

    Raises:
        ServerError: The server refuses it.
        OSError: There is no answer.
    """
    family = socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(_PATIENCE)
        connection.connect(str(address) if isinstance(address, Path) else address)
        connection.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words))
        with connection.makefile("rb") as stream:
            return _reply(stream)


def _reply(stream: BinaryIO) -> list[str]:
    """Read one reply as a flat list of texts."""
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionResetError("the connection ended within a reply")
    sign, text = line[:1], line[1:-2].decode(errors="replace")
    match sign:
        case b"+" | b":":
            return [text]
        case b"-":
            raise ServerError(text)
        case b"$" if int(text) >= 0:
            size = int(text)
            return [stream.read(size + 2)[:size].decode(errors="surrogateescape")]
        case b"*" if int(text) >= 0:
            return [item for _ in range(int(text)) for item in _reply(stream)]
        case _:
            return []
