"""Attempt ids: fence and message id of one start, with a bar between.

A fence is the server's time of the start in microseconds, raised where needed, so that it grows with every start in the shard.
"""

from __future__ import annotations


def attempt_id(fence: str, message: str) -> str:
    """Return the id of an attempt."""
    return fence + "|" + message


def fence_of(attempt: str) -> int:
    """Return the fence in an attempt's id."""
    return int(attempt.partition("|")[0])


def began_ms(fence: int | str) -> int:
    """Return the server's time in milliseconds when an attempt began, about: its clock may have jumped since."""
    return int(fence) // 1000
