"""A rate counts calls of handlers: what ends or goes elsewhere without one takes no token, whoever decides about its start."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus import Command, CommandBus, CommandTimeout, EntityId, EntityPolicy, Limit, Rate
from command_bus.clock import mono
from tests.conformance.conftest import Sandbox

_UNUSED, _USED = 20, 3
_SLOW = Rate(4, burst=1)


class Plain(Command[str], entity="shop"):
    shop: EntityId
    number: int


class Named(Command[str], entity="page", limits=(Limit("partner", key="partner"),)):
    page: EntityId
    partner: str
    number: int


LIMITED: dict[str, tuple[Any, dict[str, Any]]] = {
    "type": (
        lambda n: Plain(shop=f"s{n}", number=n),
        {"entities": {"shop": EntityPolicy(limits=(Limit(rate=_SLOW, scope="type"),))}},
    ),
    "entity": (
        lambda n: Plain(shop="s", number=n),
        {"entities": {"shop": EntityPolicy(limits=(Limit(rate=_SLOW, scope="entity"),))}},
    ),
    "named": (lambda n: Named(page=f"p{n}", partner="a", number=n), {"limits": (Limit("partner", rate=_SLOW),)}),
    "named, one entity": (lambda n: Named(page="p", partner="a", number=n), {"limits": (Limit("partner", rate=_SLOW),)}),
}


async def calls_that_are_over(bus: CommandBus, make: Any) -> None:
    """Call what no worker starts in time."""

    async def call(number: int) -> None:
        with pytest.raises(CommandTimeout):
            await bus.call(make(number), timeout=0.2)

    await asyncio.gather(*map(call, range(_UNUSED)))
    await asyncio.sleep(0.3)  # accepted later than they were sent


async def unknown_commands(bus: CommandBus, make: Any) -> None:
    """Send names that no worker knows."""
    for number in range(_UNUSED):
        await bus.dispatch_raw(make(number).spec().entity, f"x{number}", "Unheard", {})


async def commands_that_do_not_fit(bus: CommandBus, make: Any) -> None:
    """Send fields that do not fit their class."""
    for number in range(_UNUSED):
        spec = make(number).spec()
        await bus.dispatch_raw(spec.entity, f"x{number}", spec.name, {"number": "none"})


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("unused", [calls_that_are_over, unknown_commands, commands_that_do_not_fit])
@pytest.mark.parametrize("limited", LIMITED)
async def test_what_calls_no_handler_takes_no_token(sandbox: Sandbox, limited: str, unused: Any, shards: int) -> None:
    make, options = LIMITED[limited]
    ran: list[float] = []

    @sandbox.registry.handles(Plain)
    @sandbox.registry.handles(Named)
    async def count(command: Plain | Named) -> str:
        ran.append(mono())
        return "ok"

    async with sandbox.bus(shards=shards, **options) as bus:
        await unused(bus, make)
        began = mono()
        calls = [asyncio.create_task(bus.call(make(number), timeout=60)) for number in range(_USED)]
        async with bus.worker(concurrency=50):
            await asyncio.gather(*calls)
    assert len(ran) == _USED
    assert ran[-1] - began < 4.0, f"{_UNUSED + _USED} tokens take {(_UNUSED + _USED) / 4} s"
    assert ran[-1] - ran[0] > (_USED - 1) / 4 - 0.1, "the rate is kept"
