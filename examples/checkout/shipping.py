"""The service of shipping. A worker process: `python -m examples.checkout.shipping CONCURRENCY`."""

from __future__ import annotations

from command_bus import HandlerRegistry, Reject
from examples.checkout.books import checkout_books
from examples.checkout.commands import Ship
from examples.checkout.service import serving
from examples.flights.worker import main
from examples.synchroniser.books import Books

__all__ = ["UNREACHABLE", "registry_for"]

UNREACHABLE = 11
"""The customer of each so many orders lives where no carrier goes."""


def registry_for(books: Books) -> HandlerRegistry:
    """Return the handler."""
    registry = HandlerRegistry()

    @registry.handles(Ship)
    def ship(command: Ship) -> str:
        order = str(command.order)
        if int(order.rpartition("-")[2]) % UNREACHABLE == 0:
            raise Reject("no carrier goes there", code="unreachable")
        number = f"shipment of {order}"
        books.note("shipped", order, number)
        return number

    return registry


async def serve(concurrency: int) -> None:
    """Run a worker until SIGTERM."""
    await serving(registry_for(checkout_books()), concurrency)


if __name__ == "__main__":
    main(serve)
