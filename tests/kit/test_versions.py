"""Older versions of a command on a test bus."""

from __future__ import annotations

from typing import Any

from command_bus import Command, EntityId, HandlerRegistry, upcasts
from command_bus.testing import TestBus


class Deposit(Command[int], entity="account", version=2):
    account: EntityId
    cents: int


@upcasts(Deposit, since=1)
def cents_for_euros(fields: dict[str, Any]) -> dict[str, Any]:
    return {"account": fields["account"], "cents": fields["euros"] * 100}


async def test_an_old_shape_is_sent_by_name() -> None:
    registry = HandlerRegistry()
    seen: list[int] = []

    @registry.handles(Deposit)
    async def deposit(command: Deposit) -> int:
        seen.append(command.cents)
        return command.cents

    async with TestBus(registry, compress_above=10) as bus:
        await bus.dispatch_raw("account", "a", "Deposit", {"account": "a", "euros": 5})
        await bus.dispatch_raw("account", "a", "Deposit", {"account": "a", "cents": 7}, version=2, delay=3600)
        await bus.run_until_idle()
        assert seen == [500, 7]
