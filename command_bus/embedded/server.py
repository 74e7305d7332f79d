"""One private server: started, stopped and restarted by its owner, and ended with its owner in any case.

Starts one server process and watches until it answers.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import quote

from command_bus.clock import mono
from command_bus.embedded.binary import find_server_binary
from command_bus.embedded.folders import SOCKET, data_folder, fits_socket, private_folder, short_folder
from command_bus.embedded.locks import locked
from command_bus.embedded.process import Address, GuardedProcess, process_id, shut_down, state_of
from command_bus.errors import InvalidSettings, TransportUnavailable

_LAUNCHERS = frozenset(
    {"bind", "daemonize", "dir", "include", "logfile", "port", "requirepass", "supervised", "unixsocket", "unixsocketperm"}
)

_DEFAULTS = {
    "daemonize": "no",
    "save": '""',
    "appendfsync": "everysec",
    "maxmemory-policy": "noeviction",  # any other may drop queued commands
    # A mailbox with one 200-byte command takes 0.78 KB at 512, 1.3 at 1024 and 4.4 at the default of 4096, reserved at once: ten
    # thousand waiting entities cost 8 MB instead of 44. A long backlog of one entity costs 4 to 8 % more per command and no more
    # processor time. At 256 that turns: 20 to 30 % more, for 0.2 KB saved. (Measured on Valkey 9.1 and Redis 7.0.)
    "stream-node-max-bytes": "512",
}


def checked(extra: Mapping[str, str] | None) -> dict[str, str]:
    """Return a copy of the user's settings, with names in lower case.

    Raises:
        InvalidSettings: Only the launcher may set one of them, or one is not a single line.
    """
    settings = {name.lower(): value for name, value in (extra or {}).items()}
    if taken := sorted(_LAUNCHERS & settings.keys()):
        raise InvalidSettings(f"config: {', '.join(taken)} is set by the launcher; use folder=, tcp= or persistence=")
    if broken := sorted(name for name, value in settings.items() if "\n" in f"{name}{value}"):
        raise InvalidSettings(f"config: {broken[0]!r} must be one line, as in redis.conf")
    return settings


def rendered(address: Address, folder: Path, *, persistent: bool, extra: Mapping[str, str]) -> bytes:
    """Return the file's text: listen at `address` only, keep data in `folder` if `persistent`. `extra` comes last and so wins."""
    if isinstance(address, Path):
        listen = {"port": "0", "unixsocket": _quoted(address), "unixsocketperm": "700"}
    else:
        listen = {"port": str(address[1]), "bind": address[0]}
    settings = {**listen, "dir": _quoted(folder), "appendonly": "yes" if persistent else "no", **_DEFAULTS, **extra}
    return b"".join(os.fsencode(f"{name} {value}\n") for name, value in settings.items())


