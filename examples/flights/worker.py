"""One worker process of the demo: `python -m examples.flights.worker CONCURRENCY`.

The server's URL, the namespace and the lease come from the environment (`COMMAND_BUS_URL`, `COMMAND_BUS_NAMESPACE`,
`COMMAND_BUS_LEASE`), as they would in a deployment. The process stops when its standard input closes, so that it never outlives
the demo, however that ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from redis.asyncio import Redis

from command_bus import BusSettings, CommandBus
from examples.flights.handlers import registry_for
from examples.flights.hangar import Hangar

__all__ = ["main", "serve"]


async def serve(concurrency: int) -> None:
    """Run a worker until SIGTERM."""
    settings = BusSettings()
    if settings.server_url is None:
        raise SystemExit("a worker of the demo needs COMMAND_BUS_URL: start it with `python -m examples.flights`")
    async with (
        Redis.from_url(settings.server_url) as client,
        Hangar(client, settings.namespace) as hangar,
        CommandBus(settings=settings, registry=registry_for(hangar)) as bus,
    ):
        await bus.worker(concurrency=concurrency).run()


def _stop_with_parent() -> None:
    """Ask this process to stop once the other end of its standard input is closed."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main(serve: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """Serve with the concurrency that the command line gives."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    threading.Thread(target=_stop_with_parent, name="stop-with-parent", daemon=True).start()
    asyncio.run(serve(int(sys.argv[1])))


if __name__ == "__main__":
    main(serve)
