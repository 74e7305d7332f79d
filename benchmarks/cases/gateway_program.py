"""The gateway in a process of its own, and clients on raw sockets with keep-alive, speaking `protocol`."""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import time
from urllib.parse import urlsplit

from benchmarks import protocol
from benchmarks.cases.messages import registry
from benchmarks.cases.program import bus_of, run
from benchmarks.protocol import Handled, Stretch, say

TOKEN = "cb_benchmark_0123456789abcdef"  # noqa: S105 - of a server that lives for seconds
_WARM = 50


async def serve(given: argparse.Namespace) -> None:
    """Serve until this process is terminated; the second line has the port."""
    import uvicorn

    from command_bus.gateway import Grant, gateway, tokens

    handlers = registry("noop", Handled(0), lambda _: None)
    async with bus_of(given, registry=handlers) as bus:
        app = gateway(bus, allow=tokens({"bench": Grant(TOKEN, ("*",))}))
        config = uvicorn.Config(app, log_level="error", access_log=False, server_header=False)
        with socket.create_server(("127.0.0.1", 0), backlog=256) as listening:
            say(ready=True)
            say(port=listening.getsockname()[1])
            await uvicorn.Server(config).serve(sockets=[listening])


async def ask(given: argparse.Namespace) -> None:
    """Send so many commands over so many connections, each after the answer to the one before."""
    address = urlsplit(given.gateway)
    host, port = str(address.hostname), int(address.port or 0)
    lanes = [await asyncio.open_connection(host, port) for _ in range(given.flight)]
    more = "Prefer: wait=60\r\n" if given.calls else ""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        body = json.dumps({"entity": f"e{number % given.entities}", "number": number}).encode()
        head = f"POST /commands/Note HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {TOKEN}\r\n{more}Content-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer[9:12] in (b"202", b"200"), answer
        length = next(int(line[15:]) for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(length)

    for number in range(_WARM):
        await one(*lanes[number % len(lanes)], number)
    protocol.ready()
    with Stretch(given.count) as stretch:

        async def lane(first: int) -> None:
            reader, writer = lanes[first]
            for number in range(first, given.count, given.flight):
                began = time.perf_counter()
                await one(reader, writer, number)
                stretch.timed(began)

        await asyncio.gather(*map(lane, range(given.flight)))
    for _, writer in lanes:
        writer.close()


ROLES = {"serve": serve, "ask": ask}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--url")
    parser.add_argument("--gateway", default="")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--flight", type=int, default=1)
    parser.add_argument("--entities", type=int, default=1000)
    parser.add_argument("--calls", type=int, default=0)
    parser.add_argument("--shards", type=int, default=1)
    given = parser.parse_args()
    run(ROLES[given.role](given))


if __name__ == "__main__":
    main()
