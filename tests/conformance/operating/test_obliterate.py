"""Deletion of a whole namespace: all of it, nothing else, and not under the hands of workers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from command_bus import (
    BusClosed,
    Command,
    CommandBus,
    Draining,
    EntityId,
    HandlerRegistry,
    InvalidSettings,
    RetryPolicy,
    Snooze,
    TransportUnavailable,
    WorkersLive,
    every,
)
from command_bus.transport.redis.connection.connections import Connections, Replicas
from command_bus.transport.redis.scheduling.store import RedisSchedules
from tests.conformance.conftest import Sandbox
from tests.conformance.schedules.schedule_parts import Clock, Stopped, fire


class Do(Command[int], entity="box", retry=RetryPolicy(attempts=1)):
    box: EntityId
    what: str = ""


@pytest.fixture
def gate(sandbox: Sandbox) -> asyncio.Event:
    """Return a gate for handlers that wait."""
    gate = asyncio.Event()

    @sandbox.registry.handles(Do)
    async def do(command: Do) -> int:
        if command.what == "wait":
            await gate.wait()
        if command.what == "fail":
            raise ValueError("no")
        if command.what == "later":
            raise Snooze(600)
        return 1

    return gate


async def fill(bus: CommandBus) -> None:
    """Leave something under every kind of key that a namespace has."""
    async with bus.worker():
        await bus.events.watch("box")
        await bus.dispatch(Do(box="f", what="fail"))
        await bus.dispatch(Do(box="s", what="later"))
        await bus.call(Do(box="a"), timeout=10)
        await bus.entities.of("other").pause("why")
        async with asyncio.timeout(10):
            while not (await bus.stats()).snoozed or not (await bus.stats()).dead_letters:
                await asyncio.sleep(0.01)
    await bus.dispatch_batch([Do(box=f"b-{number % 40}") for number in range(200)])
    for number in range(30):
        await bus.dispatch(Do(box="ids"), command_id=f"id-{number}")
    await bus.dispatch(Do(box="d"), delay=600)


@pytest.mark.promise("A deleted namespace leaves nothing")
@pytest.mark.parametrize("shards", [1, 3])
async def test_every_key_of_the_namespace_goes_and_no_other(sandbox: Sandbox, gate: asyncio.Event, shards: int) -> None:
    other = Sandbox(sandbox.name, sandbox.clients, namespace=f"{sandbox.namespace}x")
    async with sandbox.bus(shards=shards) as bus, other.bus(shards=shards) as neighbour:
        await neighbour.dispatch_raw("box", "a", "Do", {"box": "a"})
        theirs = await other.keys()
        await fill(bus)
        keys = [key for key in await sandbox.keys() if not key.startswith(f"{{{other.namespace}:")]
        assert len(keys) > 50
        assert await bus.entities.obliterate(confirm=sandbox.namespace) >= len(keys)
        assert not bus.is_open
        assert [key for key in await sandbox.keys() if not key.startswith(f"{{{other.namespace}:")] == []
        assert await other.keys() == theirs
        with pytest.raises(BusClosed):
            await bus.dispatch(Do(box="a"))
    await other.clean()
    async with sandbox.bus(shards=1) as bus, bus.worker():  # a new namespace, and it may have other shards
        assert await bus.call(Do(box="a"), timeout=10) == 1
        assert (await bus.stats()).accepted == 1


@pytest.mark.parametrize("confirm", ["", "shop", "*", None, True])
async def test_64_another_name_deletes_nothing(sandbox: Sandbox, gate: asyncio.Event, confirm: Any) -> None:
    async with sandbox.bus() as bus:
        await bus.dispatch(Do(box="a"))
        before = await sandbox.keys()
        with pytest.raises(InvalidSettings, match=f"is not the name of this namespace, which is '{sandbox.namespace}'"):
            await bus.entities.obliterate(confirm=confirm, force=True)
        with pytest.raises(InvalidSettings, match=r"purge\(\) empties a type"):
            await bus.entities.of("box").obliterate(confirm=sandbox.namespace)
        assert await sandbox.keys() == before
        assert (await bus.dispatch(Do(box="a"))).status == "accepted"


async def test_64_it_is_refused_while_workers_live(sandbox: Sandbox, gate: asyncio.Event) -> None:
    async with sandbox.bus() as bus:
        async with bus.worker() as worker:
            assert await bus.call(Do(box="a"), timeout=10) == 1
            with pytest.raises(WorkersLive, match="stop them, and what sends to it") as caught:
                await bus.entities.obliterate(confirm=sandbox.namespace)
            assert caught.value.workers == (worker.name,)
            assert await bus.call(Do(box="a"), timeout=10) == 1, "it is not drained either"
        await bus.entities.obliterate(confirm=sandbox.namespace)
    assert await sandbox.keys() == []


@pytest.mark.promise("A deleted namespace leaves nothing")
async def test_by_force_what_runs_can_settle_nothing_and_nothing_comes_to_life_again(
    sandbox: Sandbox, gate: asyncio.Event
) -> None:
    standing = {f"{{{sandbox.namespace}:0}}:{name}" for name in ("meta", "ready", "workers")}
    async with sandbox.bus() as working, working.worker(), sandbox.bus() as bus:
        await bus.dispatch(Do(box="a", what="wait"), command_id="runs")
        for _ in range(5):
            await bus.dispatch(Do(box="a"))
        async with asyncio.timeout(10):
            while not (await bus.stats()).in_flight:
                await asyncio.sleep(0.01)
        assert await bus.entities.obliterate(confirm=sandbox.namespace, force=True) > 0
        gate.set()
        await asyncio.sleep(0.5)
        left = {key for key in await sandbox.keys() if not key.endswith(":commands")}
        assert left <= standing, "what the worker writes of itself, and what its commands look like"
    async with sandbox.bus(registry=HandlerRegistry()) as bus:
        assert (await bus.stats()).depth == 0
        await bus.entities.obliterate(confirm=sandbox.namespace)
    assert await sandbox.keys() == []


@pytest.mark.promise("A deleted namespace leaves nothing")
async def test_one_that_broke_off_leaves_a_drained_namespace_and_is_repeated(
    sandbox: Sandbox, gate: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sandbox.bus() as bus:
        await fill(bus)

        async def breaks_off(shard: int) -> int:
            raise ConnectionError("as planned")

        monkeypatch.setattr(bus.transport.operator.obliteration, "go_on", breaks_off)
        with pytest.raises(ConnectionError):
            await bus.entities.obliterate(confirm=sandbox.namespace)
        with pytest.raises(Draining):
            await bus.dispatch(Do(box="b-1"))
        assert (await bus.stats()).in_flight == 0
        async with bus.worker():  # what is left of the mailboxes is no work
            await asyncio.sleep(0.3)
            assert (await bus.stats()).entities == 0
        monkeypatch.undo()
        await bus.entities.obliterate(confirm=sandbox.namespace)
    assert await sandbox.keys() == []


def schedule_keys(keys: list[str]) -> list[str]:
    """Return the keys that have something of schedules or commands, not a worker's signs of life."""
    return [key for key in keys if not key.endswith((":meta", ":ready", ":workers"))]


