"""`bus.commands.status`: where a command is, and what it waits for. Over every server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from command_bus import (
    Command,
    CommandBus,
    CommandFailed,
    CommandStatus,
    DurableContext,
    EntityId,
    EntityPolicy,
    HandlerRegistry,
    Reject,
    RetryPolicy,
    Snooze,
    UnknownCommand,
    lanes,
)
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until


class Work(Command[int], entity="desk"):
    desk: EntityId
    what: str = ""


class Parks(Command[int], entity="desk", retry=RetryPolicy(attempts=1), on_poison="park"):
    desk: EntityId


class Retries(Command[int], entity="desk", retry=RetryPolicy(attempts=3, delay=60, jitter=0.0)):
    desk: EntityId


class Undo(Command[None], entity="undo"):
    undo: EntityId


class Trip(Command[int], entity="trip", durable=True):
    trip: EntityId
    waits_for: str = ""


@dataclass
class Seen:
    """Lets handlers go on."""

    free: asyncio.Event = field(default_factory=asyncio.Event)


@pytest.fixture
def seen(sandbox: Sandbox) -> Seen:
    seen = Seen()
    _plain(sandbox.registry, seen)
    _durable(sandbox.registry, seen)
    return seen


def _plain(registry: HandlerRegistry, seen: Seen) -> None:
    @registry.handles(Work)
    async def work(command: Work) -> int:
        match command.what:
            case "reject":
                raise Reject("no")
            case "snooze":
                raise Snooze(60)
            case "hang":
                await seen.free.wait()
        return 1

    @registry.handles(Parks)
    async def park(command: Parks) -> int:
        raise OSError("broken")

    @registry.handles(Retries)
    async def retries(command: Retries) -> int:
        raise OSError("broken")


def _durable(registry: HandlerRegistry, seen: Seen) -> None:
    @registry.handles(Undo)
    async def undo(command: Undo) -> None:
        await seen.free.wait()

    @registry.handles(Trip)
    async def trip(command: Trip, context: DurableContext) -> int:
        match command.waits_for:
            case "call":
                return await context.call(Work(desk="far", what="hang"))
            case "signal":
                return int(await context.signal("go", timeout=600))
            case "sleep":
                await context.sleep(600)
            case "all":
                await context.all(context.call(Work(desk="far", what="hang")), context.signal("go"))
            case _:
                context.compensate(Undo(undo="u"))
                raise Reject("no")
        return 1


async def _reaches(bus: CommandBus, command_id: str, wanted: Callable[[CommandStatus], bool]) -> CommandStatus:
    """Wait for a status."""
    found: list[CommandStatus] = []

    async def is_there() -> bool:
        found.append(await bus.commands.status(command_id))
        return wanted(found[-1])

    await until(is_there)
    return found[-1]


async def test_its_trace_is_known_as_long_as_its_envelope(sandbox: Sandbox, seen: Seen) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    async with sandbox.bus() as bus:
        await bus.dispatch(Work(desk="t", what="hang"), command_id="first", headers=headers)
        await bus.dispatch(Work(desk="t"), command_id="second", headers=headers)
        await bus.dispatch(Work(desk="t"), command_id="later", delay=600, headers=headers)
        await bus.dispatch(Work(desk="t", what="hang"), command_id="none")
        found = [(await bus.commands.status(each)).trace_id for each in ("first", "second", "later", "none")]
        seen.free.set()
        assert found == [trace_id, trace_id, trace_id, ""]
        async with bus.worker():
            ended = await _reaches(bus, "second", lambda status: status.state == "settled")
            assert ended.trace_id == ""


@pytest.mark.promise("The status says where a command is")
async def test_from_the_dispatch_to_the_end(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus:
        await bus.dispatch(Work(desk="a", what="hang"), command_id="first")
        await bus.dispatch(Work(desk="a"), command_id="second")
        waits = await bus.commands.status("first")
        assert (waits.state, waits.position, waits.name, waits.entity, waits.attempt) == ("waiting", 1, "Work", "desk:a", 0)
        assert (await bus.commands.status("second")).position == 2
        async with bus.worker() as worker:
            runs = await _reaches(bus, "first", lambda status: status.state == "running")
            assert (runs.position, runs.attempt, runs.worker) == (1, 1, worker.name)
            assert runs.since_ms is not None
            assert abs(runs.since_ms - await bus.session.transport.operator.entities.now_ms()) < 5000
            behind = await bus.commands.status("second")
            assert (behind.state, behind.position, behind.worker) == ("waiting", 2, None)
            seen.free.set()
            ended = await _reaches(bus, "second", lambda status: status.state == "settled")
            assert ended == CommandStatus("second", "settled", outcome="completed")


async def test_what_lets_it_wait(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        now = await bus.session.transport.operator.entities.now_ms()
        await bus.dispatch(Work(desk="d"), command_id="delayed", delay=60)
        delayed = await bus.commands.status("delayed")
        assert (delayed.state, delayed.name, delayed.entity, delayed.position) == ("delayed", "Work", "desk:d", None)
        assert 50_000 < (delayed.until_ms or 0) - now < 70_000
        await bus.dispatch(Retries(desk="r"), command_id="retries")
        retries = await _reaches(bus, "retries", lambda status: status.state == "retrying")
        assert retries.attempt == 1
        assert 50_000 < (retries.until_ms or 0) - now < 70_000
        await bus.dispatch(Work(desk="s", what="snooze"), command_id="snoozes")
        snoozes = await _reaches(bus, "snoozes", lambda status: status.state == "snoozed")
        assert 50_000 < (snoozes.until_ms or 0) - now < 70_000
        await bus.entity("desk", "p").pause("to look at it")
        await bus.dispatch(Work(desk="p"), command_id="paused")
        paused = await bus.commands.status("paused")
        assert (paused.state, paused.hold is not None and paused.hold.reason) == ("paused", "to look at it")


async def test_a_limit(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus:
        await bus.limits.put("type:desk", concurrency=1)
        async with bus.worker():
            await bus.dispatch(Work(desk="a", what="hang"), command_id="first")
            await _reaches(bus, "first", lambda status: status.state == "running")
            await bus.dispatch(Work(desk="b"), command_id="second")
            limited = await _reaches(bus, "second", lambda status: status.state == "limited")
            assert limited.limit is not None
            assert limited.limit.limit == "type:desk"
            seen.free.set()
            await bus.wait_idle(10)


async def test_how_it_ended(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Work(desk="a", what="reject"), command_id="rejected")
        assert (await _reaches(bus, "rejected", lambda status: status.state == "settled")).outcome == "rejected"
        await bus.dispatch(Work(desk="b"), command_id="cancelled", delay=60)
        await bus.cancel("cancelled")
        assert (await bus.commands.status("cancelled")).outcome == "cancelled"
        with pytest.raises(CommandFailed):
            await bus.call(Parks(desk="p"), command_id="parks", timeout=10)
        parked = await bus.commands.status("parks")
        assert (parked.state, parked.name, parked.entity, parked.position) == ("parked", "Parks", "desk:p", 1)
        assert parked.letter_id is not None
        await bus.dispatch(Work(desk="p"), command_id="behind")
        behind = await bus.commands.status("behind")
        assert (behind.state, behind.position) == ("waiting", 2)
        await bus.dead_letters.discard(parked.letter_id)
        assert (await bus.commands.status("parks")).outcome == "cancelled"


async def test_131_what_is_not_known(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus:
        async with bus.worker():
            receipt = await bus.dispatch(Work(desk="a"))
            await bus.wait_idle(10)
        for command_id in ("no-such", receipt.command_id):
            with pytest.raises(UnknownCommand, match="are remembered for dedup_window"):
                await bus.commands.status(command_id)
        kept = await bus.dispatch(Work(desk="a"), keep_result=True)
        assert (await bus.commands.status(kept.command_id)).position == 1


@pytest.mark.promise("The status says where a command is")
async def test_a_place_is_counted_to_a_thousand(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus(max_depth=5000) as bus:
        await bus.dispatch_batch(Work(desk="a") for _ in range(999))
        await bus.dispatch(Work(desk="a"), command_id="near")
        await bus.dispatch_batch(Work(desk="a") for _ in range(200))
        await bus.dispatch(Work(desk="a"), command_id="far")
        assert (await bus.commands.status("near")).position == 1000
        far = await bus.commands.status("far")
        assert (far.state, far.position, far.entity) == ("waiting", None, "desk:a")


@pytest.mark.promise("The status says where a command is")
@pytest.mark.parametrize(
    ("what", "shown", "is_timed"),
    [
        ("call", ["Work CHILD on desk:far"], False),
        ("signal", ["the signal go"], True),
        ("sleep", [], True),
        ("all", ["Work CHILD on desk:far", "the signal go"], False),
    ],
)
async def test_what_a_suspended_command_waits_for(
    sandbox: Sandbox, seen: Seen, what: str, shown: list[str], is_timed: bool
) -> None:
    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Trip(trip="a", waits_for=what))
        status = await _reaches(bus, receipt.command_id, lambda status: status.state == "suspended")
        assert (status.name, status.entity, status.position, status.worker) == ("Trip", "trip:a", 1, None)
        waits = status.suspension
        assert waits is not None
        assert [str(each).replace(each.command_id or "-", "CHILD") for each in waits.waits_for] == shown
        assert (status.since_ms, status.until_ms) == (waits.since_ms, waits.until_ms)
        assert (waits.until_ms is not None) == is_timed
        assert abs(waits.since_ms - await bus.session.transport.operator.entities.now_ms()) < 5000
        (listed,) = (await bus.entities.list(states={"suspended"})).entities
        assert (listed.suspension, (await bus.entity("trip", "a").show()).entity.suspension) == (waits, waits)
        seen.free.set()
        await bus.commands.cancel(receipt.command_id, running=True)
        ended = await _reaches(bus, receipt.command_id, lambda status: status.state == "settled")
        assert ended.outcome in ("cancelled", "completed")


async def test_one_that_undoes_what_it_did(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Trip(trip="a"))
        status = await _reaches(
            bus, receipt.command_id, lambda status: status.state == "compensating" and status.suspension is not None
        )
        assert status.suspension is not None
        assert str(status.suspension).endswith("on undo:u, to undo what it did")
        seen.free.set()
        assert (await _reaches(bus, receipt.command_id, lambda status: status.state == "settled")).outcome == "rejected"


async def test_one_of_a_lane(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus(entities={"desk": EntityPolicy(lanes(2))}) as bus:
        await bus.dispatch(Work(desk="a"), command_id="laned")
        assert (await bus.commands.status("laned")).entity == "desk:a"
