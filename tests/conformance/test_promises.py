"""The suite that authors of other transports run, on every server at hand."""

from __future__ import annotations

import pytest

from command_bus.testing.conformance.fixtures import PromiseSandbox
from command_bus.testing.conformance.promises import PROMISES, Promise
from tests.conformance.conftest import Sandbox


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_promise(sandbox: Sandbox, promise: Promise) -> None:
    await promise(PromiseSandbox(sandbox.clients, namespace=sandbox.namespace))
