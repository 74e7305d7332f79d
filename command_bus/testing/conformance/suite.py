"""The promises as a pytest test; needs a fixture `command_bus_clients` that returns a `ClientFactory`."""

from __future__ import annotations

import asyncio

import pytest

from command_bus.testing.conformance.fixtures import PromiseSandbox
from command_bus.testing.conformance.promises import PROMISES, Promise
from command_bus.transport.redis.connection.factory import ClientFactory

__all__ = ["test_promise"]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_promise(promise: Promise, command_bus_clients: ClientFactory) -> None:
    """Check one promise in a new event loop."""
    asyncio.run(promise(PromiseSandbox(command_bus_clients)))
