"""Small capabilities on the in-memory server of `TestBus`: the conformance tests run on it, in real time."""

from __future__ import annotations

import time

import pytest

from command_bus.testing.simulated.live import LiveServer, Process
from tests.conformance.conftest import Sandbox
from tests.conformance.operating.test_edited_replays import *  # noqa: F403 - the tests themselves
from tests.conformance.operating.test_letter_retention import *  # noqa: F403 - as above
from tests.conformance.operating.test_letter_retention import harness
from tests.conformance.operating.test_max_entities import *  # noqa: F403 - as above
from tests.conformance.operating.test_recount import *  # noqa: F403 - as above
from tests.conformance.operating.test_worker_pause import *  # noqa: F403 - as above
from tests.conformance.operating.test_worker_pause import floor

__all__ = ["floor", "harness", "sandbox"]


@pytest.fixture
async def sandbox() -> Sandbox:
    return Sandbox("memory", Process(LiveServer(time.monotonic)))
