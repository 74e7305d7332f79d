"""The conditions that must hold after a run, whoever was killed when."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any

from command_bus import Stats
from examples.flights.verdict import Check, equal, within
from examples.synchroniser.books import Books
from examples.synchroniser.handlers import LEDGERS, NIGHT
from examples.synchroniser.partner import Partner

__all__ = ["Sent", "checks"]


_SOON = 1000
"""Milliseconds in which a refund is paid, though the shops that wait for the partner take several seconds for one turn of each."""


@dataclass(slots=True)
class Sent:
    """The commands that were sent.

    Attributes:
        pages: Of all shops.
        refunds: Order -> when.
        edits: Product -> its last version.
    """

    pages: int
    refunds: dict[str, float] = field(default_factory=dict[str, float])
    edits: dict[str, int] = field(default_factory=dict[str, int])


def checks(books: Books, partner: Partner, sent: Sent, stats: Stats, *, killed: int) -> list[Check]:
    """Return everything that must hold."""
    return [
        within("the workers", "killed", killed, least=3),
        equal("the bus", "commands left, dead letters", stats.depth + stats.dead_letters, 0),
        *_imports(books, sent),
        *_partner(partner),
        *_refunds(books, partner, sent),
        *_index(books, sent),
        *_closings(books),
    ]


def _imports(books: Books, sent: Sent) -> list[Check]:
    order: dict[Any, list[Any]] = defaultdict(list)
    for shop, page in books.rows("SELECT shop, page FROM synced ORDER BY rowid"):
        if page not in order[shop]:
            order[shop].append(page)
    return [
        equal("the imports", "pages fetched", sum(map(len, order.values())), sent.pages),
        equal("the imports", "shops whose pages came out of order", sum(pages != sorted(pages) for pages in order.values()), 0),
    ]


def _partner(partner: Partner) -> list[Check]:
    return [
        within("the partner", "requests", len(partner.arrivals), least=1),
        equal("the partner", "refused, because they were too many", partner.refused, 0),
        within("the partner", "refused in a bad mood; it was left alone", partner.moods, least=1),
    ]


def _refunds(books: Books, partner: Partner, sent: Sent) -> list[Check]:
    done: dict[Any, Any] = dict(books.rows("SELECT order_id, MIN(at) FROM refunded GROUP BY order_id"))
    waits = [done[order] - at for order, at in sent.refunds.items()]
    return [
        equal("the refunds", "orders refunded", len(done), len(sent.refunds)),
        equal("the refunds", "paid more than once", sum(times != 1 for times in partner.paid.values()), 0),
        within("the refunds", "ms until one was paid, in the median, beside the imports", int(median(waits) * 1000), most=_SOON),
    ]


def _index(books: Books, sent: Sent) -> list[Check]:
    last = dict(books.rows("SELECT product, version FROM indexed GROUP BY product HAVING MAX(rowid)"))
    ((runs,),) = books.rows("SELECT COUNT(*) FROM indexed")
    ((edits,),) = books.rows("SELECT COUNT(*) FROM (SELECT DISTINCT product, version FROM edited)")
    return [
        equal(
            "the index",
            "products with their last version",
            sum(last.get(name) == at for name, at in sent.edits.items()),
            len(sent.edits),
        ),
        within("the index", f"runs, of {edits} edits", int(str(runs)), most=int(str(edits)) // 2),
    ]


def _closings(books: Books) -> list[Check]:
    found: list[Check] = []
    for ledger in LEDGERS:
        rows = books.rows(
            "SELECT command_id, MIN(attempt), COUNT(*), MAX(attempt) FROM closed WHERE ledger = ? GROUP BY command_id", ledger
        )
        ticks = sorted(datetime.fromisoformat(str(name).rpartition("@")[2]) for name, *_ in rows)
        gaps = sum((later - earlier).total_seconds() != NIGHT for earlier, later in pairwise(ticks))
        doubled = sum(int(str(count)) > int(str(attempts)) for _, _, count, attempts in rows)
        found += [
            within(f"the books ({ledger})", "nights closed", len(ticks), least=5),
            equal(f"the books ({ledger})", "nights left out, or closed at another time", gaps, 0),
            equal(f"the books ({ledger})", "closed twice by one attempt", doubled, 0),
        ]
    return found
