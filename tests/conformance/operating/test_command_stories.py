"""Any id is found while its command lives, with what it carries and how its last attempt failed. Over every server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from command_bus import Command, CommandBus, CommandStatus, EntityId, GiveUp, RetryPolicy, Snooze, UnknownCommand
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until


class Job(Command[None], entity="desk", retry=RetryPolicy(attempts=3, delay=60, jitter=0.0)):
    desk: EntityId
    what: str = ""


class Parking(Job, entity="desk", on_poison="park"):
    pass


class Kept(Job, entity="desk", history="1 h"):
    pass


@pytest.fixture
def free(sandbox: Sandbox) -> asyncio.Event:
    free = asyncio.Event()

    @sandbox.registry.handles(Job)
    @sandbox.registry.handles(Parking)
    @sandbox.registry.handles(Kept)
    async def job(command: Job) -> None:
        match command.what:
            case "hang":
                await free.wait()
            case "fail":
                raise OSError("100 % of the line | is down\nand more")
            case "give up":
                raise GiveUp("broken")
            case "snooze":
                raise Snooze(60)

    return free


@pytest.fixture
async def bus(sandbox: Sandbox, free: asyncio.Event) -> AsyncIterator[CommandBus]:
    async with sandbox.bus() as bus:
        yield bus
        free.set()


async def reaches(bus: CommandBus, command_id: str, state: str, entity: tuple[str, str] | None = None) -> CommandStatus:
    """Wait for a state of a command that has no mark; return its status."""
    found: list[CommandStatus] = []

    async def is_there() -> bool:
        try:
            found.append(await bus.commands.status(command_id, entity=entity))
        except UnknownCommand:
            return False
        return found[-1].state == state

    await until(is_there)
    return found[-1]


async def test_commands_with_generated_ids_are_found_in_each_state(bus: CommandBus) -> None:
    sent = {
        "lone": (await bus.dispatch(Job(desk="lone"))).command_id,
        "first": (await bus.dispatch(Job(desk="line"))).command_id,
        "second": (await bus.dispatch(Job(desk="line", what="x"))).command_id,
        "delayed": (await bus.dispatch(Job(desk="later"), delay=600)).command_id,
    }
    found = {name: await bus.commands.status(each) for name, each in sent.items()}
    assert {name: each.state for name, each in found.items()} == dict.fromkeys(sent, "waiting") | {"delayed": "delayed"}
    assert (found["second"].position, found["second"].entity) == (2, "desk:line")
    assert found["second"].payload == {"desk": "line", "what": "x"}
    with pytest.raises(UnknownCommand):
        await bus.commands.status(sent["second"], looks_around=False)
    with pytest.raises(UnknownCommand):  # it would look around again and again
        _ = [each async for each in bus.commands.progress(sent["second"])]
    await bus.entity("desk", "held").pause("look")
    held = (await bus.dispatch(Job(desk="held"))).command_id
    assert (await bus.commands.status(held)).state == "paused"
    async with bus.worker():
        runs = (await bus.dispatch(Job(desk="runs", what="hang"))).command_id
        assert (await reaches(bus, runs, "running")).attempt == 1
        snoozed = (await bus.dispatch(Job(desk="snoozes", what="snooze"))).command_id
        await reaches(bus, snoozed, "snoozed")
        parked = (await bus.dispatch(Parking(desk="parks", what="give up"))).command_id
        status = await reaches(bus, parked, "parked")
        assert (status.letter_id is not None, status.payload) == (True, {"desk": "parks", "what": "give up"})
        dead = (await bus.dispatch(Job(desk="dies", what="give up"))).command_id
        status = await reaches(bus, dead, "settled")
        assert (status.outcome, status.letter_id is not None) == ("failed", True)
        kept = (await bus.dispatch(Kept(desk="kept"))).command_id
        assert (await reaches(bus, kept, "settled")).outcome == "completed"
        assert not (await bus.commands.record(runs)).steps
    with pytest.raises(UnknownCommand, match="in the line of its entity"):
        await bus.commands.status("never")


async def test_a_line_is_looked_through_if_its_entity_is_named(bus: CommandBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("command_bus.admin.command_status._MOST_LOOKED_AT", 1)
    for number in range(20):
        await bus.dispatch(Job(desk=f"other-{number}"))
        await bus.dispatch(Job(desk=f"other-{number}"))
    sent = [(await bus.dispatch(Job(desk="line"))).command_id for _ in range(30)]
    found = await bus.commands.status(sent[-1], entity=("desk", "line"))
    assert (found.state, found.position) == ("waiting", 30)


async def test_the_last_error_is_kept_with_what_is_tried_again(bus: CommandBus) -> None:
    await bus.events.watch("desk")
    text = "OSError: 100 % of the line | is down\nand more"
    async with bus.worker():
        sent = (await bus.dispatch(Job(desk="d", what="fail"))).command_id
        behind = (await bus.dispatch(Job(desk="d"))).command_id
        status = await reaches(bus, sent, "retrying", ("desk", "d"))
        assert status.failure is not None
        assert (status.failure.text, status.attempt) == (text, 1)
        now = await bus.session.transport.operator.entities.now_ms()
        assert abs(now - status.failure.at_ms) < 10_000
        details = await bus.entity("desk", "d").show()
        assert details.entity.failure == status.failure
        (listed,) = (await bus.entities.list()).entities
        assert listed.failure == status.failure
        (stuck,) = (await bus.views.standing_still()).entities
        assert (stuck.entity.failure, stuck.payload) == (status.failure, {"desk": "d", "what": "fail"})
        assert (await bus.commands.status(behind, entity=("desk", "d"))).failure is None
        (event,) = [each for each in (await bus.events.recent("desk", "d")).events if each.kind == "retried"]
        assert (event.reason, event.outward.reason, event.delay) == (text, "OSError", 60.0)
        await bus.cancel(sent)
        await bus.wait_idle(10)


async def test_the_error_of_one_command_is_not_that_of_the_next(sandbox: Sandbox) -> None:
    tried: list[int] = []

    class Twice(Command[None], entity="desk", retry=RetryPolicy(attempts=2, delay=0.001, jitter=0.0)):
        desk: EntityId
        number: int = 0

    hold = asyncio.Event()

    @sandbox.registry.handles(Twice)
    async def twice(command: Twice) -> None:
        tried.append(command.number)
        if command.number == 0 and len(tried) == 1:
            raise OSError("once")
        if command.number == 1:
            await hold.wait()

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch_batch([Twice(desk="d", number=0), Twice(desk="d", number=1)])

        async def runs() -> bool:
            return tried == [0, 0, 1]

        await until(runs)
        assert (await bus.entity("desk", "d").show()).entity.failure is None
        hold.set()
        await bus.wait_idle(10)
