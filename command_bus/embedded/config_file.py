"""The server's configuration file, with the reason of each line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from command_bus.embedded.probe import Address
from command_bus.errors import InvalidSettings

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
