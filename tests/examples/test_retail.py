"""The retail example's parts without a bus and without Spark. The rest: tests/spark/test_examples.py."""

from __future__ import annotations

import itertools
from datetime import date
from decimal import Decimal
from typing import Any, cast

import pytest
from pydantic import ValidationError

from command_bus import CommandContext, Reject
from examples.retail import table
from examples.retail.commands import RecordPurchase
from examples.retail.handlers import PaymentProviderDown, registry_for
from examples.retail.ledger import Ledger
from examples.retail.model import Account, apply, from_text, is_double_booking, to_text
from examples.retail.table import SPOILT, Row, read_rows, slices, write_slice

TEXT = """\
 customer_id  date number_of_cds  dollar_value
 00001 19970101  1   11.77
 00002 19970112  1   12.00
 00002 19970112  5   77.00
 00002 19970112  1   12.00
 00003 19970102  2  932.23
"""


def bought(line: int, dollars: str = "11.77", *, discs: int = 1, day: str = "1997-01-01") -> RecordPurchase:
    return RecordPurchase(customer="00001", line=line, day=date.fromisoformat(day), discs=discs, dollars=Decimal(dollars))


class TestTable:
    @pytest.fixture
    def rows(self, tmp_path):
        path = tmp_path / "table.txt"
        path.write_text(TEXT)
        return read_rows(path)

    def test_rows_are_numbered_because_nothing_else_tells_them_apart(self, rows):
        assert rows[0] == Row(1, "00001", "19970101", "1", "11.77")
        assert [row.line for row in rows] == [1, 2, 3, 4, 5]
        assert rows[1][1:] == rows[3][1:]

    def test_slices_hold_everything_once_by_day(self, rows):
        parts = slices([*rows, *SPOILT], 4)
        assert [len(part) for part in parts] == [4, 4, 4, 1]
        flat = list(itertools.chain(*parts))
        assert sorted(flat) == sorted([*rows, *SPOILT])
        assert [row.line for row in flat if row.line < 10] == [1, 5, 2, 3, 4]

    def test_a_slice_appears_whole(self, rows, tmp_path):
        path = tmp_path / "slice.csv"
        write_slice(rows[:2], path, 1_000_000.5)
        assert path.stat().st_mtime == 1_000_000.5
        assert path.read_text().split() == ["1,00001,19970101,1,11.77", "2,00002,19970112,1,12.00"]
        assert list(tmp_path.glob("*.csv")) == [path]

    def test_a_missing_package_says_what_to_install(self, monkeypatch):
        monkeypatch.setattr(table, "find_spec", lambda _: None)
        with pytest.raises(table.MissingTable, match="pip install"):
            table.table_path()

    def test_the_figures_of_the_documentation(self):
        try:
            rows = read_rows()
        except table.MissingTable as missing:
            pytest.skip(str(missing))
        assert len(rows) == 69_659
        assert len({row.customer for row in rows}) == 23_570
        assert len(rows) - len({row[1:] for row in rows}) == 255
        assert sum(Decimal(row.dollars) for row in rows) == Decimal("2500315.63")
        assert sum(Decimal(row.dollars) >= 900 for row in rows) == 5


class TestModel:
    def test_purchases_add_up(self):
        account = apply(apply(Account(), bought(1)), bought(2, "77.00", discs=5))
        assert account.totals == (2, 6, 8877)
        assert (account.line, account.day, account.same_day) == (2, "1997-01-01", ((1, 1177), (5, 7700)))
        assert from_text(to_text(account)) == account

    def test_the_same_on_the_same_day_is_a_double_booking(self):
        account = apply(apply(Account(), bought(1)), bought(2, "77.00", discs=5))
        assert is_double_booking(account, bought(3))
        assert not is_double_booking(account, bought(3, discs=2))
        assert not is_double_booking(account, bought(3, day="1997-01-02"))
        assert not is_double_booking(apply(account, bought(3, "5.00", day="1997-01-02")), bought(4))

    def test_what_does_not_come_after_its_predecessor_is_a_violation(self):
        account = apply(Account(), bought(5))
        assert apply(account, bought(4)).violations == 1
        assert apply(account, bought(5)).violations == 1
        assert apply(account, bought(4), again=True).violations == 1

    def test_a_redelivery_after_a_crash_changes_nothing_and_is_counted_apart(self):
        account = apply(Account(), bought(5))
        again = apply(account, bought(5), again=True)
        assert again == account
        assert again.repeats == 1

    @pytest.mark.parametrize(
        "changed", [{"dollars": "-29.33"}, {"dollars": "NaN"}, {"dollars": "9,77"}, {"discs": 0}, {"day": "1997-02-31"}]
    )
    def test_what_is_no_purchase_is_no_command(self, changed):
        with pytest.raises(ValidationError):
            RecordPurchase.model_validate({**bought(1).model_dump(mode="json"), **changed})


class FakeClient:
    """Just what the ledger asks of a client."""

    def __init__(self) -> None:
        self.stored: dict[str, str] = {}

    async def get(self, key: str) -> str | None:
        return self.stored.get(key)

    async def set(self, key: str, value: str) -> None:
        self.stored[key] = value

    async def exists(self, key: str) -> int:
        return int(key in self.stored)


class TestHandler:
    @pytest.fixture
    def ledger(self):
        return Ledger(cast("Any", FakeClient()), "run")

    @pytest.fixture
    def handle(self, ledger):
        handler = registry_for(ledger).lookup("retail.record_purchase")
        assert handler is not None

        async def run(command, **context):
            return await handler.invoke(command, CommandContext(**context))

        return run

    async def test_it_replies_with_the_total(self, handle, ledger):
        assert await handle(bought(1)) == 1177
        assert await handle(bought(2, "0.23")) == 1200
        assert (await ledger.load("00001")).purchases == 2

    async def test_a_double_booking_is_refused_and_leaves_the_account_alone(self, handle, ledger):
        await handle(bought(1))
        with pytest.raises(Reject) as refused:
            await handle(bought(2))
        assert refused.value.code == "double_booking"
        assert (await ledger.load("00001")).totals == (1, 1, 1177)

    async def test_a_redelivered_purchase_is_no_double_booking(self, handle, ledger):
        await handle(bought(1))
        assert await handle(bought(1), attempt=2) == 1177
        assert (await ledger.load("00001")).repeats == 1

    async def test_a_large_payment_fails_until_the_provider_answers(self, handle, ledger):
        with pytest.raises(PaymentProviderDown):
            await handle(bought(1, "900.00"))
        assert (await ledger.load("00001")).purchases == 0
        await ledger.repair_provider()
        assert await handle(bought(1, "900.00")) == 90_000
