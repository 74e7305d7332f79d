"""A real Valkey or Redis server as a child process, for development and tests: nothing to install, configure or clean up.

`shared_server()` serves a bus without a URL: one server per user and project, which every process of the project finds.
`EmbeddedServer` is the same server, for private use. Both end with the process that started them, even if it is killed.

The modules, from the bottom: `binary` finds the program, `folders` and `locks` own folders, `config_file` writes the configuration,
`probe` talks to a server before there is a client, `guard` is a tiny program that ties a process to its owner's life, `process` and
`launch` start it, `server` is one server, `project_data` its data that outlives it, `development_server` the shared server.
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
