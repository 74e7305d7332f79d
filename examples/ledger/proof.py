"""The rules that must hold once all is posted."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, text

from examples.flights.verdict import Check, equal, within

__all__ = ["checks"]

_ONCE = "SELECT count(*) FROM (SELECT transfer, account FROM entry GROUP BY 1, 2 HAVING count(*) > 1) AS twice"
_UNPOSTED = "SELECT count(*) FROM transfer WHERE (SELECT count(*) FROM entry WHERE transfer = transfer.id) <> 2"
_UNASKED = "SELECT count(*) FROM entry WHERE transfer NOT IN (SELECT id FROM transfer)"
_ORDER = (
    "SELECT count(*) FROM (SELECT number, row_number() OVER (PARTITION BY account ORDER BY id) AS place FROM entry) AS placed "
    "WHERE number <> place"
)
_WRONG = "SELECT count(*) FROM account WHERE balance <> (SELECT coalesce(sum(cents), 0) FROM entry WHERE account = account.id)"


def checks(engine: Engine, *, left: int, killed: int, cut: int) -> list[Check]:
    """Return what holds.

    Args:
        engine: Of the database.
        left: Commands and dead letters that are left on the bus.
        killed: Processes that were killed.
        cut: Times that connections were cut.
    """

    def ask(sql: str) -> int:
        with engine.begin() as connection:
            found: Any = connection.execute(text(sql)).scalar_one()
            return int(found)

    transfers = ask("SELECT count(*) FROM transfer")
    return [
        within("the run", "transfers", transfers, least=1),
        within("the run", "processes killed", killed, least=1),
        within("the run", "times that connections were cut", cut, least=1),
        equal("the books", "postings", ask("SELECT count(*) FROM entry"), 2 * transfers),
        equal("the books", "posted twice", ask(_ONCE), 0),
        equal("the books", "transfers without both postings", ask(_UNPOSTED), 0),
        equal("the books", "postings of a transfer that was rolled back", ask(_UNASKED), 0),
        equal("the books", "postings out of the order of the commits", ask(_ORDER), 0),
        equal("the books", "accounts whose balance is not the sum of their postings", ask(_WRONG), 0),
        equal("the books", "sum of all balances", ask("SELECT sum(balance) FROM account"), 0),
        equal("the outbox", "rows left", ask("SELECT count(*) FROM command_outbox"), 0),
        equal("the bus", "commands and dead letters left", left, 0),
    ]
