"""Carries out the table of `masked.py`; and what masking costs, whatever is in a payload."""

from __future__ import annotations

import json
import re
from time import process_time
from typing import Any

import pytest

pytest.importorskip("starlette")

from command_bus.dashboard.masking import CROWDED, MASK, MOST_BYTES, MOST_VALUES, Masking
from tests.tables.masked import VALUES, WAYS

MASKING = Masking(["card"])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", VALUES)
def test_no_error_shows_a_masked_value(kind: str, way: str) -> None:
    value, secrets = VALUES[kind]
    for secret in secrets:
        quoted = WAYS[way](secret)
        shown = MASKING.text("Charge", {"card": value, "name": "Ann"}, f"Ann: input_value={quoted}, of no use")
        assert re.sub(r"b?'|data:;base64,", "", shown) == f"Ann: input_value={MASK}, of no use"


@pytest.mark.parametrize("values", [["a", "ab"] * 40_000, ["x" * 5_000] * 100, [f"{number:09}" for number in range(20_000)]])
def test_a_payload_with_very_many_values_shows_no_text_and_costs_little(values: list[str]) -> None:
    began = process_time()
    for _ in range(20):
        assert MASKING.text("Charge", {"card": values}, "an error " * 2_000) == CROWDED
    assert process_time() - began < 1
    assert MASKING.text("Charge", {"name": values}, "an error") == "an error"


def test_as_many_as_are_looked_for_are_found() -> None:
    values = [f"{number:09}" for number in range(MOST_VALUES)]
    assert sum(map(len, values)) <= MOST_BYTES
    assert MASKING.text("Charge", {"card": values}, f"no {values[-1]}") == f"no {MASK}"


def test_an_edited_list_takes_time_in_proportion() -> None:
    numbers: list[Any] = [{"card": str(number), "n": number} for number in range(4_000)]
    before = {"rows": numbers}
    given = json.loads(MASKING.shown("Charge", before))
    given["rows"].reverse()
    began = process_time()
    edited = MASKING.edited("Charge", before, given)
    assert process_time() - began < 3
    assert edited["rows"] == numbers[::-1]
