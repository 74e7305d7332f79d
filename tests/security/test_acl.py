"""Least privilege: each role does all of its work under its own user, and is refused the rest. Checked on real servers, with and without selectors.

Whatever a role lacked would show in the server's ACL log, which must hold nothing of our own requests at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from command_bus import (
    Command,
    CommandBus,
    CommandCancelled,
    CommandFailed,
    CommandRejected,
    CommandTimeout,
    Draining,
    EntitiesStopped,
    EntityId,
    Envelope,
    HandlerRegistry,
    InvalidSettings,
    TransportUnavailable,
    UnsuitableServer,
)
from command_bus.admin.events import BEGINNING
from command_bus.spark.target import Target, connection_to
from command_bus.spark.writing.partition import PartitionDispatcher
from command_bus.spark.writing.task_results import RowReject
from command_bus.transport.ports.bulk import Opening, Version
from command_bus.transport.ports.sender import Placed
from command_bus.transport.redis.acl import Role, acl_lines
from tests.conformance.conftest import Starter
from tests.conformance.harness import side_of
from tests.conformance.put_service import until
from tests.security.acl_users import NAMESPACE, Park, Place, Relay, Trip, Work, made, registry


@pytest.fixture(params=["selectors", "patterns"])
async def place(request: pytest.FixtureRequest, binary: Path, start: Starter) -> AsyncIterator[Place]:
    async with made(start(tcp=True, binary=binary), selectors=request.param == "selectors") as found:
        yield found


@pytest.mark.parametrize("shards", [1, 3])
async def test_each_role_does_its_work(place: Place, shards: int) -> None:
    async with (
        place.bus("worker", shards=shards, lease=2.0) as workers,
        place.bus("producer", shards=2) as producer,  # which follows what is recorded, as all do
        place.bus("operator") as operator,
    ):
        async with workers.worker():
            await producer_works(producer)
            await operator.wait_idle(10)
            letters = [letter async for letter in operator.dead_letters.list()]
            assert [letter.reason for letter in letters] == ["failed"] * 2
            await operator.dead_letters.replay(letters[0].id)
            await operator.dead_letters.discard(letters[1].id)
            await until(lambda: letters_of(operator))
            await operator_works(operator, producer)
            await operator.wait_idle(10)
        stats = await operator.stats()
        assert (stats.depth, stats.accepted > 300, producer.session.transport.shards) == (0, True, shards)
        assert await workers.stats() == stats, "its /metrics shows them"
    assert await place.denied() == []


async def test_a_user_that_may_write_no_record_follows_it(place: Place) -> None:
    async with place.bus("worker", shards=3) as worker, worker.worker():
        await worker.call(Work(line="a", number=1), timeout=10)
        user = f"command_bus-{NAMESPACE}-producer"
        await place.admin.execute_command("ACL", "SETUSER", user, "-hsetnx", *(["clearselectors"] if place.selectors else []))
        await place.admin.execute_command("ACL", "SETUSER", user, "+@all", "-hsetnx", "~*", "&*")
        async with place.bus("producer", shards=2) as sender:
            assert await sender.call(Work(line="a", number=2), timeout=10) == 2


async def test_each_role_does_its_work_on_the_oldest_server(oldest: Path, start: Starter) -> None:
    async with made(start(tcp=True, binary=oldest), selectors=False) as place:
        async with (
            place.bus("producer") as producer,
            place.bus("operator") as operator,
            place.bus("worker", lease=2.0) as workers,
            workers.worker(),
        ):
            await producer_works(producer)
            await operator.wait_idle(10)
            await operator.dead_letters.purge()
            await operator_works(operator, producer)
            await operator.wait_idle(10)
        assert await place.denied() == []


async def test_an_operator_tells_callers_on_other_shards(place: Place) -> None:
    """What is taken out of line, or discarded, was called by a durable command."""
    async with (
        place.bus("producer", shards=3) as producer,
        place.bus("operator", shards=3) as operator,
        place.bus("worker", shards=3, lease=2.0) as workers,
        workers.worker(),
    ):
        await operator.entities.of("line").pause("to look at it")
        receipts = [await producer.dispatch(Trip(trip=f"t-{number}"), keep_result=True) for number in range(6)]
        for number in range(6):
            await until(operator.entity("line", f"t-{number}").purge)
        await operator.entities.of("line").resume()
        receipts += [await producer.dispatch(Trip(trip=f"p-{number}", parks=True), keep_result=True) for number in range(6)]
        for _ in range(6):
            await operator.dead_letters.discard((await until(lambda: parked_of(operator)))[0].id)
        for receipt in receipts:
            with pytest.raises(CommandFailed, match="CommandCancelled"):
                await receipt.result(timeout=10)
        await operator.wait_idle(10)
    assert await place.denied() == []


async def letters_of(bus: CommandBus) -> list[Any]:
    return [letter async for letter in bus.dead_letters.list()]


async def producer_works(bus: CommandBus) -> None:
    await bus.ping()
    await bus.dispatch(Work(line="a", number=1), command_id="given")
    await bus.dispatch(Work(line="a", number=1), command_id="given")
    await bus.dispatch(Work(line="a", number=2), delay=0.05, headers={"a": "b"}, expires=60)
    batch = await bus.dispatch_batch(Work(line=f"l{number % 9}", number=number) for number in range(300))
    assert batch.accepted == 300
    batch = await bus.dispatch_batch(Envelope(Work(line=f"u{number}", number=number), priority="low") for number in range(100))
    assert batch.accepted == 100
    await bus.dispatch(Work(line="a", number=4), priority="high", delay=0.05)
    assert await asyncio.gather(*(bus.call(Work(line=f"c{n}", number=n), timeout=10) for n in range(20))) == list(range(20))
    assert await bus.call(Work(line="a", number=1), command_id="given", timeout=10) == 1
    assert await bus.call(Relay(sender="s"), timeout=10) == 3
    assert await bus.result("given", Work, timeout=5) == 1
    with pytest.raises(CommandRejected):
        await bus.call(Work(line="a", number=-2), timeout=10)
    for _ in range(2):
        with pytest.raises(CommandFailed):
            await bus.call(Work(line="a", number=-1), timeout=10)


async def operator_works(operator: CommandBus, producer: CommandBus) -> None:
    await operator.events.watch("line")
    await operator.fairness.put("acme", weight=3)
    assert [each.tenant for each in await operator.fairness.list() if each.weight == 3] == ["acme"]
    assert await operator.fairness.remove("acme")
    line = operator.entity("line", "held")
    assert await line.pause("to look at it")
    for number in range(3):
        await producer.dispatch(Work(line="held", number=number), command_id=f"held-{number}")
    await producer.dispatch(Work(line="held", number=9), delay=60, command_id="later")
    assert await line.prioritize("low")
    assert await operator.commands.prioritize("later", "high")
    assert await operator.cancel("later")
    with pytest.raises(EntitiesStopped):
        await operator.wait_idle(5)
    assert await line.depth() == 3
    assert await operator.cancel("held-1")
    await producer.dispatch(Work(line="held", number=9), delay=60)
    assert await line.purge() == 3
    assert await line.resume()
    await producer.dispatch(Park(line="parked"))
    await producer.dispatch(Work(line="parked", number=5))
    (parked,) = await until(lambda: parked_of(operator))
    await operator.dead_letters.replay(parked.id)
    (parked,) = await until(lambda: parked_of(operator))
    await operator.dead_letters.discard(parked.id)
    await operator.dead_letters.replay_all(reason="failed")
    await operator.dead_letters.purge()
    await operator_works_on_a_type(operator, producer)


async def operator_works_on_a_type(operator: CommandBus, producer: CommandBus) -> None:
    lines = operator.entities.of("line")
    assert await lines.pause("to look at it")
    await producer.dispatch(Work(line="held", number=1))
    await producer.dispatch(Work(line="held", number=1), delay=60)
    assert [hold.what for hold in await operator.entities.holds()] == ["all line"]
    assert "line:held" in [entity.name for entity in (await lines.list(states={"paused"})).entities]
    assert (await operator.entity("line", "held").show()).entity.depth == 2
    assert await operator.fleet.workers()
    assert await operator.fleet.command("Work") is not None
    assert await lines.purge() >= 2
    assert await lines.drain()
    with pytest.raises(Draining):
        await producer.dispatch(Work(line="held", number=1))
    assert await lines.resume()
    told = {event.kind async for event in operator.events(after=BEGINNING, follow=False)}
    assert told >= {"accepted", "started", "completed", "paused", "resumed", "draining", "cancelled"}
    following = asyncio.ensure_future(anext(aiter(operator.events())))
    assert await lines.pause()
    while not following.done():
        await lines.resume()
        await asyncio.wait({following}, timeout=0.05)
        await lines.pause()
    assert (await following).entity == "all line"
    assert await lines.resume()
    await operator.events.unwatch("line")
    assert await operator.events.watched() == {}
    await operator.events.watch("line", "other")
    await operator.events.unwatch()
    await operator_looks(operator, producer)


async def operator_looks(operator: CommandBus, producer: CommandBus) -> None:
    await producer.dispatch(Work(line="only-later", number=1), delay=60)
    page = await operator.entities.of("line").list()
    assert [entity.due_ms is not None for entity in page.entities if entity.entity_id == "only-later"] == [True]
    assert (await operator.entity("line", "only-later").show()).entity.due_ms
    assert await operator.entity("line", "only-later").purge() == 1
    assert await operator.dead_letters.oldest() is None
    assert await operator.dead_letters.count() == {}
    assert {command.name for command in await operator.fleet.commands()} == {"Work", "Park", "Relay", "Trip"}
    await producer.dispatch_raw("lime", "a", "Work", {}, delay=60)
    assert await operator.entities.of("lime").purge() == 1
    assert await operator.entities.forget_type("lime")
    assert "lime" not in {each.name for each in await operator.entities.types()}


async def parked_of(bus: CommandBus) -> list[Any]:
    return [letter for letter in await letters_of(bus) if letter.parked]


async def test_a_producer_learns_why_its_call_had_no_answer(place: Place) -> None:
    """Say where the command is, but not its place in a line, whose commands it may not read."""
    async with place.bus("producer") as producer, place.bus("worker") as workers, place.bus("operator") as operator:
        async with workers.worker():  # loads the scripts
            await producer.call(Work(line="b", number=1), timeout=10)
        with pytest.raises(CommandTimeout) as alone:
            await producer.call(Work(line="a", number=1), timeout=0.3)
        assert (alone.value.state, alone.value.workers, alone.value.position) == ("no_worker", 0, 1)
        async with workers.worker():
            await operator.wait_idle(10)
            await operator.entity("line", "a").pause()
            for _ in range(2):
                with pytest.raises(CommandTimeout) as held:
                    await producer.call(Work(line="a", number=1), timeout=0.3)
                assert (held.value.state, held.value.handlers) == ("paused", 1)
            await producer.dispatch(Park(line="b"))
            await until(lambda: parked_of(operator))
            with pytest.raises(CommandTimeout) as behind:
                await producer.call(Work(line="b", number=1), timeout=0.3)
            assert behind.value.state == "parked"
    assert await place.denied() == []


async def test_a_worker_takes_over_lost_commands(place: Place) -> None:
    """Its lease is over; its started commands identify it."""
    async with place.bus("producer") as producer, place.bus("operator") as operator:
        began = asyncio.Event()
        hangs = HandlerRegistry()

        @hangs.handles(Work)
        async def hang(command: Work) -> int:
            began.set()
            await asyncio.sleep(60)
            return 0

        lost = place.bus("worker", lease=0.5, registry=hangs)
        await lost.open()
        gone = lost.worker()
        await gone.start()
        for number in range(3):
            await producer.dispatch(Work(line="a", number=number))
        await began.wait()
        side = side_of(gone)
        side.leases._stopping = True  # it renews no more, as if it were killed
        for task in side.consumer.running:
            task.cancel()
        await side.consumer.stop_reading()
        async with place.bus("worker", lease=0.5) as workers, workers.worker():
            await operator.wait_idle(15)
        await gone.stop(grace=0)
        await lost.close()
        assert (await operator.stats()).completed == 3
    assert await place.denied() == []


@pytest.mark.promise("Counters are wrong")
@pytest.mark.parametrize("who", ["operator", "worker"])
async def test_wrong_counters_are_set_right(place: Place, monkeypatch: pytest.MonkeyPatch, who: Role) -> None:
    monkeypatch.setattr("command_bus.transport.redis.maintenance.upkeep._EVERY", 0.0)
    async with place.bus("worker") as working:
        await working.dispatch(Work(line="a", number=1), delay=3600)
        await place.admin.hset(f"{{{NAMESPACE}:0}}:stats", "depth", "99")  # type: ignore[misc]
        await place.admin.hset(f"{{{NAMESPACE}:0}}:later", "line:a", "5")  # type: ignore[misc]
        if who == "operator":
            async with place.bus("operator") as operating:
                await operating.entities.recount()
        async with AsyncExitStack() as stack:
            if who == "worker":
                await stack.enter_async_context(working.worker())

            async def right() -> bool:
                return bool(await place.admin.hget(f"{{{NAMESPACE}:0}}:stats", "depth") == b"1")  # type: ignore[misc]

            await until(right)
        assert await place.admin.hget(f"{{{NAMESPACE}:0}}:later", "line:a") == b"1"  # type: ignore[misc]
    assert await place.denied() == []


async def test_an_operator_aborts_a_running_command(place: Place) -> None:
    """Both sides of it: a handler that can be cancelled, and one that has to be given up."""
    began: list[str] = []
    hangs, free = HandlerRegistry(), asyncio.Event()

    @hangs.handles(Work)
    async def hang(command: Work) -> int:
        began.append(str(command.line))
        while not free.is_set() and len(began) < 4:
            with suppress(asyncio.CancelledError) if command.line == "b" else nullcontext():
                await free.wait()
        return 0

    sides = place.bus("producer"), place.bus("operator"), place.bus("worker", registry=hangs)
    async with sides[0] as producer, sides[1] as operator, sides[2] as workers, workers.worker():
        for line, force in (("a", False), ("b", True)):
            await producer.dispatch(Work(line=line, number=1))
            await until(lambda line=line: line in began)
            assert (await operator.entity("line", line).abort("it hangs", force=force)).result == "ended"
        free.set()
        await operator.wait_idle(10)
    assert await place.denied() == []


@pytest.mark.parametrize("shards", [1, 3])
async def test_an_operator_signals_and_cancels_what_runs(place: Place, shards: int) -> None:
    """Durable commands, which call, sleep, are signalled and compensated; and a plain one that runs."""
    began, hangs = asyncio.Event(), registry()
    hangs.handles(Hang)(partial(_hang, began))
    async with (
        place.bus("producer", shards=shards) as producer,
        place.bus("operator", shards=shards) as operator,
        place.bus("worker", shards=shards, registry=hangs) as workers,
        workers.worker(),
    ):
        for command_id in ("a", "a2", "b"):
            await producer.dispatch(Trip(trip=command_id[0]), command_id=command_id)
        for number, command_id in enumerate(("a", "a2")):  # the end of the second leaves neither a mailbox nor a side record
            assert await operator.commands.signal(command_id, "go", number)
            assert await producer.result(command_id, Trip, timeout=10) == 2 + number
        assert await operator.commands.cancel("b", running=True, reason="wrong day")
        with pytest.raises(CommandCancelled):
            await producer.result("b", Trip, timeout=10)
        call = asyncio.create_task(producer.call(Hang(line="a"), command_id="c", timeout=10))
        await began.wait()
        assert await operator.commands.cancel("c", running=True)
        with pytest.raises(CommandCancelled):
            await call
        await operator.wait_idle(10)
    assert await place.denied() == []


async def test_a_producer_neither_signals_nor_cancels(place: Place) -> None:
    async with place.bus("producer") as producer, place.bus("worker") as workers, workers.worker():
        await producer.dispatch(Trip(trip="a"), command_id="a")
        with pytest.raises(UnsuitableServer):
            await producer.commands.signal("a", "go", 5)
        with pytest.raises((UnsuitableServer, TransportUnavailable)):  # the right, or a script that only operators load
            await producer.commands.cancel("a", running=True)


class Hang(Command[None], entity="line"):
    line: EntityId


async def _hang(began: asyncio.Event, command: Hang) -> None:
    began.set()
    await asyncio.Event().wait()


async def test_a_pipeline_loads_dispatches_and_reads_their_outcomes(place: Place) -> None:
    target = Target(place.url("pipeline"), NAMESPACE)
    rows = [Envelope(Work(line=f"l{n % 3}", number=n), command_id=f"d-{n}") for n in range(50)]
    version = Version("d", 0)

    def load() -> None:
        for _ in range(2):  # as Spark runs a task again
            with PartitionDispatcher(target, dispatch_id="d", opening=Opening(what="w", keep_ms=60_000)) as dispatcher:
                dispatcher.dispatch_batch(rows)
                dispatcher.reject(RowReject.of(command_id="x", command="Work", entity=None, reason="invalid", error="no", row={}))
        link = connection_to(target)
        link.wait(link.transport.bulk.commit(version, "{}", 60_000))

    async def read() -> list[str]:
        """Make all requests of the Spark side."""
        bus = place.bus("pipeline")
        async with bus:
            transport = bus.session.redis
            assert (await bus.stats()).accepted > 50
            dispatches, outcomes = transport.bulk, transport.bulk.outcomes
            assert await dispatches.names() == ["d"]
            assert await dispatches.facts("d") is not None
            assert len([row async for row in dispatches.rejects("d")]) == 1
            assert await transport.announcements.described("Work") is not None
            streams = await outcomes.streams([("d", 0)])
            assert streams[0] is not None
            assert await outcomes.ends("d", 0, "-", "+") is not None
            await outcomes.skip("d", 0, "", "+", 10)
            assert [page async for page in transport.operator.entities.pages(0)]
            assert [page async for page in transport.operator.mailboxes.contents(0)]
            newest = await transport.operator.dead_letters.newest(0)
            assert newest is not None
            assert await transport.operator.dead_letters.page(0, "", newest, 10)
            page = await outcomes.page("d", 0, "", "+", 100)
            return [str(record) for record in page.records] if hasattr(page, "records") else [str(page)]

    async with place.bus("worker") as workers, workers.worker(), place.bus("operator") as operator:
        await asyncio.to_thread(load)
        await operator.wait_idle(10)
        assert (await operator.stats()).completed == 50
        async with place.bus("producer") as producer:
            await producer.dispatch(Work(line="bad", number=-1))
            await until(lambda: letters_of(operator))
            await operator.entity("line", "waits").pause()
            await producer.dispatch(Work(line="waits", number=1))
            await producer.dispatch(Work(line="waits", number=1), delay=60)
        assert await read()
        await asyncio.to_thread(connection_to(target).close)
    assert await place.denied() == []


async def test_a_relay_takes_from_an_outbox(place: Place) -> None:
    async with place.bus("worker") as workers, workers.worker(), place.bus("relay") as relay:
        outboxes, builder = relay.session.transport.outboxes, relay.sender.builder
        await relay.dispatch(Work(line="a", number=0))  # agrees on the type
        expected = (await outboxes.look("default", 0)).value
        for number in range(1, 4):
            rows = [(f"{number}:x", builder.build(builder.outgoing(Work(line="a", number=number), {"command_id": f"r{number}"})))]
            placed = await outboxes.place("default", 0, expected, f"token{number}", rows, [f"{number - 1}:x"])
            assert isinstance(placed, Placed)
            expected = placed.value
        assert (await outboxes.look("default", 0)).rows == {"3:x"}
        await relay.dispatch(Work(line="a", number=4), delay=0.01)
        await until(lambda: settled(workers, 5))
    assert await place.denied() == []


async def settled(bus: CommandBus, count: int) -> bool:
    return (await bus.stats()).settled >= count


@pytest.mark.parametrize(
    "bad",
    [
        {"role": "admin"},
        {"namespace": "a b"},
        {"namespace": "*"},
        {"user": ""},
        {"user": "a b"},
        {"password": "a b"},
        {"password": "a\n+@all"},
    ],
)
def test_what_would_break_out_of_the_line_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings):
        acl_lines(**{"role": "producer", "namespace": "shop", **bad})


def test_a_user_without_a_password_is_off() -> None:
    (line,) = acl_lines("producer", "shop", user="jo")
    assert line.startswith("ACL SETUSER jo reset off resetchannels -@all ")
    assert " on " not in line
    assert "nopass" not in line
