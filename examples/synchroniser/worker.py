"""One worker process of the example: `python -m examples.synchroniser.worker CONCURRENCY`, configured by the environment."""

from __future__ import annotations

import os
from pathlib import Path

from command_bus import BusSettings, CommandBus
from examples.flights.worker import main
from examples.synchroniser.books import Books
from examples.synchroniser.handlers import registry_for

__all__ = ["BOOKS", "PORT", "serve"]

BOOKS, PORT = "SYNCHRONISER_BOOKS", "SYNCHRONISER_PORT"
"""Variables: the path of the books, and the partner's port."""


async def serve(concurrency: int) -> None:
    """Run a worker until SIGTERM."""
    settings = BusSettings()
    if settings.server_url is None or BOOKS not in os.environ:
        raise SystemExit("a worker of the example is started by `python -m examples.synchroniser`")
    registry = registry_for(Books(Path(os.environ[BOOKS])), int(os.environ[PORT]))
    async with CommandBus(settings=settings, registry=registry) as bus:
        await bus.worker(concurrency=concurrency).run()


if __name__ == "__main__":
    main(serve)
