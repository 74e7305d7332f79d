"""The service of orders: the durable handler. A worker process: `python -m examples.checkout.orders CONCURRENCY`."""

from __future__ import annotations

from command_bus import CommandRejected, DurableContext, HandlerRegistry, Reject, RetryPolicy
from examples.checkout.books import checkout_books
from examples.checkout.commands import LARGE, Checkout, Refund, Release, Reserve, Ship
from examples.checkout.payments import Payments
from examples.checkout.service import serving
from examples.flights.worker import main
from examples.synchroniser.books import Books

__all__ = ["APPROVAL", "CONFIRMATION", "registry_for"]

APPROVAL, CONFIRMATION = 6.0, 6.0
"""Seconds for which an order waits for a person, and for the provider's word. In earnest: days."""
_AGAIN = RetryPolicy(attempts=6, delay=0.1, max_delay=1.0)


class _Seller:
    """Sells things, order by order.

    Args:
        books: By which persons are asked.
        payments: The provider.
    """

    def __init__(self, books: Books, payments: Payments) -> None:
        self._books = books
        self._payments = payments

    async def sell(self, command: Checkout, context: DurableContext) -> str:
        """Sell what an order asks for; what was done is undone if that fails."""
        order = str(command.order)
        undo = Release(sku=command.sku, order=order)
        await context.call(Reserve(sku=command.sku, order=order), undo=undo)
        if command.cents >= LARGE:
            await self._approved(order, context)
        # Before the charge: its answer can be lost, and the order be cancelled then.
        context.compensate(Refund(order=order))
        await self._charged(order, command.cents, context)
        return await context.call(Ship(order=order, sku=command.sku))

    async def _approved(self, order: str, context: DurableContext) -> None:
        """Wait for a person."""
        await context.step("ask", self._books.note, "asked", order, context.command_id)
        if not await context.signal("approved", timeout=APPROVAL, returns=bool):
            raise Reject("the order was not approved", code="declined")

    async def _charged(self, order: str, cents: int, context: DurableContext) -> None:
        """Charge, and wait for the customer's bank if it asks the customer first."""

        def charge(cents: int) -> str | None:
            assert context.step_key is not None
            return self._payments.charge(order, cents, key=context.step_key, reference=context.command_id)

        if await context.step("charge", charge, cents, retry=_AGAIN) is None:
            await context.signal("paid", timeout=CONFIRMATION, returns=str)


def registry_for(books: Books, payments: Payments) -> HandlerRegistry:
    """Return the handler, which asks persons by these books, and this provider."""
    registry, seller = HandlerRegistry(), _Seller(books, payments)

    @registry.handles(Checkout)
    async def checkout(command: Checkout, context: DurableContext) -> str:
        try:
            return await seller.sell(command, context)
        except CommandRejected as error:  # by the stock, or by shipping: a retry would get the same answer
            raise Reject(error.message, code=error.code) from error
        except TimeoutError as error:
            raise Reject("it has not come in time", code="late") from error

    return registry


async def serve(concurrency: int) -> None:
    """Run a worker until SIGTERM."""
    await serving(registry_for(checkout_books(), Payments()), concurrency)


if __name__ == "__main__":
    main(serve)
