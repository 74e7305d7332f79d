"""The checkout, as a user runs it, but shorter: workers are killed, and everything must agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.checkout.books import checkout_books
from examples.checkout.proof import checks
from examples.checkout.provider import Ledger, ledger_beside
from examples.flights.verdict import Check
from tests.examples.program import run_example


@pytest.mark.promise("A stored step is not repeated")
@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(150)
def test_everything_agrees_although_workers_are_killed(tmp_path: Path) -> None:
    printed = run_example("checkout", "--seconds", "12", "--out", str(tmp_path), timeout=140)
    assert "Everything agrees." in printed


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return ledger_beside(tmp_path / "books.sqlite")


def wrong(tmp_path: Path, ledger: Ledger, ends: dict[str, str]) -> set[str]:
    """Return what the proof finds wrong with the orders and the stock."""
    found: list[Check] = checks(checkout_books(tmp_path / "books.sqlite"), ledger, ends, left=0, killed=9, kept=0)
    return {check.what for check in found if check.of == "the orders" and check.wanted == "0" and not check.holds}


@pytest.mark.parametrize(
    ("deeds", "complaint"),
    [
        (["charge a", "charge b", "ship"], {"charged more than once"}),
        (["charge a"], {"charged, neither shipped nor paid back"}),
        (["ship"], {"shipped and not charged, or paid back"}),
        (["charge a", "refund", "ship"], {"shipped and not charged, or paid back"}),
        (["charge a", "refund"], set()),
        (["charge a", "ship"], set()),
    ],
)
def test_the_proof_finds_what_is_wrong(tmp_path: Path, ledger: Ledger, deeds: list[str], complaint: set[str]) -> None:
    books, ends = checkout_books(tmp_path / "books.sqlite"), {"order-1": "late"}
    for deed in deeds:
        if deed == "ship":
            books.rows("INSERT INTO reserved VALUES ('order-1', 'lamp')")
            books.note("shipped", "order-1", "1")
            ends["order-1"] = "shipped"
        elif deed == "refund":
            ledger.refund("order-1")
        else:
            ledger.begin(deed, "order-1", 500, "charged")
    assert wrong(tmp_path, ledger, ends) == complaint


def test_the_provider_charges_once_per_key_and_not_after_a_refund(ledger: Ledger) -> None:
    assert ledger.begin("k", "order-1", 500, "charged") == "charged"
    assert ledger.begin("k", "order-1", 500, "pending") == "charged"
    ledger.refund("order-1")
    assert ledger.begin("k", "order-1", 500, "charged") == "refunded"
    assert ledger.begin("another", "order-1", 500, "charged") == "refused"
    assert ledger.confirm("another") is False
