"""The trace that a command belongs to, by its header `traceparent` (W3C Trace Context), for operators who look it up elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)


def trace_id_of(headers: Mapping[str, object] | None) -> str:
    """Return the trace id in a command's headers; empty if there is none."""
    found = _TRACEPARENT.fullmatch(str((headers or {}).get("traceparent", "")))
    return "" if found is None or not int(found[1], 16) else found[1]
