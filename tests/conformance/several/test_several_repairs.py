"""Lines of commands of several entities whose keys somebody has deleted: after upkeep nothing is stuck. Over every server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from command_bus import CommandBus
from command_bus.transport.redis.keys import ShardKeys
from command_bus.transport.redis.ready_stream import repair_page
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until
from tests.conformance.several.commands import Deposit, Log, Transfer, holds


async def delete_entry(client: Any, keys: ShardKeys, mailbox: str, field: bytes) -> None:
    """Delete the first entry of a mailbox that has a field."""
    for entry, fields in await client.xrange(keys.mailbox(mailbox)):
        if field in fields:
            await client.xdel(keys.mailbox(mailbox), entry)
            return
    raise LookupError(mailbox)


async def place(client: Any, keys: ShardKeys) -> None:
    await delete_entry(client, keys, "account:b", b"s")


async def home(client: Any, keys: ShardKeys) -> None:
    await delete_entry(client, keys, "account:a", b"w")


async def line_of_the_home(client: Any, keys: ShardKeys) -> None:
    await client.delete(keys.mailbox("account:a"))
    await client.hdel(keys.active, "account:a")


async def line_of_the_place(client: Any, keys: ShardKeys) -> None:
    await client.delete(keys.mailbox("account:b"))
    await client.hdel(keys.active, "account:b")


async def activations(client: Any, keys: ShardKeys) -> None:
    await client.xtrim(keys.ready, maxlen=0, approximate=False)


DAMAGES: list[Callable[[Any, ShardKeys], Awaitable[None]]] = [place, home, line_of_the_home, line_of_the_place, activations]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("before", ["a", "b"])
async def test_nothing_is_stuck_after_upkeep(
    sandbox: Sandbox, log: Log, damage: Callable[[Any, ShardKeys], Awaitable[None]], before: str
) -> None:
    async with sandbox.bus() as bus:
        keys, server = await _server(bus)
        await bus.dispatch(Deposit(account=before, note="gate 0"))
        await bus.dispatch(Transfer(source="a", target="b", note="2"))
        await bus.dispatch_batch([Deposit(account="a", note="3"), Deposit(account="b", note="4")])
        async with bus.worker():
            await until(lambda: holds(log.running == {before}))
            await server.ask(damage, keys)
            log.gates["gate 0"].set()
            await until(lambda: _repaired(bus, server, keys))
            await bus.dispatch_batch([Deposit(account="a", note="5"), Deposit(account="b", note="5")])
            await until(lambda: _repaired(bus, server, keys))
    assert log.ended["a"][-1] == log.ended["b"][-1] == "5"


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
async def test_what_waits_for_its_first_start_is_repaired_too(
    sandbox: Sandbox, log: Log, damage: Callable[[Any, ShardKeys], Awaitable[None]]
) -> None:
    async with sandbox.bus() as bus:
        keys, server = await _server(bus)
        await bus.dispatch(Transfer(source="a", target="b", note="2"))
        await bus.dispatch_batch([Deposit(account="a", note="3"), Deposit(account="b", note="4")])
        await server.ask(damage, keys)
        async with bus.worker():
            await until(lambda: _repaired(bus, server, keys))
            await bus.dispatch_batch([Deposit(account="a", note="5"), Deposit(account="b", note="5")])
            await until(lambda: _repaired(bus, server, keys))
    assert log.ended["a"][-1] == log.ended["b"][-1] == "5"
    assert damage is not activations or log.ended == {"a": ["2", "3", "5"], "b": ["2", "4", "5"]}


async def _server(bus: CommandBus) -> tuple[ShardKeys, Any]:
    keys = bus.session.redis.keys.shards[0]
    return keys, bus.session.redis.connections.at(keys.prefix)


async def _repaired(bus: CommandBus, server: Any, keys: ShardKeys) -> bool:
    await repair_page(server, keys, 0)
    return (await bus.stats()).entities == 0
