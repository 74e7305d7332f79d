"""The supervisor of several worker processes: starts them, restarts those that die, and forwards signals.

It runs none of the application's code: a process that has loaded the application reports the facts about it. So the application can
neither break nor slow the supervisor, which can always start the next process. The development server, if it is used, belongs to the
supervisor and outlives every process.

File watching for `--reload`.

It compares, twice a second, the times of the Python files below the current folder. A few hundred files take a millisecond or two. It works on
network and container mounts, where file events do not. It runs in the supervisor, which has loaded none of the application, so a file
that does not compile only delays the restart until its next change. watchfiles was measured instead: where it polls, it also walks
environments and `node_modules`, which took 12 % of a core for 30,000 files; this walk skips them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any, NamedTuple

from command_bus.cli.process.application import Application, check_options
from command_bus.cli.process.channel import decode_line, encode_line
from command_bus.cli.process.health import ProbedProcess, serve_supervisor_probes
from command_bus.cli.process.systemd import notify_systemd
from command_bus.cli.process.worker_options import WorkerOptions
from command_bus.cli.terminal import WorkerExitCode
from command_bus.clock import mono
from command_bus.errors import CommandBusError
from command_bus.worker.worker_bus import is_hang_up, stop_signals

_EVERY = 0.5  # seconds
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})

Times = Mapping[str, tuple[int, int]]
"""Modification time in ns and size, by file."""


def snapshot(folder: Path) -> Times:
    """Return the Python files below a folder, without hidden folders and environments."""
    return dict(_files(os.fspath(folder)))


def changed_files(before: Times, now: Times) -> list[str]:
    """Return the files that were added, removed or changed."""
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


class FileWatcher:
    """Watches the Python files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known = snapshot(folder)

    async def wait(self) -> list[str]:
        """Wait until files have changed, and return them."""
        while True:
            await asyncio.sleep(_EVERY)
            now = await asyncio.to_thread(snapshot, self._folder)
            found = changed_files(self._known, now)
            self._known = now
            if found:
                return found


