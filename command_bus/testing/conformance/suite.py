"""The promises as a pytest test.

It needs a fixture `command_bus_clients` that returns a `ClientFactory`, or a fixture `command_bus_sandbox` that returns a new `PromiseSandbox`
for each test.
"""

from __future__ import annotations

import asyncio

import pytest

from command_bus.testing.conformance.fixtures import PromiseSandbox
from command_bus.testing.conformance.promises import NEED_A_LOST_WORKER, PROMISES, Promise


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_promise(promise: Promise, command_bus_sandbox: PromiseSandbox) -> None:
    """Check one promise in a new event loop."""
    if promise in NEED_A_LOST_WORKER and not command_bus_sandbox.can_lose_workers:
        pytest.skip("the sandbox has no open_severable: it cannot lose a worker")
    asyncio.run(promise(command_bus_sandbox))
