"""The handling of a purchase: read the account, judge, change it, write it back. No lock, no transaction, no script."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from command_bus import CommandContext, HandlerRegistry, Reject
from examples.retail.commands import RecordPurchase
from examples.retail.ledger import Ledger
from examples.retail.model import DOUBLE_BOOKING, apply, is_double_booking

__all__ = ["LARGE", "PaymentProviderDown", "registry_for"]

LARGE: Final = Decimal(900)
"""Dollars from which a payment must be authorised."""


class PaymentProviderDown(ConnectionError):
    """A payment could not be authorised."""


def registry_for(ledger: Ledger) -> HandlerRegistry:
    """Return the handler, working on that ledger."""
    registry = HandlerRegistry()

    @registry.handles(RecordPurchase)
    async def record(purchase: RecordPurchase, context: CommandContext) -> int:
        customer = str(purchase.customer)
        account = await ledger.load(customer)
        again = context.attempt > 1
        if is_double_booking(account, purchase) and not (again and purchase.line == account.line):
            raise Reject("the same was bought on the same day already", code=DOUBLE_BOOKING)
        if purchase.dollars >= LARGE and not await ledger.provider_answers():
            raise PaymentProviderDown(f"{purchase.dollars} dollars: the provider's certificate has expired")
        account = apply(account, purchase, again=again)
        await ledger.store(customer, account)
        return account.cents

    return registry
