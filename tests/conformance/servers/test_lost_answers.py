"""An operator's step whose answer is lost is repeated, and what it says is still true."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from command_bus.errors import TransportUnavailable
from command_bus.transport.mailboxes import EVERYTHING
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.scripts import HOLD, Script
from tests.conformance.conftest import Sandbox
from tests.conformance.harness import TransportHarness, transport_harness

each_scope = pytest.mark.parametrize("scope", ["box:a", "box:*", EVERYTHING], ids=["entity", "type", "bus"])
each_verb = pytest.mark.parametrize("verb", ["pause", "drain", "resume"])


class Forgetful(Connections):
    """Connections that lose the first answer to each operator's step: the server has carried it out."""

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__(sandbox.clients.at(f"{{{sandbox.namespace}:0}}:"))
        self.lost = 0
        self._again: list[Any] = []

    async def run(self, script: Script, keys: list[str], args: list[Any]) -> Any:
        answer = await super().run(script, keys, args)
        if script is HOLD and self._again != args:
            self._again = args
            self.lost += 1
            raise TransportUnavailable("the answer was lost", outcome_unknown=True)
        return answer


@pytest.fixture
async def harness(sandbox: Sandbox) -> AsyncIterator[TransportHarness]:
    async with transport_harness(sandbox.clients, sandbox.namespace, Forgetful(sandbox)) as harness:
        yield harness


async def operate(harness: TransportHarness, verb: str, scope: str) -> bool:
    match verb:
        case "pause":
            return await harness.scopes.pause(scope, "why")
        case "drain":
            return await harness.scopes.drain(scope, "why")
        case _:
            return await harness.scopes.resume(scope)


@pytest.mark.promise("The answer of a pause, drain or resume is lost")
@each_scope
@each_verb
async def test_it_says_that_it_changed_something(harness: TransportHarness, scope: str, verb: str) -> None:
    if verb == "resume":
        await harness.scopes.pause(scope, "")
    assert await operate(harness, verb, scope)
    assert isinstance(harness.connections, Forgetful)
    assert harness.connections.lost >= (2 if verb == "resume" else 1)


@pytest.mark.promise("The answer of a pause, drain or resume is lost")
@each_scope
@each_verb
async def test_it_says_that_it_found_it_so(harness: TransportHarness, scope: str, verb: str) -> None:
    await operate(harness, verb, scope)
    assert not await operate(harness, verb, scope)


@each_scope
async def test_from_a_pause_to_draining_and_back_is_a_change(harness: TransportHarness, scope: str) -> None:
    await harness.scopes.pause(scope, "")
    assert await harness.scopes.drain(scope, "")
    assert await harness.scopes.pause(scope, "")
