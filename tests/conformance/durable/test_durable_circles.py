"""Calls that would wait for each other, and outcomes that were lost on their way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus import (
    CallCycle,
    Command,
    CommandContext,
    CommandFailed,
    CommandInterrupted,
    CommandTimeout,
    DurableContext,
    EntityId,
)
from command_bus.durable import run
from command_bus.transport.redis.maintenance import suspended_work
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Charge, Flow, Reserve, Shop
from tests.conformance.put_service import until


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


class Ping(Command[Any], entity="ping"):
    key: EntityId
    then: str = ""


class Pong(Command[Any], entity="pong"):
    key: EntityId
    then: str = ""


class First(Command[Any], entity="one", durable=True):
    key: EntityId


class Second(Command[Any], entity="two", durable=True):
    key: EntityId


class Leaf(Command[int], entity="one"):
    key: EntityId


class OtherLeaf(Command[int], entity="two"):
    key: EntityId


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_chain_that_comes_back_fails_at_once_with_its_path(sandbox: Sandbox, shop: Shop, shards: int) -> None:
    """Of plain calls as well, whose inner call would else end with its timeout."""

    @sandbox.registry.handles(Ping)
    async def ping(command: Ping, context: CommandContext) -> Any:
        shop.log.append("ping")
        return await context.call(Pong(key=command.key, then="o-1"), timeout=30)

    @sandbox.registry.handles(Pong)
    async def pong(command: Pong, context: CommandContext) -> Any:
        shop.log.append("pong")
        return await context.call(Flow(order=command.then), timeout=30)

    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.step("run", shop.effect, "run")
        return await context.call(Ping(key="a"))

    async with sandbox.bus(shards=shards) as bus, bus.worker():
        with pytest.raises(CallCycle, match="order:o-1 → ping:a → pong:a → order:o-1"):
            await bus.call(Flow(order="o-1"), timeout=20)
        letters = [(each.name, each.attempts) async for each in bus.dead_letters.list()]
    assert shop.log == ["run", "ping", "pong"], "it is not retried"
    assert sorted(letters) == sorted((kind.spec().name, 1) for kind in (Flow, Ping, Pong)), "each says why it has failed"


async def test_a_call_of_the_own_entity_is_refused(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        try:
            await context.call(Flow(order="o-1"))
        except CallCycle as error:
            return error.message

    async with sandbox.bus() as bus, bus.worker():
        assert "which it holds itself" in await bus.call(Flow(order="o-1"), timeout=20)


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_circle_of_two_roots_ends_with_the_call_that_came_last(
    sandbox: Sandbox, shop: Shop, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One calls two while two calls one: each waits behind the other."""
    monkeypatch.setattr(suspended_work, "_EVERY", 0.2)
    begun: list[str] = []
    both = asyncio.Event()

    async def at_once(key: str) -> None:
        begun.append(key)
        if len(begun) == 2:
            both.set()
        await both.wait()

    @sandbox.registry.handles(First)
    async def first(command: First, context: DurableContext) -> Any:
        await context.step("begin", at_once, "first")
        try:
            return await context.call(OtherLeaf(key=command.key))
        except CallCycle as error:
            return error.message

    @sandbox.registry.handles(Second)
    async def second(command: Second, context: DurableContext) -> Any:
        await context.step("begin", at_once, "second")
        try:
            return await context.call(Leaf(key=command.key))
        except CallCycle as error:
            return error.message

    ran: list[str] = []

    @sandbox.registry.handles(Leaf)
    async def leaf(_: Leaf) -> int:
        ran.append("leaf")
        return 1

    @sandbox.registry.handles(OtherLeaf)
    async def other_leaf(_: OtherLeaf) -> int:
        ran.append("other")
        return 2

    async with sandbox.bus(shards=shards) as bus, bus.worker():
        answers = await asyncio.gather(bus.call(First(key="a"), timeout=30), bus.call(Second(key="a"), timeout=30))
        await bus.wait_idle(10)
    ended = [answer for answer in answers if isinstance(answer, str)]
    assert len(ended) == 1, "one call was ended, the other one went on"
    assert "wait for each other" in ended[0]
    assert len(ran) == 1, "what nobody waits for any more was taken out of its line"


