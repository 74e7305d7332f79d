"""Servers that do not fit, break or fill up, and settings that make no sense. Numbers as in `test_bad_input.py`."""

from __future__ import annotations

import asyncio

import pytest

from command_bus import (
    InvalidCommand,
    UnknownDeadLetter,
)
from command_bus.clock import wall_ms
from command_bus.transport.redis.keys import GROUP
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import Put, put_service, until
from tests.conformance.servers.bad_servers import Fails, Long, differs, fails


async def test_37_a_mailbox_of_another_type_fails_alone_when_sending(sandbox: Sandbox) -> None:
    async with put_service(sandbox) as service:
        client = sandbox.client()
        await client.set(service.keys.mailbox("box:broken"), "mine")
        with pytest.raises(InvalidCommand, match="WRONGTYPE"):
            await service.bus.dispatch(Put(box="broken", value=1))
        batch = await service.bus.dispatch_batch(
            [Put(box="a", value=1), Put(box="broken", value=1), Put(box="a", value=2), Put(box="broken", value=2)]
        )
        assert [outcome.status for outcome in batch.outcomes] == ["accepted", "rejected", "accepted", "rejected"]
        await client.delete(service.keys.mailbox("box:broken"))
        await client.hset(service.keys.mark("taken"), "a", "b")  # type: ignore[misc]
        with pytest.raises(InvalidCommand, match="WRONGTYPE"):
            await service.bus.dispatch(Put(box="a", value=1), command_id="taken")
        await client.delete(service.keys.mark("taken"))
        await client.aclose()
        await service.assert_unharmed("a", "broken")


@pytest.mark.parametrize("outcome", ["returns", "fails"])
async def test_37_a_mailbox_of_another_type_holds_only_its_entity(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture, outcome: str
) -> None:
    gate = asyncio.Event()
    running = asyncio.Event()

    @sandbox.registry.handles(Long)
    async def long(command: Long) -> str:
        running.set()
        await gate.wait()
        return "done"

    @sandbox.registry.handles(Fails)
    async def fails(command: Fails) -> None:
        running.set()
        await gate.wait()
        raise ValueError("planned")

    command = Long(box="broken") if outcome == "returns" else Fails(box="broken")
    async with put_service(sandbox) as service:
        await service.bus.dispatch(command, command_id="stuck")
        await running.wait()
        await service.bus.dispatch(Put(box="broken", value=0))  # so it has a stream
        client = sandbox.client()
        box = service.keys.mailbox("box:broken")
        await client.rename(box, box + ":aside")
        await client.set(box, "not a stream")
        gate.set()
        await until(lambda: "broken is stuck" in caplog.text)
        assert "WRONGTYPE" in caplog.text
        await service.assert_runs("a")
        await asyncio.sleep(1.2)  # it is tried again, and again without effect
        assert len(await service.letters()) == 0
        await client.delete(box)
        await client.rename(box + ":aside", box)
        await service.bus.wait_idle(10)
        assert len(await service.letters()) == (1 if outcome == "fails" else 0)
        await client.aclose()
        await service.assert_unharmed("a", "broken")
        stats = await service.bus.stats()
        assert stats.depth == 0
        assert stats.dead_lettered == (0 if outcome == "returns" else 1)


