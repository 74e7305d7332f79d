"""A real Valkey or Redis server as a child process, for development and tests: nothing to install, configure or clean up.

`shared_server()` is for a bus that was told no URL: one server per user and project, which every process of the project finds.
`EmbeddedServer` is the same server for one's own use. Both end with the process that started them, even if that is killed.

The parts, from the bottom: `binary` finds the program, `places` and `locks` own folders, `conf` is the configuration, `probe`
talks to a server before there is a client, `guard` is a tiny program that ties a process to its owner's life, `process` and
`launch` start it, `server` is one server, `kept` what outlives it, `shared` the meeting point.
"""

from __future__ import annotations

import sys

from command_bus.errors import MissingExtra

if sys.platform == "win32":
    raise MissingExtra(
        "the embedded server needs Linux or macOS: set COMMAND_BUS_URL to a server, such as redis://localhost:6379"
    )

from command_bus.embedded.binary import find_server_binary
from command_bus.embedded.development_server import (
    DIR_VARIABLE,
    URL_VARIABLE,
    forget_shared_server,
    shared_server,
    stop_shared_server,
)
from command_bus.embedded.server import EmbeddedServer

__all__ = [
    "DIR_VARIABLE",
    "URL_VARIABLE",
    "EmbeddedServer",
    "find_server_binary",
    "forget_shared_server",
    "shared_server",
    "stop_shared_server",
]
