"""The protocol between a supervisor and its processes: lines of JSON over a pair of sockets.

    process → supervisor   {"loaded": {…}}        the application is imported; its facts
    supervisor → process   {"environment": {…}}   continue, with these variables (the development server's URL)
    process → supervisor   {"health": 40123}       it serves probes on this port, if they are configured
    process → supervisor   {"ready": true}        it runs commands

A process whose supervisor has died reads the end of the stream and stops as after a SIGTERM. So no worker outlives its supervisor,
not even a killed one.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
from typing import Any

from command_bus.cli.process.application import Application

_log = logging.getLogger("command_bus.cli")


def encode_line(message: dict[str, Any]) -> bytes:
    """Encode a message as a line."""
    return json.dumps(message).encode() + b"\n"


def decode_line(line: bytes) -> dict[str, Any] | None:
    """Decode a line; None at the end of the stream, and for a line that was cut off."""
    if not line.endswith(b"\n"):
        return None
    message: dict[str, Any] = json.loads(line)
    return message


class Channel:
    """A worker process's end of the channel to its supervisor.

    Args:
        descriptor: The inherited socket.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # not for the application's own children
        self._socket = socket.socket(fileno=descriptor)
        self._lines = self._socket.makefile("rb")

    def report_loaded(self, application: Application) -> bool:
        """Report the application and wait for the answer; return False if the supervisor refuses it, or has died."""
        self._send({"loaded": application.to_dict()})
        answer = decode_line(self._lines.readline())
        if answer is None:
            return False
        os.environ.update(answer["environment"])
        return True

    def report_health_port(self, port: int) -> None:
        """Report the port that serves probes."""
        self._send({"health": port})

    def report_ready(self) -> None:
        """Report that the process runs commands, and from now on stop when the supervisor dies."""
        self._send({"ready": True})
        threading.Thread(target=self._stop_with_supervisor, name="command_bus.supervisor", daemon=True).start()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._socket.sendall(encode_line(message))
        except OSError:
            return  # the supervisor has died: the next read returns the end of the stream

    def _stop_with_supervisor(self) -> None:
        while self._lines.readline():
            pass
        _log.warning("the supervisor of this process is gone: stopping")
        os.kill(os.getpid(), signal.SIGTERM)
