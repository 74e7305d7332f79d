"""The service of stock and accounts. A worker process: `python -m examples.checkout.stock CONCURRENCY`.

Its handlers may run twice, as all handlers may. So each leaves the same after one run and after two.
"""

from __future__ import annotations

from command_bus import HandlerRegistry, Reject
from examples.checkout.books import checkout_books
from examples.checkout.commands import Refund, Release, Reserve
from examples.checkout.payments import Payments
from examples.checkout.service import serving
from examples.flights.worker import main
from examples.synchroniser.books import Books

__all__ = ["registry_for"]


def registry_for(books: Books, payments: Payments) -> HandlerRegistry:
    """Return the handlers. Commands of one sku come one after the other, so what a handler has read stays true."""
    registry = HandlerRegistry()

    @registry.handles(Reserve)
    def reserve(command: Reserve) -> None:
        sku, order = str(command.sku), command.order
        if books.rows("SELECT 1 FROM reserved WHERE order_id = ?", order):
            return
        ((left,),) = books.rows(
            "SELECT pieces - (SELECT COUNT(*) FROM reserved WHERE sku = ?) FROM stock WHERE sku = ?", sku, sku
        )
        if int(left) < 1:
            raise Reject(f"{sku} is sold out", code="sold_out")
        books.rows("INSERT INTO reserved VALUES (?, ?)", order, sku)

    @registry.handles(Release)
    def release(command: Release) -> None:
        books.rows("DELETE FROM reserved WHERE order_id = ?", command.order)

    @registry.handles(Refund)
    def refund(command: Refund) -> None:
        payments.refund(str(command.order))

    return registry


async def serve(concurrency: int) -> None:
    """Run a worker until SIGTERM."""
    await serving(registry_for(checkout_books(), Payments()), concurrency)


if __name__ == "__main__":
    main(serve)