@pytest.mark.promise("A deleted namespace leaves nothing")
@pytest.mark.parametrize("step", ["read", "change", "fire", "bar"])
@pytest.mark.parametrize("shards", [1, 3])
async def test_a_worker_that_was_stopped_at_a_step_of_a_firing_writes_nothing_afterwards(
    sandbox: Sandbox, clock: Clock, shards: int, step: str
) -> None:
    async with sandbox.bus(shards=shards) as working, sandbox.bus(shards=shards) as bus:
        clock.rule(working)
        await clock.rule(bus).schedules.put("do", Do(box="a"), every(60), immediately=True)
        transport: Any = working.session.transport
        store, stopped, going_on = transport.schedules, asyncio.Event(), asyncio.Event()

        class Stopping:
            """The process stops before a step, and wakes up when all is deleted."""

            def __getattr__(self, name: str) -> Any:
                if name != step:
                    return getattr(store, name)
                return self._stop

            async def _stop(self, *args: Any) -> Any:
                stopped.set()
                await going_on.wait()
                return await getattr(store, step)(*args)

        transport.schedules = Stopping()
        if step == "read":
            await store.read(["do"])
        act = working.schedules.put("other", Do(box="b"), every(60)) if step == "bar" else fire(working, "do")
        work = asyncio.ensure_future(act)
        await asyncio.wait_for(stopped.wait(), 10)
        await bus.entities.obliterate(confirm=sandbox.namespace)
        assert await sandbox.keys() == []
        going_on.set()
        (result,) = await asyncio.gather(work, return_exceptions=True)
        if step != "read":
            assert isinstance(result, TransportUnavailable)
            assert "was deleted" in result.message
        assert await sandbox.keys() == []