def register_pairs(sandbox: Sandbox, shop: Shop, ended: list[str]) -> None:
    """Register two commands that call each other's entities; the second calls once the first waits, which also waits for `Reserve`."""

    @sandbox.registry.handles(First)
    async def first(command: First, context: DurableContext) -> Any:
        return await context.all(context.call(Reserve(sku=f"s-{command.key}")), context.call(OtherLeaf(key=command.key)))

    @sandbox.registry.handles(Second)
    async def second(command: Second, context: DurableContext) -> Any:
        await context.signal("go")
        try:
            return await context.call(Leaf(key=command.key))
        except CallCycle as error:
            ended.append(error.message)

    @sandbox.registry.handles(Leaf)
    async def leaf(_: Leaf) -> int:
        return 1

    @sandbox.registry.handles(OtherLeaf)
    async def other_leaf(_: OtherLeaf) -> int:
        return 2


async def test_circles_are_found_among_many_commands_and_calls(
    sandbox: Sandbox, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is suspended is looked at a page at a time, and one of several calls closes the circle."""
    monkeypatch.setattr(suspended_work, "_EVERY", 0.05)
    ended: list[str] = []
    keys = [f"k{number}" for number in range(5)]
    register_pairs(sandbox, shop, ended)
    async with sandbox.bus(concurrency=20) as bus:
        client = sandbox.client(0)
        others: dict[str, str] = {f"order:other-{number}": f"1|none-{number:0100}" for number in range(300)}
        await client.hset(f"{{{sandbox.namespace}:0}}:suspended", mapping=others)  # type: ignore[misc,arg-type]
        for key in keys:
            await bus.entity("stock", f"s-{key}").pause("stocktaking")
        async with bus.worker():
            for key in keys:
                await bus.dispatch(Second(key=key), command_id=f"second-{key}")
            await until(lambda: _are_suspended(client, sandbox, [f"two:{key}" for key in keys]))
            for key in keys:
                await bus.dispatch(First(key=key), command_id=f"first-{key}")
            await until(lambda: _are_suspended(client, sandbox, [f"one:{key}" for key in keys]))
            for key in keys:
                await bus.commands.signal(f"second-{key}", "go")
            await until(lambda: len(ended) == len(keys), 30)
            for key in keys:
                await bus.entity("stock", f"s-{key}").resume()
            await until(lambda: _are_settled(bus, 4 * len(keys)))
        await client.aclose()
    assert all("wait for each other: two:k" in message for message in ended)


async def _are_suspended(client: Any, sandbox: Sandbox, mailboxes: list[str]) -> bool:
    found = await client.hmget(f"{{{sandbox.namespace}:0}}:active", mailboxes)
    return all(record is not None and record[:1] in b"uU" for record in found)


async def _are_settled(bus: Any, count: int) -> bool:
    return (await bus.stats()).settled >= count


@pytest.mark.parametrize("shards", [1, 3])
async def test_an_outcome_that_was_lost_is_found(
    sandbox: Sandbox, shop: Shop, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator takes the called command out of its line: what remembers it tells the one that waits."""
    monkeypatch.setattr(suspended_work, "_EVERY", 0.2)
    monkeypatch.setattr(suspended_work, "_LOST_AFTER_MS", 300)
    called: list[str] = []

    @shop.script
    async def order(context: DurableContext) -> Any:
        return await context.call(Reserve(sku="s-1"))

    async with sandbox.bus(shards=shards) as bus:
        await bus.entity("stock", "s-1").pause("stocktaking")
        async with bus.worker():
            await bus.dispatch(Flow(order="o-1"), command_id="o-1")
            await shop.suspended()
            await until(lambda: _depth(bus, "s-1"))
            assert await bus.entity("stock", "s-1").purge() == 1
            with pytest.raises(CommandFailed, match="CommandCancelled"):
                await bus.result("o-1", Flow, timeout=20)
    assert called == []


@pytest.mark.parametrize("shards", [1, 3])
async def test_an_outcome_that_was_lost_is_found_by_a_run_that_stays(
    sandbox: Sandbox, shop: Shop, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a failover may leave it: the mark of the called command has the outcome, and what waits for it in tasks of its own does not."""
    monkeypatch.setattr(run, "_LOST_AFTER", 0.5)

    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        return await asyncio.gather(context.call(Reserve(sku="s-1")), context.call(Reserve(sku="s-2", pieces=2)))

    async with sandbox.bus(shards=shards) as bus:
        await bus.entities.of("stock").pause("stocktaking")
        async with bus.worker(grace=0.1):  # whose inbox would get the reply
            await bus.dispatch(Flow(order="o-1"), command_id="o-1")
            await until(lambda: _depth(bus, "s-2"))
        key = next(key for key in await sandbox.keys() if "}:x:o-1" in key)
        client = sandbox.client(int(key.partition("}")[0].rpartition(":")[2]))
        async with bus.worker():
            await until(lambda: shop.count("run") >= 2)
            await asyncio.sleep(0.3)
            calls = {name: value for name, value in (await client.hgetall(key)).items() if name.startswith(b"c:")}
            await client.hdel(key, *calls)
            await bus.entities.of("stock").resume()
            await until(lambda: _are_settled(bus, 2))
            await asyncio.sleep(0.3)
            await client.hset(key, mapping=calls)
            assert await bus.result("o-1", Flow, timeout=10) == [1, 2]
        await client.aclose()


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_parked_call_is_not_taken_for_one_that_has_ended(
    sandbox: Sandbox, shop: Shop, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked for when its caller has waited for long, and when the connection for replies was lost."""
    monkeypatch.setattr(suspended_work, "_EVERY", 0.1)
    monkeypatch.setattr(suspended_work, "_LOST_AFTER_MS", 100)
    ended: list[str] = []

    @shop.script
    async def order(context: DurableContext) -> Any:
        try:
            return await context.call(Charge(account="a-1", fails=True))
        except CommandFailed as error:
            ended.append(error.message)
            raise

    async with sandbox.bus(shards=shards) as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), command_id="o-1")
        letter = await until(lambda: _letter(bus))
        await shop.suspended()
        await asyncio.sleep(1.5)
        assert (await bus.commands.status(letter.command_id)).state == "parked"
        with pytest.raises(CommandTimeout, match="not settled yet"):
            await bus.result(letter.command_id, Charge, timeout=0)
        shop.refusals = 1
        await bus.dead_letters.replay(letter.id)
        assert await receipt.result(timeout=10) == 5
    assert ended == []


