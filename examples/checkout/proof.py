"""The rules that must hold after a run, by the provider's ledger, the books of the services, and what the callers were told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from examples.checkout.provider import Ledger
from examples.flights.verdict import Check, equal, within
from examples.synchroniser.books import Books

__all__ = ["checks"]

_PLANNED = ("shipped", "late", "cancelled", "declined", "card", "sold_out", "unreachable")
"""The ends that an order may have."""


def checks(books: Books, ledger: Ledger, ends: Mapping[str, str], *, left: int, killed: int, kept: int) -> list[Check]:
    """Return everything that must hold.

    Args:
        books: Of the services.
        ledger: The provider's.
        ends: Order -> how it ended: `shipped`, or the code of its error.
        left: Commands that wait, and dead letters.
        killed: How many workers were.
        kept: Side records of durable commands that are left on the server.
    """
    return [
        within("the workers", "killed", killed, least=5),
        equal("the bus", "commands that wait, dead letters", left, 0),
        equal("the bus", "records of durable commands that are left", kept, 0),
        *_provider(ledger),
        *_orders(books, ledger, ends),
        *_stock(books),
        *_people(books, ends),
    ]


def _provider(ledger: Ledger) -> list[Check]:
    told = Counter(str(what) for (what,) in ledger.rows("SELECT what FROM told"))
    return [
        within("the provider", f"answered: {what}", told[what], least=1)
        for what in ("an error", "too late", "a key that it knows")
    ]


def _orders(books: Books, ledger: Ledger, ends: Mapping[str, str]) -> list[Check]:
    states = "SELECT DISTINCT order_id FROM charges WHERE state "
    charged = {str(order) for (order,) in ledger.rows(f"{states} = 'charged'")}
    refunded = {str(order) for (order,) in ledger.rows(f"{states} = 'refunded'")}
    twice = ledger.rows(
        "SELECT order_id FROM charges WHERE state IN ('charged', 'refunded') GROUP BY order_id HAVING COUNT(*) > 1"
    )
    shipped = {str(order) for (order,) in books.rows("SELECT order_id FROM shipped")}
    told = {order for order, end in ends.items() if end == "shipped"}
    return [
        within("the orders", "charged", len(charged | refunded), least=10),
        equal("the orders", "charged more than once", len(twice), 0),
        within("the orders", "shipped", len(shipped), least=10),
        equal("the orders", "shipped and not charged, or paid back", len(shipped - charged), 0),
        within("the orders", "charged and paid back", len(refunded), least=1),
        equal("the orders", "charged, neither shipped nor paid back", len(charged - shipped), 0),
        equal("the orders", "whose caller was told something else", len(told ^ shipped), 0),
    ]


def _stock(books: Books) -> list[Check]:
    ((apart,),) = books.rows("SELECT COUNT(*) FROM reserved WHERE order_id NOT IN (SELECT order_id FROM shipped)")
    ((lacking,),) = books.rows("SELECT COUNT(*) FROM shipped WHERE order_id NOT IN (SELECT order_id FROM reserved)")
    ((over,),) = books.rows(
        "SELECT COUNT(*) FROM stock WHERE pieces < (SELECT COUNT(*) FROM reserved WHERE reserved.sku = stock.sku)"
    )
    return [
        equal("the stock", "pieces put aside and not shipped", int(apart), 0),
        equal("the stock", "shipped without a piece", int(lacking), 0),
        equal("the stock", "goods sold more often than they are there", int(over), 0),
    ]


def _people(books: Books, ends: Mapping[str, str]) -> list[Check]:
    answers = Counter(str(how) for (how,) in books.rows("SELECT how FROM answered"))
    late = answers["late"] + answers["late, the order had ended"]
    count = Counter(ends.values())
    return [
        within("the person", "answered in time", answers["in time"], least=1),
        within("the person", "answered too late, or never", late + answers["never"], least=1),
        within("the callers", "whose order was too late", count["late"], least=1),
        within("the callers", "whose order was cancelled", count["cancelled"], least=1),
        equal(
            "the callers", "told of an error that was not planned", sum(count.values()) - sum(map(count.__getitem__, _PLANNED)), 0
        ),
    ]
