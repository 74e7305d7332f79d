"""The audit log has what is done on the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from command_bus import Command, CommandBus, EntityId
from command_bus.embedded import EmbeddedServer
from tests.program import run_program


class Charge(Command[None], entity="till"):
    till: EntityId


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with EmbeddedServer.start() as server:
        yield server.url


ACTS = {
    ("delayed", "promote", "later"): ("Run delayed command now", "later", "", "done"),
    ("cancel", "c-2", "--reason", "twice"): ("Cancel command", "c-2", "twice", "done"),
    ("entity", "till:a", "pause", "--reason", "look"): ("Pause entity", "till:a", "look", "done"),
    ("entity", "till:a", "resume"): ("Resume entity", "till:a", "", "done"),
    ("entity", "till:a", "drain"): ("Drain entity", "till:a", "", "done"),
    ("entity", "till:a", "forget", "--key", "k"): ("Release unique key", "till:a", "", "nothing to change"),
    ("entity", "till:a", "purge", "--yes"): ("Purge entity", "till:a", "", "done"),
    ("pause", "till", "--reason", "night"): ("Pause", "all till", "night", "done"),
    ("resume", "till"): ("Resume", "all till", "", "done"),
    ("drain", "--all"): ("Drain", "everything", "", "done"),
    ("resume", "--all"): ("Resume", "everything", "", "done"),
    ("purge", "--all", "--yes"): ("Purge", "everything", "", "done"),
    ("limits", "put", "type:till", "--concurrency", "2"): ("New limit", "limit type:till", "", "done"),
    ("limits", "remove", "type:till"): ("Remove limit", "limit type:till", "", "done"),
    ("subscriptions", "pause", "none", "-m", "late"): ("Pause subscription", "subscription none", "late", "failed:"),
    ("schedules", "pause", "none"): ("Pause schedule", "schedule none", "", "failed:"),
}


async def test_each_act_of_the_command_line_is_in_the_audit_log(url: str) -> None:
    async def run(*words: str) -> str:
        done = await asyncio.to_thread(run_program, *words, "--url", url, "--namespace", "shop")
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    async with CommandBus(url, namespace="shop") as bus:
        for words, (title, what, why, outcome) in ACTS.items():
            await bus.entity("till", "a").resume()
            await bus.dispatch(Charge(till="b"), command_id="c-2")
            await bus.dispatch(Charge(till="c"), command_id="later", delay=600)
            if words[:3] == ("entity", "till:a", "resume"):
                await bus.entity("till", "a").pause()
            if words[:1] == ("resume",):
                await bus.entities.pause() if "--all" in words else await bus.entities.of("till").pause()
            if "purge" in words:
                await bus.dispatch(Charge(till="a"))
            await run(*words)
            await bus.entities.resume()
            await bus.entities.of("till").resume()
            last = json.loads(await run("audit", "--limit", "1", "--json"))["acts"][0]
            assert (last["act"], last["target"], last["why"]) == (title, what, why), words
            assert last["outcome"].startswith(outcome), (words, last)
            assert last["who"].endswith("(command line)")


async def test_a_log_that_cannot_be_written_keeps_nothing_from_being_done(url: str) -> None:
    async with CommandBus(url, namespace="full") as bus:
        await bus.dispatch(Charge(till="a"))
        keys = bus.session.redis.keys.shards[0]
        await bus.session.redis.connections.ask(lambda client, key: client.set(key, "x"), keys.audit)
        done = await asyncio.to_thread(run_program, "pause", "till", "--url", url, "--namespace", "full")
        assert done.returncode == 0, done.stderr
        assert "the audit log could not be written" in done.stderr
        assert [each.entity_type for each in await bus.entities.holds()] == ["till"]
