"""The handlers. They are plain functions, so each runs in a thread of its worker."""

from __future__ import annotations

from http.client import HTTPConnection

from command_bus import CommandContext, HandlerRegistry, Snooze, every
from examples.synchroniser.books import Books
from examples.synchroniser.commands import PARTNER, CloseBooks, Edit, Refund, Reindex, Sync

__all__ = ["LEDGERS", "NIGHT", "registry_for"]

NIGHT = 1.0
"""Seconds from one night to the next. In earnest: `cron("0 2 * * *", tz="Europe/Berlin")`."""
LEDGERS = ("main", "tax")
_TIMEOUT = 10.0


def registry_for(books: Books, port: int) -> HandlerRegistry:
    """Return the handlers, which write to these books and ask the partner on this port."""
    registry = HandlerRegistry()
    for ledger in LEDGERS:
        registry.schedule(f"close-{ledger}", CloseBooks(ledger=ledger), every(NIGHT), missed="all")

    @registry.handles(Sync)
    def sync(command: Sync, context: CommandContext) -> int:
        ask(port, f"/products/{command.shop}/{command.page}")
        books.note("synced", command.shop, command.page, context.attempt)
        return command.page

    @registry.handles(Refund)
    def refund(command: Refund, context: CommandContext) -> None:
        ask(port, f"/refunds/{command.order}")
        books.note("refunded", command.order, context.attempt)

    @registry.handles(Edit)
    def edit(command: Edit, context: CommandContext) -> int:
        context.blocking.dispatch(Reindex(product=command.product, version=command.version))
        books.note("edited", command.product, command.version)
        return command.version

    @registry.handles(Reindex)
    def reindex(command: Reindex) -> None:
        books.note("indexed", command.product, command.version)

    @registry.handles(CloseBooks)
    def close(command: CloseBooks, context: CommandContext) -> None:
        books.note("closed", command.ledger, context.command_id, context.attempt)

    return registry


def ask(port: int, path: str) -> None:
    """Ask the partner.

    Raises:
        Snooze: It wants to be left alone for a while. Nobody asks it until then.
        OSError: It cannot be reached.
    """
    connection = HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
    finally:
        connection.close()
    if answer.status == 429:
        raise Snooze(float(answer.headers["Retry-After"]), hold=f"limit:{PARTNER}")
