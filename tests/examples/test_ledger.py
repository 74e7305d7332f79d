"""The ledger, as a user runs it, but shorter: everybody is killed, and everything must agree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: pip install 'command-bus[sql]'")

from sqlalchemy import Engine, create_engine, insert

from command_bus.sql import metadata
from examples.ledger.books import ACCOUNT, ENTRY, OWN, TRANSFER
from examples.ledger.proof import checks
from scripts.postgres import postgres, programs
from tests.examples.program import run_example


@pytest.mark.promise("An outbox sends what commits, once, in order", "An inbox's effect happens once")
@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(150)
def test_everything_agrees_although_everybody_is_killed(tmp_path: Path) -> None:
    if programs() is None:
        pytest.skip("no PostgreSQL is here")
    printed = run_example("ledger", "--seconds", "12", "--out", str(tmp_path), timeout=140)
    assert "Everything agrees." in printed


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    found = programs()
    if found is None:
        pytest.skip("no PostgreSQL is here")
    with postgres(found) as url:
        made = create_engine(url)
        yield made
        made.dispose()


GOOD = [("t-1", "a0", 1, -5), ("t-1", "a1", 1, 5), ("t-2", "a0", 2, -7), ("t-2", "a1", 2, 7)]


@pytest.mark.parametrize(
    ("entries", "complaints"),
    [
        (GOOD, set()),
        (GOOD[:3], {"postings", "transfers without both postings", "accounts whose balance is not the sum of their postings"}),
        ([*GOOD[:2], GOOD[3], GOOD[2]], set()),
        ([GOOD[2], GOOD[1], GOOD[0], GOOD[3]], {"postings out of the order of the commits"}),
        ([*GOOD, GOOD[3]], {"postings", "posted twice", "postings out of the order of the commits"}),
        ([*GOOD, ("t-3", "a0", 3, 0)], {"postings", "postings of a transfer that was rolled back"}),
    ],
)
def test_the_proof_finds_what_is_wrong(engine: Engine, entries: list[tuple[str, str, int, int]], complaints: set[str]) -> None:
    for tables in (metadata, OWN):
        tables.drop_all(engine)
        tables.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(TRANSFER), [{"id": name, "cents": 5} for name in ("t-1", "t-2")])
        connection.execute(insert(ACCOUNT), [{"id": "a0", "asked": 2, "balance": -12}, {"id": "a1", "asked": 2, "balance": 12}])
        rows = [dict(zip(("transfer", "account", "number", "cents"), entry, strict=True)) for entry in entries]
        connection.execute(insert(ENTRY), rows)
    found = {each.what for each in checks(engine, left=0, killed=1, cut=1) if not each.holds}
    assert complaints <= found
    assert bool(found) == bool(complaints)