async def _letter(bus: Any) -> Any:
    return next(iter([letter async for letter in bus.dead_letters.list()]), None)


async def test_a_call_that_is_nowhere_is_told_to_be_lost(sandbox: Sandbox, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a failover may leave it: neither the command nor its mark is there any more."""
    monkeypatch.setattr(suspended_work, "_EVERY", 0.2)
    monkeypatch.setattr(suspended_work, "_LOST_AFTER_MS", 300)

    @shop.script
    async def order(context: DurableContext) -> Any:
        try:
            return await context.call(Reserve(sku="s-1"))
        except CommandInterrupted as error:
            return error.message

    async with sandbox.bus() as bus:
        await bus.entity("stock", "s-1").pause("stocktaking")
        async with bus.worker():
            await bus.dispatch(Flow(order="o-1"), command_id="o-1")
            await shop.suspended()
            await until(lambda: _depth(bus, "s-1"))
            client = sandbox.client(0)
            for key in await sandbox.keys():
                if "}:k:~" in key or key.endswith("}:m:stock:s-1"):
                    await client.delete(key)
            await client.aclose()
            assert "it was lost" in await bus.result("o-1", Flow, timeout=20)


async def _depth(bus: Any, sku: str) -> bool:
    return bool(await bus.entity("stock", sku).depth())
