"""A customer's account and what a purchase does to it: pure, one purchase at a time."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from examples.retail.commands import RecordPurchase

__all__ = ["DOUBLE_BOOKING", "Account", "apply", "from_text", "is_double_booking", "to_text"]

DOUBLE_BOOKING: Final = "double_booking"


@dataclass(frozen=True, slots=True)
class Account:
    """The state of a customer after the purchases so far.

    Attributes:
        line: The last purchase applied.
        day: Its day, ISO.
        same_day: The purchases of that day so far, as discs and cents.
        violations: Purchases that came after a later one. The bus promises none.
        repeats: Purchases delivered again after a crash and skipped: allowed, hence no part of a comparison.
    """

    purchases: int = 0
    discs: int = 0
    cents: int = 0
    line: int = 0
    day: str = ""
    same_day: tuple[tuple[int, int], ...] = ()
    violations: int = 0
    repeats: int = field(default=0, compare=False)

    @property
    def totals(self) -> tuple[int, int, int]:
        """Purchases, discs and cents."""
        return self.purchases, self.discs, self.cents


def is_double_booking(account: Account, purchase: RecordPurchase) -> bool:
    """Return whether it repeats a purchase of the same day: as many discs for as many dollars.

    It may be right, but a person has to confirm it.
    """
    return account.day == purchase.day.isoformat() and (purchase.discs, cents(purchase)) in account.same_day


def apply(account: Account, purchase: RecordPurchase, *, again: bool = False) -> Account:
    """Return the account after the purchase.

    Only the last purchase applied may come again, and only if this is not its first attempt (`again`): its worker died before the
    bus recorded it. Any other that does not come after its predecessor is counted as a violation.
    """
    if purchase.line == account.line and again:
        return replace(account, repeats=account.repeats + 1)
    if purchase.line <= account.line:
        return replace(account, violations=account.violations + 1)
    day = purchase.day.isoformat()
    same_day = account.same_day if day == account.day else ()
    return replace(
        account,
        purchases=account.purchases + 1,
        discs=account.discs + purchase.discs,
        cents=account.cents + cents(purchase),
        line=purchase.line,
        day=day,
        same_day=(*same_day, (purchase.discs, cents(purchase))),
    )


def cents(purchase: RecordPurchase) -> int:
    """Return the price."""
    return int(purchase.dollars * 100)


def to_text(account: Account) -> str:
    """Return the account as it is stored."""
    return json.dumps(asdict(account))


def from_text(text: str | bytes) -> Account:
    """Return the stored account."""
    values = json.loads(text)
    values["same_day"] = tuple((discs, paid) for discs, paid in values["same_day"])
    return Account(**values)
