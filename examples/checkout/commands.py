"""The commands of the three services."""

from __future__ import annotations

from command_bus import Command, EntityId, RetryPolicy

__all__ = ["LARGE", "Checkout", "Refund", "Release", "Reserve", "Ship"]

LARGE = 50_000
"""Cents from which on a person has to approve an order."""

_FOR_LONG = RetryPolicy(attempts=100, delay=0.1, max_delay=1.0)


class Checkout(Command[str], entity="order", durable=True, retry=_FOR_LONG):
    """Sells something: gives the number of the shipment."""

    order: EntityId
    sku: str
    cents: int


class Reserve(Command[None], entity="sku", retry=_FOR_LONG):
    """Puts a piece aside for an order; rejected if there is none left."""

    sku: EntityId
    order: str


class Release(Command[None], entity="sku", retry=_FOR_LONG):
    """Puts it back. Nothing happens if none was put aside."""

    sku: EntityId
    order: str


class Refund(Command[None], entity="account", retry=_FOR_LONG):
    """Pays back what was charged for an order, and lets the provider refuse what may still be charged for it."""

    order: EntityId


class Ship(Command[str], entity="shipment", retry=_FOR_LONG):
    """Sends the goods: gives the number of the shipment; rejected if no carrier goes there."""

    order: EntityId
    sku: str
