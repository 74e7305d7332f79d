"""A few bytes of RESP over a socket, to check whether a server answers without a client library."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import BinaryIO, Literal

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
