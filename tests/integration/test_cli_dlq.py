"""`dlq list` reads as many letters as it shows: what that costs does not grow with the queue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from command_bus import CommandBus, InvalidSettings, SyncCommandBus
from command_bus.embedded import EmbeddedServer, find_server_binary
from command_bus.serialization.dead_letter import DeadLetterRecord
from command_bus.transport.redis.keys import ShardKeys
from tests.program import run_program

pytest.importorskip("typer")
pytestmark = pytest.mark.server

MANY = 3000
ROOT = Path(__file__).parents[2]


@dataclass
class Shop:
    """A server with many dead letters, every third of them of another command."""

    url: str
    client: Redis

    def say(self, *arguments: str) -> str:
        """Return what `dlq list` prints."""
        done = run_program("dlq", "list", *arguments, "--url", self.url, "--namespace", "shop")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ask(self, *arguments: str) -> Any:
        return json.loads(self.say(*arguments, "--json"))

    def read(self) -> int:
        """Return how many pages of dead letters were read since the last call."""
        found: Any = self.client.info("commandstats")
        self.client.config_resetstat()
        return int(found.get("cmdstat_xrange", {}).get("calls", 0))


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with EmbeddedServer.start(binary=find_server_binary()) as server:
        with SyncCommandBus(server.url, namespace="shop") as bus:
            bus.stats()  # opens the namespace
        client = Redis.from_url(server.url)
        pipeline = client.pipeline(transaction=False)
        for number in range(MANY):
            name = "Charge" if number % 3 else "Ship"
            record = DeadLetterRecord(
                reason="failed", command_id=f"c-{number}", name=name, entity_type="order", entity_id=f"o-{number}"
            )
            pipeline.xadd(ShardKeys("shop", 0).dead, {"r": record.pack(), "e": b"", "m": f"order:o-{number}", "p": "0"})
        pipeline.execute()
        yield Shop(server.url, client)
        client.close()


@pytest.mark.parametrize("filters", [(), ("--command", "Ship"), ("--type", "order")])
def test_it_stops_at_the_limit(shop: Shop, filters: tuple[str, ...]) -> None:
    shop.read()
    found = shop.ask("--limit", "5", *filters)
    assert shop.read() == 1
    assert [each["command_id"] for each in found["letters"]] == [f"c-{i * 3 if '--command' in filters else i}" for i in range(5)]
    assert (found["matching"], found["counts"]) == (None, None)
    assert "the first 5; there are more" in shop.say("--limit", "5", *filters)


def test_it_counts_all_that_match_if_it_is_asked_to(shop: Shop) -> None:
    found = shop.ask("--limit", "5", "--count")
    assert (len(found["letters"]), found["matching"]) == (5, MANY)
    assert {each["command"]: each["count"] for each in found["counts"]} == {"Charge": MANY * 2 // 3, "Ship": MANY // 3}
    assert "3,000 letters: 2,000 Charge failed, 1,000 Ship failed" in shop.say("--limit", "5", "--count")


def test_it_counts_what_it_has_read_anyway(shop: Shop) -> None:
    assert shop.ask("--limit", str(MANY))["matching"] == MANY
    assert shop.ask("--limit", str(MANY - 1))["matching"] is None
    assert shop.ask("--command", "Refund")["matching"] == 0


async def test_code_may_stop_as_well(shop: Shop) -> None:
    async with CommandBus(shop.url, namespace="shop") as bus:
        shop.read()
        assert [letter.command_id async for letter in bus.dead_letters.list(limit=2, name="Ship")] == ["c-0", "c-3"]
        assert shop.read() == 1
        with pytest.raises(InvalidSettings, match="limit: at least 1"):
            await anext(aiter(bus.dead_letters.list(limit=0)))
