"""Suggestions for misspelt names."""

from __future__ import annotations

import pytest

from command_bus.spelling import did_you_mean, nearest

KNOWN = ("account", "order", "report", "parcel")


@pytest.mark.parametrize(
    ("name", "meant"), [("acount", "account"), ("ORDER", "order"), ("reports", "report"), ("nope", None), ("", None)]
)
def test_the_nearest_name_is_found(name: str, meant: str | None) -> None:
    assert nearest(name, KNOWN) == meant
    assert did_you_mean(name, KNOWN) == ("" if meant is None else f"; did you mean {meant!r}?")


def test_nothing_is_like_a_name_where_nothing_is_known() -> None:
    assert did_you_mean("account", ()) == ""
