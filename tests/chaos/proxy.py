"""A TCP proxy before the server, one for each process: connections are cut and stalled here, also in the middle of a reply."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Literal

__all__ = ["Mode", "Proxy"]

Mode = Literal["pass", "cut_reply", "chop", "blackhole", "blackhole_reply", "delay", "refuse"]


class Proxy:
    """Passes bytes on, or fails in a chosen mode.

    `cut_reply` ends a connection as soon as a reply appears, `chop` after the first bytes of one: the request was executed. `blackhole`
    holds back both ways and `blackhole_reply` the replies; they arrive late if the connection is still open. `delay` delays each piece.
    `refuse` ends new connections at once.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.mode: Mode = "pass"
        self.amount = 0.0

    async def start(self) -> None:
        """Listen on a free port of the loopback."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    @property
    def url(self) -> str:
        """URL for the process behind it."""
        assert self._server is not None
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def set(self, mode: Mode, amount: float = 0.0) -> None:
        """Behave like this from now on; `amount` is bytes for `chop` and seconds for `delay`."""
        self.mode, self.amount = mode, amount
        if mode in ("blackhole", "blackhole_reply"):
            self._flowing.clear()
        else:
            self._flowing.set()

    def reset(self) -> None:
        """End all connections, with a reset."""
        for writer in list(self._writers):
            _abort(writer)

    async def stop(self) -> None:
        """Close everything."""
        if self._server is not None:
            self._server.close()
        self.set("pass")
        self.reset()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        if self.mode == "refuse":
            _abort(writer)
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._target)
        except OSError:
            _abort(writer)
            return
        self._writers.add(writer)
        pumps = [
            asyncio.ensure_future(self._requests(reader, server_writer)),
            asyncio.ensure_future(self._replies(server_reader, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._writers.discard(writer)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for each in (writer, server_writer):
                each.transport.abort()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self.mode == "blackhole":
                await self._flowing.wait()
            elif self.mode == "delay":
                await asyncio.sleep(self.amount)
            writer.write(data)
            await writer.drain()

    async def _replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self.mode == "cut_reply":
                return
            if self.mode == "chop":
                writer.write(data[: int(self.amount)])
                await writer.drain()
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
                return
            await self._flowing.wait()
            writer.write(data)
            await writer.drain()


def _abort(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