def _files(folder: str) -> Iterator[tuple[str, tuple[int, int]]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:  # removed since, or not readable
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(".") and entry.name not in _SKIPPED and not Path(entry.path, "pyvenv.cfg").exists():
                    yield from _files(entry.path)
            elif entry.name.endswith(".py"):
                found = entry.stat()
                yield entry.path, (found.st_mtime_ns, found.st_size)
        except OSError:
            continue


_FIRST, _LAST = 0.1, 30.0  # seconds between restarts
_LONG_LIFE = 10.0  # seconds


class ProcessEnd(NamedTuple):
    """The end of a process.

    Attributes:
        code: Its exit code; minus the signal's number if a signal ended it.
        ready: Whether it had begun to run commands.
    """

    code: int
    ready: bool

    def describe(self) -> str:
        """Return the end in words, such as `was ended by SIGKILL`."""
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        try:
            return f"was ended by {signal.Signals(-self.code).name}"
        except ValueError:  # a real-time signal
            return f"was ended by signal {-self.code}"


class RestartDecision(Enum):
    """Actions after a process ended."""

    DONE = auto()
    RESTART = auto()
    GIVE_UP = auto()


def decide_restart(ended: ProcessEnd, *, stopping: bool, any_ready: bool, burst: bool) -> RestartDecision:
    """Decide whether to restart a process that ended.

    Args:
        ended: The end of the process.
        stopping: Whether the processes were asked to stop.
        any_ready: Whether any process has begun to run commands. Until then the application or its settings are considered broken, which
            a restart does not repair.
        burst: Whether processes may end by themselves when no work is left.
    """
    if stopping or (burst and ended.ready and ended.code in (WorkerExitCode.FINISHED, WorkerExitCode.CUT_SHORT)):
        return RestartDecision.DONE
    return RestartDecision.RESTART if any_ready else RestartDecision.GIVE_UP


def combined_exit_code(ended: Iterable[ProcessEnd]) -> WorkerExitCode:
    """Return one exit code for all processes, once they were asked to stop. A process that had not begun had nothing to finish."""
    codes = {each.code for each in ended if each.ready}
    if any(
        code == WorkerExitCode.CUT_SHORT or code < 0 or code > 128 for code in codes
    ):  # handlers of a killed process were cut short, too
        return WorkerExitCode.CUT_SHORT
    return WorkerExitCode.NOT_STARTED if codes - {WorkerExitCode.FINISHED} else WorkerExitCode.FINISHED


class RestartBackoff:
    """Exponential backoff of restarts; it starts again after a process that lived for a while."""

    def __init__(self) -> None:
        self._next = _FIRST

    def delay_after(self, lifetime: float) -> float:
        """Return the seconds to wait before a restart.

        Args:
            lifetime: Seconds that the last process lived.
        """
        if lifetime >= _LONG_LIFE:
            self._next = _FIRST
        pause, self._next = self._next, min(self._next * 2, _LAST)
        return pause


_LAST_WORDS = 15.0  # seconds after the grace time until a process is killed: it needs some 5 to hand its work back
_DEBOUNCE = 0.05  # seconds: one Ctrl-C may arrive twice
_log = logging.getLogger("command_bus.cli")


def run_development(options: WorkerOptions, data: Path | None) -> int:
    """Start or join this project's server, keep workers on it until asked to stop, and return the exit code."""
    from command_bus.embedded import shared_server

    os.environ.pop("REDIS_URL", None)
    try:
        url = shared_server(persistence=data)
    except CommandBusError as error:
        _log.error("%s", error.message)
        return WorkerExitCode.NOT_STARTED
    _log.info("development server: %s", url)
    return run_supervisor(replace(options, url=url))


def run_supervisor(options: WorkerOptions) -> int:
    """Keep `options.processes` workers running until asked to stop, and return their combined exit code."""
    os.environ.update(options.environment())
    return asyncio.run(_Supervisor(options).run())


@dataclass(slots=True, eq=False)
class _Child:
    """One worker process and the supervisor's end of its channel."""

    index: int
    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    started: float
    ready: bool = False
    health: int | None = None

    def signal(self, number: int) -> None:
        if self.process.returncode is None:
            self.process.send_signal(number)

    async def receive(self) -> dict[str, Any] | None:
        """Return its next message; None if there will be none."""
        try:
            return decode_line(await self.reader.readline())
        except OSError:  # it died with something unread
            return None

    async def listen(self) -> None:
        """Read its messages until it runs commands, or sends no more."""
        while not self.ready and (message := await self.receive()) is not None:
            self.health = message.get("health", self.health)
            self.ready = "ready" in message

    def send(self, message: dict[str, Any]) -> None:
        self.writer.write(encode_line(message))

    async def hang_up(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


class _Supervisor:
    """Keeps the processes running: each has an index, and each index a task that restarts its process.

    Args:
        options: As the program was given them.
    """

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._children: set[_Child] = set()
        self._ended: list[ProcessEnd] = []
        self._application: Application | None = None
        self._environment: dict[str, str] = {}
        self._may_start = asyncio.Event()
        self._stopping = asyncio.Event()
        self._signalled = 0.0
        self._any_ready = False
        self._failed = False
        self._change = asyncio.Event()  # replaced after each change
        self._up: Callable[[], None] | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in stop_signals():
            loop.add_signal_handler(number, self._on_signal, number)
        async with notify_systemd() as self._up:
            return await self._answer_and_keep()

    async def _answer_and_keep(self) -> int:
        if self._options.health_port is None:
            return await self._keep_all()
        try:
            health = await serve_supervisor_probes(self._options, self._probed)
        except CommandBusError as error:
            _log.error("%s", error.message)
            return WorkerExitCode.NOT_STARTED
        try:
            return await self._keep_all()
        finally:
            health.stop()

    async def _keep_all(self) -> int:
        async with asyncio.TaskGroup() as places:
            if self._options.reload:
                places.create_task(self._reload(), name="command_bus.reload")
            for index in range(self._options.processes):
                places.create_task(self._keep(index), name=f"command_bus.process {index}")
        code = WorkerExitCode.NOT_STARTED if self._failed else combined_exit_code(self._ended)
        _log.info("all worker processes have ended")
        return code

    def _probed(self) -> list[ProbedProcess]:
        """Return the running processes, for probes."""
        return [ProbedProcess(child.index, child.process.pid, child.health, child.ready) for child in self._children]

    async def _keep(self, index: int) -> None:
        """Keep one process running until it is time to stop. The first one reports the application, then the others are started."""
        if index > 0:
            await self._may_start.wait()
        backoff = RestartBackoff()
        while not self._stopping.is_set():
            change = self._change
            child = await self._start(index)
            ended = await self._await_end(child)
            if self._options.reload and not self._stopping.is_set():
                await self._wait_for_change(change, child, ended)
                continue
            match decide_restart(ended, stopping=self._stopping.is_set(), any_ready=self._any_ready, burst=self._options.burst):
                case RestartDecision.DONE:
                    self._ended.append(ended)
                    return
                case RestartDecision.GIVE_UP:
                    self._give_up(f"worker process {child.process.pid} {ended.describe()} before it began")
                case RestartDecision.RESTART:
                    seconds = backoff.delay_after(mono() - child.started)
                    _log.error("worker process %d %s; another is started in %g s", child.process.pid, ended.describe(), seconds)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _reload(self) -> None:
        """End the processes whenever a file has changed; their tasks restart them. Running handlers get their grace time."""
        watcher = FileWatcher(Path.cwd())
        stopping = asyncio.ensure_future(self._stopping.wait())
        while not self._stopping.is_set():
            found = asyncio.ensure_future(watcher.wait())
            await asyncio.wait({found, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not found.done():
                found.cancel()
                return
            _log.info("%s changed: restarting", ", ".join(Path(name).name for name in found.result()[:3]))
            self._change, change = asyncio.Event(), self._change
            change.set()
            for child in self._children:
                child.signal(signal.SIGTERM)

    async def _wait_for_change(self, change: asyncio.Event, child: _Child, ended: ProcessEnd) -> None:
        """Wait for the next change of files after a process that failed; do not wait if it ended because files have changed."""
        if not change.is_set():
            _log.error("worker process %d %s; it is started again when a file changes", child.process.pid, ended.describe())
            waits = {asyncio.ensure_future(change.wait()), asyncio.ensure_future(self._stopping.wait())}
            _, left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in left:
                each.cancel()

    async def _start(self, index: int) -> _Child:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "command_bus", *self._options.child_arguments(theirs.fileno())]
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,  # Ctrl-C in the terminal goes to the supervisor, which forwards it
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        child = _Child(index, process, reader, writer, mono())
        self._children.add(child)
        if self._stopping.is_set():  # signalled while the process was being started
            child.signal(signal.SIGTERM)
        return child

    async def _await_end(self, child: _Child) -> ProcessEnd:
        """Handle the messages of a process, and wait for its end."""
        loaded = await child.receive()
        if loaded is not None and await self._admits(Application.from_dict(loaded["loaded"])):
            child.send({"environment": self._environment})
            await child.listen()
            self._any_ready = self._any_ready or child.ready
            if (up := self._up) is not None and sum(each.ready for each in self._children) == self._options.processes:
                self._up = None
                up()
        elif loaded is not None:
            await child.hang_up()
        code = await child.process.wait()
        self._children.discard(child)
        await child.hang_up()
        return ProcessEnd(code, ready=child.ready)

    async def _admits(self, application: Application) -> bool:
        """Check the application that the first process reports, and start the others; return False if it may not run."""
        if self._application is not None:
            return True
        try:
            check_options(application, self._options)
            if application.url is None:
                self._environment = await asyncio.to_thread(_development_server)
        except CommandBusError as error:
            self._give_up(error.message)
            return False
        self._application = application
        _log.info(application.start_line(self._options.processes))
        self._may_start.set()
        return True

    def _on_signal(self, number: int) -> None:
        if self._signalled and mono() - self._signalled > _DEBOUNCE and not is_hang_up(number):
            for child in self._children:
                child.signal(signal.SIGKILL)
            os._exit(128 + number)
        if not self._signalled:
            self._signalled = mono()
            _log.info("%s: stopping %d worker processes", signal.Signals(number).name, len(self._children))
            self._stop(number)

    def _give_up(self, why: str) -> None:
        _log.error("%s", why)
        self._failed = True
        self._stop(signal.SIGTERM)

    def _stop(self, number: int) -> None:
        self._stopping.set()
        self._may_start.set()
        for child in self._children:
            child.signal(number)
        grace = self._application.grace if self._application is not None else 0.0
        asyncio.get_running_loop().call_later(grace + _LAST_WORDS, self._kill)

    def _kill(self) -> None:
        for child in self._children:
            _log.error("worker process %d does not end after its grace time, and is killed", child.process.pid)
            child.signal(signal.SIGKILL)


def _development_server() -> dict[str, str]:
    """Start or join the development server, and return the variable by which child processes find it."""
    from command_bus.embedded import URL_VARIABLE, shared_server

    return {URL_VARIABLE: shared_server()}
