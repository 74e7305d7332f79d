"""Restate: its server, with its defaults, a service over HTTP/2, and calls of a virtual object over keep-alive connections.

A handler is exclusive for its key. It has five `ctx.run`, whose functions do nothing, one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.peers.programs.jobs import call_concurrently
from benchmarks.peers.programs.servers import Server, end_in_order, free_port, wait_for
from benchmarks.protocol import main, say

_SERVICE = "benchmarks.peers.programs.restate_service:app"


class Client:
    """Calls the handler over as many connections as are in flight."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def call(self, job: dict[str, Any]) -> None:
        reader, writer = self._free.pop() if self._free else await asyncio.open_connection("127.0.0.1", self._port)
        body = str(job["number"])
        head = f"POST /Note/{job['entity']}/steps HTTP/1.1\r\nHost: a\r\nContent-Type: application/json"
        writer.write(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        if (await reader.readexactly(length)).decode() != body:
            raise RuntimeError(f"Restate answered {answer!r}")
        self._free.append((reader, writer))


def _started(folder: Path) -> tuple[Server, Server, int]:
    """Start server and service; return them, and the port of calls."""
    calls, admin, node, service = (free_port() for _ in range(4))
    addresses = {
        "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{calls}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
        "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
        "RESTATE_ADVERTISED_ADDRESS": f"http://127.0.0.1:{node}",
        "RESTATE_BASE_DIR": str(folder),
        "RESTATE_DISABLE_TELEMETRY": "true",
    }
    (program,) = Path(os.environ["PEER"]).glob("node_modules/@restatedev/restate-server-*/bin/restate-server")
    server = Server([str(program)], addresses, folder)
    worker = Server([sys.executable, "-m", "hypercorn", _SERVICE, "-b", f"127.0.0.1:{service}", "-k", "uvloop"], {}, folder)
    wait_for(lambda: _ask(admin, "GET", "/health"))
    wait_for(lambda: _ask(admin, "POST", "/deployments", {"uri": f"http://127.0.0.1:{service}"}))
    return server, worker, calls


def _ask(port: int, method: str, path: str, body: Any = None) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status >= 300:
            raise OSError(f"Restate answered {answer.status}: {answer.read()!r}")
    finally:
        connection.close()


def call(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        server, worker, port = _started(Path(folder))
        try:
            wait_for(lambda: _ask(port, "POST", "/Note/warm/steps", 1))
            before = server.cpu(), worker.cpu()
            uvloop.run(call_concurrently(given.count, given.flight, Client(port).call))
            spent = {"server": server.cpu() - before[0], "worker": worker.cpu() - before[1]}
        finally:
            worker.end()
            server.end()
    say(**spent)  # the last word: who measures ends the program then


if __name__ == "__main__":
    end_in_order()
    main({"call": call})
