"""Starts one server process and watches until it answers."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from command_bus.clock import mono
from command_bus.embedded.process import Address, GuardedProcess, process_id, state_of
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


@dataclass(frozen=True, slots=True)
class Launch:
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