@pytest.mark.promise("The ready stream or its group is deleted")
@pytest.mark.parametrize("what", ["group", "stream", "everything"])
async def test_38_a_deleted_ready_stream_or_group_is_created_again(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    gate = asyncio.Event()
    starts: list[str] = []

    @sandbox.registry.handles(Long)
    async def long(command: Long) -> str:
        starts.append(str(command.box))
        await gate.wait()
        return "done"

    async with put_service(sandbox, lease=1.0, concurrency=2) as service:
        await service.bus.dispatch_batch([Long(box="held"), Put(box="held", value=1)])
        await until(lambda: starts)
        await service.bus.entity("box", "resting").pause()
        await service.bus.dispatch(Put(box="resting", value=1))
        client = sandbox.client()
        if what == "group":
            await client.xgroup_destroy(service.keys.ready, "workers")
        elif what == "stream":
            await client.delete(service.keys.ready)
        else:
            await client.delete(*(key for key in await sandbox.keys() if not key.endswith("meta")))
        await client.aclose()
        await until(lambda: "created again" in caplog.text)
        await service.assert_runs("a")
        await asyncio.sleep(0.3)
        gate.set()
        await service.bus.entity("box", "resting").resume()
        await service.bus.wait_idle(10)
        assert starts == ["held"], "at most once"
        await service.assert_unharmed("a", "held", "resting")
        if what != "everything":
            assert ("held", 1) in service.seen
            assert ("resting", 1) in service.seen


async def test_38_running_commands_survive_a_deleted_group(sandbox: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    gate = asyncio.Event()
    running = asyncio.Event()

    @sandbox.registry.handles(Long)
    async def long(command: Long) -> str:
        running.set()
        await gate.wait()
        return "done"

    async with put_service(sandbox, lease=1.5) as service:
        client = sandbox.client()
        ready = service.keys.ready

        async def renewals() -> int:
            (pending,) = await client.xpending_range(ready, GROUP, min="-", max="+", count=10)
            return int(pending["times_delivered"])

        await service.bus.dispatch(Long(box="held"), command_id="held")
        await running.wait()
        before = await renewals()
        await until(lambda: differs(renewals, before))  # the next renewal is half a second away
        await client.xgroup_destroy(ready, GROUP)
        await until(lambda: "created again" in caplog.text)
        await asyncio.sleep(2.0)
        gate.set()
        assert await service.bus.result("held", timeout=5) == "done"
        await client.aclose()
        await service.assert_unharmed("held")


async def test_45_a_letter_is_replayed_once(sandbox: Sandbox) -> None:
    @sandbox.registry.handles(Fails)
    async def fails(command: Fails) -> None:
        raise ValueError("planned")

    async with put_service(sandbox) as service:
        await service.bus.dispatch(Fails(box="a"), command_id="again")
        letter = await service.letter()
        outcomes = await asyncio.gather(*(service.bus.dead_letters.replay(letter.id) for _ in range(3)), return_exceptions=True)
        assert sorted(map(type, outcomes), key=str) == [UnknownDeadLetter, UnknownDeadLetter, str] or outcomes.count("again") == 1
        await service.bus.wait_idle(5)
        (again,) = await service.letters()
        assert (again.command_id, (await service.bus.stats()).dead_lettered) == ("again", 2)
        for bad in ("", "0-0", "9-1-1", "x", letter.id):
            with pytest.raises(UnknownDeadLetter):
                await service.bus.dead_letters.replay(bad)
            with pytest.raises(UnknownDeadLetter):
                await service.bus.dead_letters.discard(bad)
        await service.assert_unharmed("a")


@pytest.mark.parametrize("hours", [-5, 5])
async def test_41_a_worker_with_a_wrong_clock_works(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    """Deadlines, delays and leases go by the server's clock and by time that only grows; the wrong time shows in what it writes of itself."""
    real = wall_ms

    def wrong() -> int:
        return real() + hours * 3_600_000

    for module in (
        "command_bus.worker.decisions",
        "command_bus.worker.worker",
        "command_bus.transport.redis.worker.lease_keeper",
    ):
        monkeypatch.setattr(f"{module}.wall_ms", wrong)
    sandbox.registry.handles(Fails)(fails)
    async with put_service(sandbox, lease=0.6) as service:
        await service.bus.dispatch(Put(box="a", value=0), expires=30)
        await service.bus.dispatch(Put(box="a", value=1), delay=0.1)
        assert await service.bus.call(Put(box="a", value=2), timeout=5) == 2
        await service.bus.dispatch(Fails(box="b"))
        letter = await service.letter()
        assert abs(letter.failed_ms - wrong()) < 60_000
        assert abs(letter.accepted_ms - real()) < 60_000
        await service.bus.dead_letters.discard(letter.id)
        await service.bus.wait_idle(5)
        assert sorted(service.seen) == [("a", 0), ("a", 1), ("a", 2)]
        await service.assert_unharmed("a", "b")
