"""One private server: started, stopped and restarted by its owner, and ended with its owner in any case."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self
from urllib.parse import quote

from command_bus.embedded.binary import find_server_binary
from command_bus.embedded.folders import SOCKET, data_folder, fits_socket, private_folder, short_folder
from command_bus.embedded.launch import Launch, PortTaken, checked, launched
from command_bus.embedded.locks import locked
from command_bus.embedded.process import GuardedProcess, shut_down
from command_bus.errors import TransportUnavailable

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
                return cls(replace(launch, address=("127.0.0.1", _free_port())), temporary)
        return cls(replace(launch, address=("127.0.0.1", _free_port())), temporary)

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
