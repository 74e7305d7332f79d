"""Commands of a customer."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

from pydantic import Field

from command_bus import Command, EntityId, RetryPolicy

__all__ = ["RecordPurchase"]


class RecordPurchase(
    Command[int], entity="customer", name="retail.record_purchase", retry=RetryPolicy(attempts=2, delay=0.2), on_poison="park"
):
    """The customer bought `discs` CDs for `dollars`; replied with the customer's total in cents.

    A purchase that cannot be applied holds the customer's later ones (`on_poison="park"`), because the rule against double bookings
    looks at what came before.

    Attributes:
        line: Of the table. It identifies the purchase: nothing else does, as the table has rows that are equal in every column.
    """

    customer: EntityId
    line: int
    day: date
    discs: int = Field(ge=1)
    dollars: Decimal = Field(ge=0, decimal_places=2)
