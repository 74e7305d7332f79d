"""The part of `socket` that serving uses, with connections that hold little of what is not read: a test need not fill megabytes."""

from __future__ import annotations

import socket
from socket import AF_INET, AF_INET6
from typing import Any

__all__ = ["AF_INET", "AF_INET6", "create_server"]


def create_server(*arguments: Any, **options: Any) -> socket.socket:
    """Return a listener whose connections have small buffers to send from."""
    listening = socket.create_server(*arguments, **options)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
    return listening
