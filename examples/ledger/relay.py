"""The relay: sends what the tellers have committed. `python -m examples.ledger.relay CONCURRENCY`."""

from __future__ import annotations

from command_bus import BusSettings, CommandBus
from command_bus.sql import OutboxRelay
from examples.flights.worker import main
from examples.ledger.books import engine_here


async def serve(concurrency: int) -> None:
    """Relay until SIGTERM."""
    del concurrency
    async with CommandBus(settings=BusSettings()) as bus:
        await OutboxRelay(bus, engine_here(), keep=1.0).run()


if __name__ == "__main__":
    main(serve)
