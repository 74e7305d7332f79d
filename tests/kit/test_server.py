"""The in-memory server of `TestBus` behaves like a real one: the conformance tests run on it, in real time."""

from __future__ import annotations

import time

import pytest

from command_bus.testing.conformance.fixtures import PromiseSandbox
from command_bus.testing.conformance.promises import PROMISES, Promise
from command_bus.testing.simulated.live import LiveServer, Process
from tests.conformance.conftest import Sandbox
from tests.conformance.test_delivery import *  # noqa: F403 - the tests themselves
from tests.conformance.test_delivery import app
from tests.conformance.test_dispatches import *  # noqa: F403 - as above

__all__ = ["app", "sandbox"]


@pytest.fixture
async def sandbox() -> Sandbox:
    return Sandbox("memory", Process(LiveServer(time.monotonic)))


_THREADS = ("a_lost_worker_is_succeeded", "at_most_once_never_starts_again", "a_lost_holder_changes_nothing")
"""They sever the connection of the renewing thread, which is a task here; how a worker is lost here is for test_bus.py."""


@pytest.mark.parametrize(
    "promise", [promise for promise in PROMISES if promise.__name__ not in _THREADS], ids=lambda promise: promise.__name__
)
async def test_promise(sandbox: Sandbox, promise: Promise) -> None:
    await promise(PromiseSandbox(sandbox.clients))
