"""Entity types on record: how many there may be, what many of them cost, and how one is taken back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from command_bus import (
    BusSettings,
    Command,
    CommandBus,
    EntityId,
    EntityPolicy,
    EntityState,
    EntityTypeInUse,
    HandlerRegistry,
    InvalidSettings,
    TooManyEntityTypes,
    lanes,
)
from command_bus.embedded import EmbeddedServer, find_server_binary
from command_bus.spelling import did_you_mean, some_of
from command_bus.transport.redis.acl import acl_lines
from command_bus.transport.redis.keys import ShardKeys
from tests.program import run_program

pytest.importorskip("typer")
pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
META = ShardKeys("shop", 0).meta
MANY = 20_000


class Refund(Command[int], entity="refund"):
    refund: EntityId


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start(binary=find_server_binary()) as running:
        yield running


@pytest.fixture
async def bus(server: EmbeddedServer) -> AsyncIterator[CommandBus]:
    async with CommandBus(server.url, namespace="shop", registry=HandlerRegistry(), max_entity_types=5) as opened:
        yield opened


def say(server: EmbeddedServer, *words: str, code: int = 0) -> str:
    done = run_program(*words, "--url", server.url, "-n", "shop", timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


async def test_no_sender_adds_more_types_than_the_namespace_may_have(bus: CommandBus) -> None:
    for number in range(5):
        await bus.dispatch_raw(f"t{number}", "a", "Any", {})
    with pytest.raises(TooManyEntityTypes, match="command-bus types forget TYPE") as refused:
        await bus.dispatch_raw("order-4711", "a", "Any", {})
    assert refused.value.limit == 5
    assert not (await bus.entities.of("order-4711").list()).entities
    await bus.dispatch_raw("t0", "b", "Any", {})  # those that are there go on
    async with CommandBus(bus.settings.server_url, namespace="shop", registry=HandlerRegistry(), max_entity_types=1) as strict:
        await strict.dispatch_raw("t4", "c", "Any", {})


async def test_a_type_is_taken_back_when_nothing_of_it_is_stored(bus: CommandBus) -> None:
    await bus.dispatch_raw("t0", "a", "Any", {}, command_id="c-1")
    with pytest.raises(EntityTypeInUse, match="t0:a"):
        await bus.entities.forget_type("t0")
    await bus.cancel("c-1")
    await bus.entities.of("t0").pause("later")
    with pytest.raises(EntityTypeInUse, match="paused"):
        await bus.entities.forget_type("t0")
    await bus.entities.of("t0").resume()
    assert await bus.entities.forget_type("t0")
    assert not await bus.entities.forget_type("t0")
    assert await bus.entities.types() == []
    await bus.dispatch_raw("t0", "a", "Any", {})  # recorded anew
    assert [(each.name, each.mailboxes) for each in await bus.entities.types()] == [("t0", "per_entity")]


async def test_a_delayed_command_and_a_dead_letter_count_as_stored(bus: CommandBus, server: EmbeddedServer) -> None:
    await bus.dispatch_raw("t1", "a", "Any", {}, delay=1000)
    with pytest.raises(EntityTypeInUse):
        await bus.entities.forget_type("t1")
    async with CommandBus(server.url, namespace="shop", registry=HandlerRegistry(), unknown_grace=0.0) as other:
        await other.dispatch_raw("t2", "a", "Any", {})
        async with other.worker():
            letters: list[Any] = []
            while not letters:
                letters = [each async for each in other.dead_letters.list()]
    with pytest.raises(EntityTypeInUse, match=letters[0].id):
        await bus.entities.forget_type("t2")


async def test_a_state_counts_as_stored(bus: CommandBus) -> None:
    class Cart(EntityState, entity="t3"):
        items: int = 0

    await bus.dispatch_raw("t3", "a", "Any", {}, command_id="c-3")
    await bus.cancel("c-3")
    await bus.states.put("a", Cart(items=2))
    with pytest.raises(EntityTypeInUse, match="have a state"):
        await bus.entities.forget_type("t3")
    await bus.states.delete(Cart, "a")
    assert await bus.entities.forget_type("t3")


async def test_a_poisoned_type_is_given_back_to_its_clients(bus: CommandBus, server: EmbeddedServer) -> None:
    async with AsyncRedis.from_url(server.url) as client:
        await client.hsetnx(META, "mailbox:refund", "lanes:7")
    with pytest.raises(InvalidSettings, match="command-bus types forget refund"):
        await bus.dispatch(Refund(refund="a"))
    assert "lanes:7" in say(server, "types", "list")
    assert "no terminal to ask on" in say(server, "types", "forget", "refund", code=2)
    assert say(server, "types", "forget", "refund", "--yes") == "refund: forgotten\n"
    await bus.dispatch(Refund(refund="a"))
    assert "in use" in say(server, "types", "forget", "refund", "--yes", code=1)


def test_what_no_type_can_be_called_is_taken_back_too(server: EmbeddedServer) -> None:
    say(server, "stats", code=2)
    with Redis.from_url(server.url) as client:
        client.hset(META, mapping={"protocol": "3", "shards": "1", "mailbox:\x1b[2J": "x", b"mailbox:\xff": b"\xff"})
    listed = say(server, "types", "list")
    assert "\\x1b[2J" in listed
    say(server, "types", "forget", "\\x1b[2J", "--yes")
    say(server, "types", "forget", "\\xff", "--yes")
    assert "\\x" not in say(server, "types", "list")


async def test_very_many_types_cost_an_operator_no_more_requests(bus: CommandBus, server: EmbeddedServer) -> None:
    async with AsyncRedis.from_url(server.url) as client:
        await client.hset(META, mapping={f"mailbox:type-{number}": "lanes:7" for number in range(MANY)})
        await client.config_resetstat()
        assert "no entity type 'typo'" in say(server, "pause", "typo")
        figures: Any = await client.info("commandstats")
    assert sum(each["calls"] for each in figures.values()) < 100
    assert "and 19," in say(server, "doctor", code=0)


def test_a_misspelt_name_is_compared_with_some_of_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def close(_: str, names: list[str], **__: Any) -> list[str]:
        compared.append(len(names))
        return []

    monkeypatch.setattr("difflib.get_close_matches", close)
    did_you_mean("acount", (f"type-{number}" for number in range(MANY)))
    assert compared == [300]
    monkeypatch.undo()
    assert "'account'" in did_you_mean("acount", [*(f"thing-{number}" for number in range(MANY)), "account", "x" * 100_000])
    assert some_of(map(str, range(1000))).endswith(", and 950 more")


async def test_a_user_of_an_earlier_release_may_still_send(server: EmbeddedServer) -> None:
    """Its ACL has no HLEN: the limit is not looked at."""
    (line,) = acl_lines("producer", "shop", user="old", password="secret-of-old", load_scripts=True)
    async with AsyncRedis.from_url(server.url) as client:
        await client.execute_command(*line.replace("+hlen", "+hget").split())
        async with CommandBus(server.url, namespace="shop", registry=HandlerRegistry()) as first:
            await first.stats()
    settings = BusSettings(url=server.url, namespace="shop", username="old", password="secret-of-old", max_entity_types=1)
    async with CommandBus(settings=settings, registry=HandlerRegistry()) as old:
        await old.dispatch_raw("t0", "a", "Any", {})
        await old.dispatch_raw("t1", "a", "Any", {})


async def test_settings_with_many_types_are_agreed_on_at_once(server: EmbeddedServer) -> None:
    policies = {f"t{number}": EntityPolicy(mailbox=lanes(3)) for number in range(300)}
    async with AsyncRedis.from_url(server.url) as client:
        await client.config_resetstat()
        async with CommandBus(server.url, namespace="shop", registry=HandlerRegistry(), entities=policies):
            figures: Any = await client.info("commandstats")
    assert figures["cmdstat_hmget"]["calls"] < 10
