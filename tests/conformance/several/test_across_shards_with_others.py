"""Commands over several shards beside other capabilities: encryption, limits, unique keys, delays, purges, large payloads, unknown classes."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from redis.asyncio import Redis

from command_bus import (
    Command,
    CommandBus,
    CommandCancelled,
    CommandContext,
    EntityId,
    EntityPolicy,
    HandlerRegistry,
    InvalidCommand,
    Limit,
    NoHandler,
    Rate,
    Unique,
)
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until
from tests.conformance.several.commands import Deposit, Log, is_empty
from tests.conformance.several.test_across_shards import A, B, C, Move, Round, bus_of, has_ended, is_suspended, moves
from tests.security.test_cipher import ToyCipher

__all__ = ["moves"]


async def test_it_is_encrypted_and_signed_in_each_part(sandbox: Sandbox, moves: Log) -> None:
    protected: dict[str, Any] = {
        "cipher": ToyCipher(b"k" * 32), "signing_keys": ["a:" + "b" * 32], "require_signatures": True, "compress_above": 100
    }  # fmt: skip
    note = "secret" * 100
    async with bus_of(sandbox, **protected) as bus, bus.worker():
        assert await bus.call(Round(first=A, second=C, third=B, note=note), timeout=5)
        await bus.dispatch(Move(source=C, target=A, note=note), command_id="m", history="1 hour")
        assert await bus.result("m", timeout=5) == f"{note} m"
        await until(lambda: is_empty(bus))
        found = (await bus.history.search(entity=("account", C))).entries
        assert [(each.command_id, each.entity_id, each.reply) for each in found] == [("m", C, f"{note} m")]
    assert moves.ended[A] == [note, note]


async def test_a_limit_of_the_type_is_asked_in_each_shard_and_holds_up_nobody_for_ever(sandbox: Sandbox, moves: Log) -> None:
    policies = {"account": EntityPolicy(limits=(Limit(concurrency=1, rate=Rate(100, per=1.0), scope="type"),))}
    async with bus_of(sandbox, entities=policies) as bus, bus.worker():
        await bus.dispatch_batch([Round(first=A, second=B, third=C, note=f"{number}") for number in range(5)])
        await bus.dispatch_batch([Move(source=C, target=A, note=f"m{number}") for number in range(5)])
        await until(lambda: is_empty(bus), 20)
    assert len(moves.ended[A]) == 10


async def test_a_unique_key_is_held_until_the_whole_has_ended(sandbox: Sandbox, moves: Log) -> None:
    async with bus_of(sandbox) as bus, bus.worker():
        await bus.dispatch(Move(source=A, target=C, note="gate"), unique=Unique("k"))
        await until(lambda: is_suspended(bus, A))
        assert (await bus.dispatch(Move(source=A, target=C, note="again"), unique=Unique("k"))).status == "duplicate"
        moves.gates["gate"].set()
        await until(lambda: is_empty(bus))
        assert (await bus.dispatch(Move(source=A, target=C, note="later"), unique=Unique("k"))).status == "accepted"
        await until(lambda: is_empty(bus))
    assert moves.ended[C] == ["gate", "later"]


async def test_a_delayed_one_enters_its_first_lines_at_its_moment(sandbox: Sandbox, moves: Log) -> None:
    async with bus_of(sandbox) as bus, bus.worker():
        await bus.dispatch(Round(first=C, second=B, third=A, note="later"), delay=0.4)
        await bus.dispatch(Deposit(account=A, note="now"))
        await until(lambda: has_ended(moves, C, "later"))
    assert moves.ended[A] == ["now", "later"]


async def test_a_purge_of_a_later_line_ends_the_whole(sandbox: Sandbox, moves: Log) -> None:
    async with bus_of(sandbox) as bus, bus.worker():
        await bus.entity("account", C).pause("ticket")
        calling = asyncio.create_task(bus.call(Move(source=A, target=C, note="gone"), timeout=10))
        await until(lambda: is_suspended(bus, A))
        await until(lambda: waits(bus, C))
        await bus.entity("account", C).purge()
        with pytest.raises(CommandCancelled):
            await calling
        await bus.entity("account", C).resume()
        assert await bus.call(Deposit(account=A, note="after"), timeout=5) == "after"
        await until(lambda: is_empty(bus))


async def waits(bus: CommandBus, account: str) -> bool:
    return (await bus.entity("account", account).show()).head is not None


async def test_a_payload_may_be_as_large_as_that_of_any_command(sandbox: Sandbox, moves: Log) -> None:
    most = 3_000
    async with bus_of(sandbox, max_payload=most) as bus, bus.worker():
        fields = len("...source....target....note.....") + len(A) + len(C)
        largest = "n" * (most - fields)
        assert await bus.call(Move(source=A, target=C, note=largest), timeout=5)
        with pytest.raises(InvalidCommand, match="bytes"):
            await bus.call(Move(source=A, target=C, note=largest + "n" * 100), timeout=5)


class Elsewhere(Command[None], entity="account", across_shards=True):
    source: EntityId
    target: EntityId


async def test_one_that_no_worker_handles_comes_back_to_its_caller(sandbox: Sandbox, moves: Log) -> None:
    async with bus_of(sandbox, unknown_grace=0.2) as bus, bus.worker():
        with pytest.raises(NoHandler):
            await bus.call(Elsewhere(source=A, target=C), timeout=20)
        assert await bus.call(Move(source=A, target=C, note="after"), timeout=10)


async def test_a_worker_of_another_program_runs_it(sandbox: Sandbox, moves: Log) -> None:
    """The worker that has its class need not be the one that holds its first lines."""
    async with bus_of(sandbox, registry=HandlerRegistry()) as other, other.worker(), bus_of(sandbox) as bus, bus.worker():
        for number in range(8):
            assert await bus.call(Move(source=A, target=C, note=str(number)), timeout=20)
        await until(lambda: is_empty(bus))
    assert moves.ended[A] == [str(number) for number in range(8)]


async def test_its_handler_may_call_no_entity_that_it_holds(sandbox: Sandbox, log: Log) -> None:
    refused: list[BaseException] = []

    @sandbox.registry.handles(Elsewhere)
    async def elsewhere(command: Elsewhere, context: CommandContext) -> None:
        for account in (A, C):
            try:
                await context.call(Deposit(account=account), timeout=2)
            except Exception as error:
                refused.append(error)

    async with bus_of(sandbox) as bus, bus.worker():
        await bus.call(Elsewhere(source=A, target=C), timeout=20)
        await until(lambda: is_empty(bus))
    assert [type(each).__name__ for each in refused] == ["CallCycle", "CallCycle"]
    assert not log.ended[A]


async def test_a_shard_that_goes_back_in_time_does_not_send_it_a_second_time(sandbox: Sandbox, moves: Log) -> None:
    """As after a failover that has lost the last writes: the hold runs again, and calls again what stands in the later shard."""
    if sandbox.name == "memory":
        pytest.skip("it has no DUMP of streams")
    async with bus_of(sandbox) as bus, aclosing(sandbox.client(0)) as client:
        assert bus.session.transport.shard_of(f"account:{A}") == 0
        await bus.dispatch(Move(source=A, target=C, note="gate"), command_id="m")
        before = {key: await client.dump(key) for key in await keys_of(client, sandbox)}
        async with bus.worker():
            await until(lambda: is_suspended(bus, A))
            await until(lambda: waits(bus, C))
            await client.delete(*await keys_of(client, sandbox))
            for key, value in before.items():
                await client.restore(key, 0, value)
            await until(lambda: is_suspended(bus, A))
            await bus.dispatch(Deposit(account=C, note="behind"))
            assert (await bus.entity("account", C).depth()) == 2
            moves.gates["gate"].set()
            assert await bus.result("m", timeout=10) == "gate m"
            await until(lambda: has_ended(moves, C, "behind"))
    assert moves.ended[C] == ["gate", "behind"]


async def keys_of(client: Redis, sandbox: Sandbox) -> list[bytes]:
    return [key async for key in client.scan_iter(f"{{{sandbox.namespace}:0}}*")]
