"""The steps by name, for tests that run once per step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from command_bus.transport.steps import Done, Step
from tests.conformance.harness import bury, done, left

__all__ = ["SETTLING", "each"]


SETTLING: dict[str, Callable[[str], Step]] = {
    "done": done,
    "reject": lambda name: Done(left(name), status="rejected"),
    "expire": lambda name: Done(left(name), status="expired"),
    "bury": bury,
}


def each(verbs: dict[str, Callable[[str], Step]]) -> Any:
    return pytest.mark.parametrize("step_for", verbs.values(), ids=verbs.keys())
