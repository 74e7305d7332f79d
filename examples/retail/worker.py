"""One worker process of the example: `python -m examples.retail.worker CONCURRENCY`, configured by the environment."""

from __future__ import annotations

from redis.asyncio import Redis

from command_bus import BusSettings, CommandBus
from examples.flights.worker import main
from examples.retail.handlers import registry_for
from examples.retail.ledger import Ledger

__all__ = ["serve"]


async def serve(concurrency: int) -> None:
    """Run a worker until SIGTERM."""
    settings = BusSettings()
    if settings.server_url is None:
        raise SystemExit("a worker of the example needs COMMAND_BUS_URL: start it with `python -m examples.retail`")
    async with (
        Redis.from_url(settings.server_url) as client,
        CommandBus(settings=settings, registry=registry_for(Ledger(client, settings.namespace))) as bus,
    ):
        await bus.worker(concurrency=concurrency).run()


if __name__ == "__main__":
    main(serve)
