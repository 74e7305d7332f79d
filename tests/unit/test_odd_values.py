"""Odd values are counted and logged once a minute of each kind; records are read by the types of their fields."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest

from command_bus.doctor.diagnosis import check_values
from command_bus.serialization import odd_values
from command_bus.serialization.odd_values import OddValues, stored_ms, stored_number, stored_text
from command_bus.serialization.stored_fields import stored_fields


def test_one_line_a_minute_of_each_kind(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    monkeypatch.setattr(odd_values, "mono", lambda: now)
    found = OddValues()
    with caplog.at_level(logging.WARNING, "command_bus.transport"):
        for number in range(3):
            found.pass_over("due", f"r:{number}", ValueError("no"))
        found.pass_over("schedules", b"\xff\x1b[2J")
        now = 161.0
        found.pass_over("due", "r:9")
    assert found.counts() == {"due": 4, "schedules": 1}
    assert [record.getMessage() for record in caplog.records] == [
        "an odd value in due is passed over: r:0: no",
        "an odd value in schedules is passed over: \\xff\\x1b[2J",
        "an odd value in due is passed over: r:9 (2 more since the last line)",
    ]


@dataclass
class Record:
    name: str
    count: int = 0
    seconds: float = 0.0
    on: bool = False
    at: int | None = None
    names: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("values", "fits"),
    [
        ({"name": "a", "count": 5, "seconds": 2, "on": True, "at": None, "names": ["x"]}, True),
        ({"name": "a", "later": 1}, True),
        ({"name": 5}, False),
        ({"name": "\ud800"}, False),
        ({"name": "a", "count": True}, False),
        ({"name": "a", "count": 2**63}, False),
        ({"name": "a", "count": 1.0}, False),
        ({"name": "a", "seconds": float("nan")}, False),
        ({"name": "a", "seconds": float("inf")}, False),
        ({"name": "a", "seconds": "5"}, False),
        ({"name": "a", "on": 1}, False),
        ({"name": "a", "at": "x"}, False),
        ({"name": "a", "names": "xy"}, False),
        ({"name": "a", "names": ["x", None]}, False),
        ([], False),
        (None, False),
    ],
)
def test_a_record_has_the_types_of_its_fields(values: Any, fits: bool) -> None:
    if not fits:
        with pytest.raises(ValueError, match="is"):
            stored_fields(Record, values)
        return
    found = stored_fields(Record, values)
    assert "later" not in found
    assert Record(**found).names == tuple(values.get("names", ()))


def test_what_is_no_number_is_the_default() -> None:
    for odd in (b"", b"-1", b"nan", b"1e3", b"0x10", "\u0661", b"9" * 40, b"\xff"):
        assert stored_number("test", odd, 7) == 7
    assert stored_number("test", b"42") == stored_number("test", "42") == 42
    assert [stored_ms(score) for score in (float("-inf"), -5.0, 1.5, float("inf"))] == [0, 0, 1, 2**53]
    assert stored_text(b"a\xff") == "a\\xff"


def test_doctor_tells_what_it_passed_over() -> None:
    assert check_values({}) == []
    (finding,) = check_values({"due": 3, "rules": 1})
    assert (finding.grade, finding.found) == ("warning", "3 in due, 1 in rules cannot be what they should be")
