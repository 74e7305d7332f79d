"""Trace ids in headers that anybody may have written."""

from __future__ import annotations

import pytest

from command_bus.admin.json_data import trace_id_of

ID = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (f"00-{ID}-b7ad6b7169203331-01", ID),
        (f"00-{ID}-b7ad6b7169203331-01\n", ""),
        (f"00-{ID.upper()}-b7ad6b7169203331-01", ""),
        (f"00-{ID}-b7ad6b7169203331", ""),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", ""),
        (f"00-{'x' * 32}-b7ad6b7169203331-01", ""),
        ("javascript:alert(1)", ""),
        ("", ""),
    ],
)
def test_a_trace_id_is_one_or_nothing(header: str, found: str) -> None:
    assert trace_id_of({"traceparent": header}) == found


def test_without_headers_there_is_none() -> None:
    assert trace_id_of(None) == trace_id_of({}) == ""
