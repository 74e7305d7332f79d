"""The commands. What is asked of the bus beside plain order stands with each of them."""

from __future__ import annotations

from command_bus import Command, EntityId, Limit, RetryPolicy, Unique

__all__ = ["PARTNER", "CloseBooks", "Edit", "Refund", "Reindex", "Sync"]

PARTNER = "partner"
"""Name of the limit that all calls of the partner pass."""

_FOR_LONG = RetryPolicy(attempts=50, delay=0.05, max_delay=1.0)


class Sync(Command[int], entity="shop", priority="low", limits=(Limit(PARTNER),), retry=_FOR_LONG):
    """Fetches a page of a shop's products from the partner."""

    shop: EntityId
    page: int


class Refund(Command[None], entity="order", priority="high", limits=(Limit(PARTNER),), retry=_FOR_LONG):
    """Pays a customer back by the partner. It goes before the imports, and still within the partner's rate."""

    order: EntityId
    cents: int


class Edit(Command[int], entity="product", retry=_FOR_LONG):
    """Changes a product, which makes its entry in the index old."""

    product: EntityId
    version: int


class Reindex(
    Command[None], entity="product", retry=_FOR_LONG, unique=Unique("index", wins="latest", debounce=0.3, max_wait=1.5)
):
    """Indexes a product once it has been left alone for 0.3 s, and at the latest 1.5 s after it was first asked for."""

    product: EntityId
    version: int


class CloseBooks(Command[None], entity="ledger", retry=_FOR_LONG):
    """Closes a ledger's day. A schedule sends it."""

    ledger: EntityId
