"""What a supervisor and its processes say to each other: one line of JSON at a time over a pair of sockets.

    process → supervisor   {"loaded": {…}}        the application is imported, and this is what it is
    supervisor → process   {"environment": {…}}   go on, with these variables (the development server's URL)
    process → supervisor   {"health": 40123}       it answers probes on this port, if they are wanted
    process → supervisor   {"ready": true}        commands are being run

A process whose supervisor is gone sees the end of the stream, and stops as after a SIGTERM: no worker outlives its supervisor,
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

__all__ = ["Channel", "decode_line", "encode_line"]

_log = logging.getLogger("command_bus.cli")


def encode_line(message: dict[str, Any]) -> bytes:
    """A message as a line."""
    return json.dumps(message).encode() + b"\n"


def decode_line(line: bytes) -> dict[str, Any] | None:
    """The message of a line; None at the end of the stream, or of a line that was cut off."""
    if not line.endswith(b"\n"):
        return None
    message: dict[str, Any] = json.loads(line)
    return message


class Channel:
    """The end of a process that was started by a supervisor.

    Args:
        descriptor: The inherited socket.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # not for the application's own children
        self._socket = socket.socket(fileno=descriptor)
        self._lines = self._socket.makefile("rb")

    def report_loaded(self, application: Application) -> bool:
        """Tell what was loaded and wait for leave to go on; False if the supervisor refuses, or is gone."""
        self._send({"loaded": application.to_dict()})
        answer = decode_line(self._lines.readline())
        if answer is None:
            return False
        os.environ.update(answer["environment"])
        return True

    def report_health_port(self, port: int) -> None:
        """Tell where probes are answered."""
        self._send({"health": port})

    def report_ready(self) -> None:
        """Tell that commands are being run, and from now on stop with the supervisor."""
        self._send({"ready": True})
        threading.Thread(target=self._stop_with_supervisor, name="command_bus.supervisor", daemon=True).start()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._socket.sendall(encode_line(message))
        except OSError:
            return  # it is gone: reading will tell

    def _stop_with_supervisor(self) -> None:
        while self._lines.readline():
            pass
        _log.warning("the supervisor of this process is gone: stopping")
        os.kill(os.getpid(), signal.SIGTERM)
