"""`dlq replay --payload` and `recount` on the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from redis import Redis

from command_bus import Command, CommandBus, EntityId, HandlerRegistry, RetryPolicy
from command_bus.embedded import EmbeddedServer, find_server_binary
from command_bus.transport.redis.keys import ShardKeys
from tests.conformance.put_service import until
from tests.program import run_program

pytest.importorskip("typer")
pytestmark = pytest.mark.server


class Charge(Command[None], entity="till", retry=RetryPolicy(attempts=1)):
    till: EntityId
    amount: int


@pytest.fixture
def url() -> Iterator[str]:
    with EmbeddedServer.start(binary=find_server_binary()) as server:
        yield server.url


async def test_a_letter_is_edited_and_counters_are_set_right(url: str) -> None:
    registry, seen = HandlerRegistry(), list[int]()

    @registry.handles(Charge)
    async def charge(command: Charge) -> None:
        if command.amount < 0:
            raise RuntimeError("below zero")
        seen.append(command.amount)

    async def run(*words: str) -> tuple[int, str]:
        done = await asyncio.to_thread(run_program, *words, "--url", url, "--namespace", "shop")
        return done.returncode, done.stdout + done.stderr

    async with CommandBus(url, namespace="shop", registry=registry) as bus, bus.worker():
        await bus.dispatch(Charge(till="a", amount=-1))
        await until(bus.dead_letters.count)
        [letter] = [each.id async for each in bus.dead_letters.list()]
        code, said = await run("dlq", "replay", letter, "--payload", '{"till": "a"}')
        assert code != 0
        assert "amount" in said
        assert (await run("dlq", "replay", letter, "--payload", "no json"))[0] == 2
        assert (await run("dlq", "replay", "--all", "--payload", "{}"))[0] == 2
        code, said = await run("dlq", "replay", letter, "--payload", '{"till": "a", "amount": 5}')
        assert (code, said.strip().endswith(", edited")) == (0, True)
        await bus.wait_idle(timeout=20)
        assert seen == [5]

    with Redis.from_url(url) as client:
        client.hset(ShardKeys("shop", 0).stats, "depth", "7")
        code, said = await run("doctor")
        assert "depth is 7, and 0 were counted" in said
        code, said = await run("recount", "--dry-run", "--json")
        found = {"stored": 7, "counted": 0, "delayed": 0, "complete": True}
        assert (code, json.loads(said)) == (0, found)
        code, said = await run("recount")
        assert (code, "depth: 7 stored, 0 counted" in said) == (0, True)
        assert client.hget(ShardKeys("shop", 0).stats, "depth") == b"0"
