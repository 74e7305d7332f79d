"""The breakages of single parts of the bus."""

from __future__ import annotations

from tests.mutants.limits import LIMITS
from tests.mutants.lone import LONE
from tests.mutants.policies import POLICIES
from tests.mutants.reserved import RESERVED
from tests.mutants.slots import SLOTS

__all__ = ["PARTS"]

PARTS = (*LIMITS, *LONE, *POLICIES, *RESERVED, *SLOTS)