@pytest.mark.promise("A deleted namespace leaves nothing")
async def test_an_armed_firing_meets_another_namespace_of_the_name(sandbox: Sandbox, clock: Clock) -> None:
    async with sandbox.bus() as working, sandbox.bus() as bus:
        clock.rule(working)
        await clock.rule(bus).schedules.put("do", Do(box="a"), every(60), immediately=True)
        (firing,) = await Stopped(working).pin("do")
        await bus.entities.obliterate(confirm=sandbox.namespace)
        async with sandbox.bus() as another:
            clock.rule(another)
            await another.schedules.put("do", Do(box="a"), every(60), immediately=True)
            with pytest.raises(TransportUnavailable, match="was deleted"):
                await working.session.transport.schedules.fire([replace(firing, armed=True)])
            assert (await another.stats()).depth == 0
            await fire(working, "do")
            assert (await another.stats()).depth == 1, "it begins afresh, with what is there now"


@pytest.mark.promise("A deleted namespace leaves nothing")
async def test_a_refused_firing_that_replicas_would_confirm_brings_no_key_back(sandbox: Sandbox, clock: Clock) -> None:
    async with sandbox.bus() as working, sandbox.bus() as bus:
        clock.rule(working)
        await clock.rule(bus).schedules.put("do", Do(box="a"), every(60), immediately=True)
        transport: Any = working.session.transport
        confirming = Connections(transport.connections.factory, Replicas(1, 0.05))
        store = RedisSchedules(confirming, transport.keys, patience=5, max_total_depth=1000)
        await store.read(["do"])
        (firing,) = await Stopped(working).pin("do")
        assert await store.fire([firing]) == ["?"]  # taken, and no replica has it
        await bus.entities.obliterate(confirm=sandbox.namespace)
        with pytest.raises(TransportUnavailable, match="was deleted"):
            await store.fire([firing])
        assert await sandbox.keys() == []
        await confirming.close()


@pytest.mark.promise("A deleted namespace leaves nothing")
async def test_nothing_fires_while_a_namespace_is_deleted_or_behind_it(
    sandbox: Sandbox, gate: asyncio.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with sandbox.bus(shards=2) as working, working.worker(), sandbox.bus(shards=2) as bus:
        for number in range(30):
            await bus.schedules.put(f"do-{number}", Do(box=str(number)), every(0.1))
        async with asyncio.timeout(20):
            while (await bus.stats()).fired < 60:
                await asyncio.sleep(0.01)

        async def breaks_off(shard: int) -> int:
            raise ConnectionError("as planned")

        monkeypatch.setattr(bus.transport.operator.obliteration, "go_on", breaks_off)
        with pytest.raises(ConnectionError):
            await bus.entities.obliterate(confirm=sandbox.namespace, force=True)
        with pytest.raises(TransportUnavailable, match="is being deleted"):
            async with sandbox.bus(shards=2) as late:
                await late.schedules.put("late", Do(box="a"), every(60))
        monkeypatch.undo()
        await bus.entities.obliterate(confirm=sandbox.namespace, force=True)
        await asyncio.sleep(1.5)
        left = [
            key for key in schedule_keys(await sandbox.keys()) if not key.endswith(":commands")
        ]  # a worker declares that again
        assert left == []
        assert "was deleted" in caplog.text
    await sandbox.clean()
