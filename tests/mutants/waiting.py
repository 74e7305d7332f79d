"""Breakages of how entities wait for a worker."""

from __future__ import annotations

from tests.mutants.line import LINE
from tests.mutants.lone import LONE

__all__ = ["WAITING"]

WAITING = (*LINE, *LONE)