def _quoted(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


_DEADLINE = 10.0  # seconds until a started server must answer
_POLL = 0.003
_LONGEST_LOG = 1024 * 1024  # bytes kept from one start to the next
_TAIL = 15  # lines of the log in an error


class PortTaken(TransportUnavailable):
    """Another process took the port between our look and the server's start."""


class Launch(NamedTuple):
    """A server to start: the program, its address, its folder, the folder of persistent data (if any), and extra settings."""

    binary: Path
    address: Address
    folder: Path
    persistence: Path | None
    config: Mapping[str, str]

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.folder / "server.log"


def launched(launch: Launch, locks: Sequence[int]) -> GuardedProcess:
    """Start the server and wait until it answers. It inherits the locks.

    Raises:
        TransportUnavailable: It ended or did not answer within 10 s; the message shows the end of its log.
    """
    seen = _fresh_log(launch.log)
    process = _started(launch, locks)
    try:
        failure = _watched(process, launch.address)
        if failure is None:
            return process
        tail = _tail(launch.log, seen)
        error = PortTaken if "in use" in f"{failure} {tail}" else TransportUnavailable
        raise error(f"the embedded server {launch.binary} {failure}; its log {launch.log} ends with:\n{tail}")
    except BaseException:
        process.end()
        raise


def _started(launch: Launch, locks: Sequence[int]) -> GuardedProcess:
    conf = launch.folder / "server.conf"
    persistent = launch.persistence is not None
    data = launch.persistence or launch.folder
    conf.write_bytes(rendered(launch.address, data, persistent=persistent, extra=launch.config))
    with launch.log.open("ab") as log:
        return GuardedProcess([str(launch.binary), str(conf)], log=log, keep=locks)


def _watched(process: GuardedProcess, address: Address) -> str | None:
    """Wait until the process answers; return None then, else what went wrong."""
    until = mono() + _DEADLINE
    while mono() < until:
        if process.exit_code() is not None:
            return f"ended at once (exit code {process.exit_code()})"
        match state_of(address):
            case "ready":
                return None if process_id(address) == process.pid else "is not the one that answers: its address is in use"
            case "loading":  # it is alive: its data may take long to load
                until = mono() + _DEADLINE
            case "silent":
                pass
        time.sleep(_POLL)
    return f"did not answer within {_DEADLINE:.0f} s"


def _fresh_log(log: Path) -> int:
    """Return the position in the log where the next server's part begins."""
    size = log.stat().st_size if log.exists() else 0
    if size > _LONGEST_LOG:
        os.truncate(log, 0)
        return 0
    return size


def _tail(log: Path, seen: int) -> str:
    with log.open("rb") as file:
        file.seek(seen)
        return "\n".join(file.read().decode(errors="replace").splitlines()[-_TAIL:])


_PORT_ATTEMPTS = 5


class EmbeddedServer:
    """A private Valkey or Redis server; `start` creates one.

    It ends when this process ends, even if the process is killed. `stop()` or leaving the `with` block ends it earlier. After a fork it
    belongs to the parent: the child may use its URL, and nothing that the child does ends it.
    """

    def __init__(self, launch: Launch, temporary: Sequence[Path], held: Sequence[int] = ()) -> None:
        self._owner = os.getpid()
        self._launch = launch
        self._temporary = tuple(temporary)
        self._process: GuardedProcess | None = None
        try:
            self._run(held)
        except BaseException:
            self.stop()
            raise

    @classmethod
    def start(
        cls,
        folder: Path | None = None,
        *,
        tcp: bool = False,
        persistence: Path | None = None,
        config: Mapping[str, str] | None = None,
        binary: Path | None = None,
        held: Sequence[int] = (),
    ) -> Self:
        """Start a server and wait until it answers, some 30 to 60 ms. Blocks; callable from any thread.

        Args:
            folder: For socket, configuration and log; must be private to this user. None: a temporary one, removed by `stop`.
            tcp: Listen on a free port of 127.0.0.1, which every user of this machine can reach, instead of on a unix socket.
            persistence: A folder for an append-only file, synced every second: queued commands survive a restart. None keeps the
                data in memory.
            config: More settings, named and written as in `redis.conf`.
            binary: The server program; by default that of `find_server_binary`.
            held: The folder's lock, if the caller has taken it already (see `locks`).

        Raises:
            MissingExtra: There is no server program.
            InvalidSettings: A folder is not safe or not usable, or `config` has a setting that only the launcher may set.
            TransportUnavailable: The server ended or did not answer within 10 s (the message shows the end of its log), or
                another one runs in the folder.
        """
        extra, program = checked(config), binary or find_server_binary()
        data = data_folder(persistence) if persistence else None
        temporary: list[Path] = []
        if folder is None:
            folder = short_folder()
            temporary.append(folder)
        folder = folder.expanduser().resolve()
        if not tcp and not fits_socket(folder):
            temporary.append(short_folder())
        launch = Launch(program, (temporary[-1] if temporary else folder) / SOCKET, folder, data, extra)
        return cls._start_on_port(launch, temporary) if tcp else cls(launch, temporary, held)

    @classmethod
    def _start_on_port(cls, launch: Launch, temporary: Sequence[Path]) -> Self:
        for _ in range(_PORT_ATTEMPTS - 1):
            with contextlib.suppress(PortTaken):
                return cls(launch._replace(address=("127.0.0.1", _free_port())), temporary)
        return cls(launch._replace(address=("127.0.0.1", _free_port())), temporary)

    @property
    def url(self) -> str:
        """URL for clients: `unix://…` or `redis://127.0.0.1:port`; a `restart` keeps it."""
        address = self._launch.address
        return unix_url(address) if isinstance(address, Path) else f"redis://{address[0]}:{address[1]}"

    @property
    def folder(self) -> Path:
        """Folder of configuration, log and (if the path is short enough) the socket."""
        return self._launch.folder

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self._launch.log

    @property
    def pid(self) -> int:
        """The server's process id.

        Raises:
            TransportUnavailable: The server is stopped.
        """
        if self._process is None:
            raise TransportUnavailable("this embedded server is stopped: restart() starts it again")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the server runs and belongs to this process."""
        return self._mine and self._process is not None and self._process.exit_code() is None

    def stop(self) -> None:
        """Stop the server, save persistent data, and remove temporary folders. Idempotent; a forked child stops nothing."""
        if not self._mine:
            return
        self._end(save=True)
        _live.discard(self)
        for folder in self._temporary:
            shutil.rmtree(folder, ignore_errors=True)

    def kill(self) -> None:
        """Kill the server, as in a crash (SIGKILL); folder and data stay for `restart`."""
        if self._mine:
            self._end(save=False)

    def restart(self) -> None:
        """Stop the server if it runs, and start it again at the same URL; without `persistence` it is empty then.

        Raises:
            TransportUnavailable: It did not come back, or belongs to the process that forked this one.
        """
        if not self._mine:
            raise TransportUnavailable(f"this embedded server belongs to process {self._owner}: only that can restart it")
        self._end(save=True)
        self._run()

    def disown(self) -> None:
        """Forget the parent's process; called in the child of a fork."""
        if self._process is not None:
            self._process.disown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<EmbeddedServer {self.url} {f'pid {self.pid}' if self.running else 'not running'}>"

    @property
    def _mine(self) -> bool:
        return self._owner == os.getpid()

    def _run(self, held: Sequence[int] = ()) -> None:
        """Start the process. It inherits the locks of its folders, so they last exactly as long as it does."""
        _live.add(self)
        for folder in (self.folder, *self._temporary):
            private_folder(folder)
        to_lock = [] if held else [self.folder]
        data = self._launch.persistence
        if data is not None and data != self.folder:
            to_lock.append(data_folder(data))
        with locked(to_lock) as locks:
            self._process = launched(self._launch, (*held, *locks))

    def _end(self, *, save: bool) -> None:
        # If ours is dead, another server may have the address by now: nothing is sent to it, and its socket is not deleted.
        if self._process is None:
            return
        if save and self._launch.persistence is not None and self._process.exit_code() is None:
            shut_down(self._launch.address)  # at once; the server looks at the signal only every tenth of a second
            self._process.end(signal.SIGTERM)
        else:
            self._process.end()
        self._process = None


def unix_url(path: Path) -> str:
    """Return the URL of a unix socket, with special characters quoted."""
    return f"unix://{quote(os.fsencode(path))}"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


_live: set[EmbeddedServer] = set()


def _stop_all() -> None:
    for server in list(_live):
        server.stop()


def _disown_all() -> None:
    for server in _live:
        server.disown()
    _live.clear()


atexit.register(_stop_all)
os.register_at_fork(after_in_child=_disown_all)
