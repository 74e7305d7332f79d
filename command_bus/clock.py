"""Two clocks, two names: `wall_ms` is stored and shown, `mono` is subtracted. Leases use neither, but the server's clock."""

from __future__ import annotations

import time

__all__ = ["mono", "wall_ms"]

mono = time.monotonic
"""Seconds that never jump, for durations and local deadlines."""


def wall_ms() -> int:
    """Milliseconds since the epoch by this machine's wall clock, for people and records."""
    return time.time_ns() // 1_000_000
