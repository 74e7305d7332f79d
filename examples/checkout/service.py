"""Common parts of the processes of the example: they are configured by the environment."""

from __future__ import annotations

import os

from command_bus import BusSettings, CommandBus, HandlerRegistry

__all__ = ["BOOKS", "DESK_PORT", "PROVIDER_PORT", "given", "serving"]

BOOKS, PROVIDER_PORT, DESK_PORT = "CHECKOUT_BOOKS", "CHECKOUT_PROVIDER_PORT", "CHECKOUT_DESK_PORT"
"""Variables: the path of the books, and where the provider and the desk listen."""


def given(variable: str) -> str:
    """Return a variable of the environment."""
    try:
        return os.environ[variable]
    except KeyError:
        raise SystemExit("the processes of the example are started by `python -m examples.checkout`") from None


async def serving(registry: HandlerRegistry, concurrency: int) -> None:
    """Run a worker with these handlers until SIGTERM."""
    given(BOOKS)
    async with CommandBus(settings=BusSettings(), registry=registry) as bus:
        await bus.worker(concurrency=concurrency).run()
