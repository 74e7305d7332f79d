"""A bank behind a gateway on a real socket, in a thread with an event loop of its own: for clients that are programs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import uvicorn

from command_bus.gateway import gateway
from tests.gateway.bank import allowed, open_bank

__all__ = ["serving_bank"]


@contextmanager
def serving_bank(url: str, namespace: str, **options: Any) -> Generator[str]:
    """Yield the address of the gateway."""
    started, found = threading.Event(), list[Any]()

    async def serve() -> None:
        async with open_bank(url, namespace) as (bus, _):
            await bus.events.watch()
            config = uvicorn.Config(
                gateway(bus, allow=allowed(), **options), port=0, log_level="error", timeout_graceful_shutdown=1
            )
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server.serve())
            while not server.started:
                await asyncio.sleep(0.01)
            found.extend([asyncio.get_running_loop(), server, server.servers[0].sockets[0].getsockname()[1]])
            started.set()
            await serving

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="gateway")
    thread.start()
    try:
        assert started.wait(20)
        yield f"http://127.0.0.1:{found[2]}"
    finally:
        if found:
            found[0].call_soon_threadsafe(setattr, found[1], "should_exit", True)
        thread.join(20)
