"""The test bus does what it says: leaps, crashes, assertions."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict

import pytest

from command_bus import (
    Command,
    CommandBus,
    CommandContext,
    CommandFailed,
    EntityId,
    HandlerRegistry,
    Reject,
    RetryPolicy,
)
from command_bus.testing.bus import TestBus
from command_bus.testing.crashes import CRASH_POINTS

registry = HandlerRegistry()
log: list[tuple[str, int, int]] = []
seen: set[str] = set()
totals: dict[str, int] = defaultdict(int)


class Add(Command[int], entity="box"):
    box: EntityId
    value: int


class AddOnce(Command[int], entity="box"):
    box: EntityId
    value: int


class AddOrNot(Command[int], entity="box", delivery="at_most_once"):
    box: EntityId
    value: int


class Flaky(Command[int], entity="box", retry=RetryPolicy(attempts=4, delay=20.0, factor=2.0, jitter=0.0)):
    box: EntityId
    succeeds_at: int


class Stuck(Command[None], entity="box", retry=RetryPolicy(attempts=1), on_poison="park"):
    box: EntityId


class Slow(Command[str], entity="box"):
    box: EntityId
    seconds: float


class Threaded(Command[str], entity="box"):
    box: EntityId


class Refused(Command[None], entity="box"):
    box: EntityId


@registry.handles(Add)
async def add(command: Add, context: CommandContext) -> int:
    log.append((str(command.box), command.value, context.attempt))
    totals[str(command.box)] += command.value
    return totals[str(command.box)]


@registry.handles(AddOnce)
async def add_once(command: AddOnce, context: CommandContext) -> int:
    if context.command_id not in seen:
        seen.add(context.command_id)
        totals[str(command.box)] += command.value
    return totals[str(command.box)]


@registry.handles(AddOrNot)
async def add_or_not(command: AddOrNot, context: CommandContext) -> int:
    return await add(Add(box=command.box, value=command.value), context)


@registry.handles(Flaky)
async def flaky(command: Flaky, context: CommandContext) -> int:
    if context.attempt < command.succeeds_at:
        raise OSError("not yet")
    return context.attempt


@registry.handles(Stuck)
async def stuck(command: Stuck) -> None:
    raise OSError("never")


@registry.handles(Slow)
async def slow(command: Slow) -> str:
    await asyncio.sleep(command.seconds)
    return "woken"


@registry.handles(Threaded)
def threaded(command: Threaded) -> str:
    time.sleep(0.05)
    return "done"


@registry.handles(Refused)
async def refused(command: Refused) -> None:
    raise Reject("no", code="no")


@pytest.fixture
def command_bus_registry() -> HandlerRegistry:
    log.clear()
    seen.clear()
    totals.clear()
    return registry


async def test_nothing_is_handled_before_it_is_asked_for(command_bus: TestBus) -> None:
    for value in range(5):
        await command_bus.dispatch(Add(box="a", value=value))
    await asyncio.sleep(0.02)
    assert not command_bus.handled
    await command_bus.run_until_idle()
    assert log == [("a", value, 1) for value in range(5)]
    assert command_bus.replies == [0, 1, 3, 6, 10]
    assert [type(message) for message in command_bus.dispatched] == [Add] * 5


async def test_delays_and_retries_pass_without_waiting(command_bus: TestBus) -> None:
    began, virtual = time.monotonic(), command_bus.clock.time()
    await command_bus.dispatch(Flaky(box="a", succeeds_at=4))
    await command_bus.dispatch(Add(box="a", value=1))
    await command_bus.dispatch(Add(box="b", value=1), delay=600)
    await command_bus.run_until_idle()
    assert time.monotonic() - began < 8
    assert command_bus.clock.time() - virtual >= 600
    assert command_bus.replies == [4, 1, 1]
    assert [note.context.attempt for note in command_bus.handled if isinstance(note.command, Flaky)] == [1, 2, 3, 4]
    assert (await command_bus.bus.stats()).completed == 3


async def test_a_receipt_s_result_is_waited_for_in_virtual_time(command_bus: TestBus) -> None:
    began = time.monotonic()
    receipt = await command_bus.dispatch(Flaky(box="a", succeeds_at=3), keep_result=True)
    assert await receipt.result(timeout=500) == 3
    assert time.monotonic() - began < 8


async def test_time_passes_step_by_step(command_bus: TestBus) -> None:
    await command_bus.dispatch(Add(box="a", value=1), delay=60)
    await command_bus.advance(59)
    assert not command_bus.handled
    await command_bus.advance(1.5)
    assert command_bus.replies == [1]


async def test_a_sleeping_handler_is_woken_by_the_clock(command_bus: TestBus) -> None:
    await command_bus.dispatch(Slow(box="a", seconds=100.0))
    with pytest.raises(AssertionError, match="still running: Slow of box:a"):
        await command_bus.run_until_idle(timeout=0.1)
    await command_bus.advance(100)
    assert command_bus.replies == ["woken"]
    assert command_bus.crashed == 0


async def test_threads_are_waited_for(command_bus: TestBus) -> None:
    assert await command_bus.call(Threaded(box="a")) == "done"
    await command_bus.dispatch(Threaded(box="a"))
    await command_bus.advance(1)
    assert command_bus.replies == ["done", "done"]


async def test_a_call_gets_its_outcome(command_bus: TestBus) -> None:
    assert await command_bus.call(Add(box="a", value=7)) == 7
    with pytest.raises(CommandFailed) as failure:
        await command_bus.call(Flaky(box="a", succeeds_at=9), timeout=500)
    assert failure.value.attempts == 4


async def test_a_command_that_waits_for_an_operator_is_idle(command_bus: TestBus) -> None:
    await command_bus.dispatch(Stuck(box="a"))
    await command_bus.dispatch(Add(box="a", value=1))
    await command_bus.run_until_idle()
    assert not log
    (letter,) = [letter async for letter in command_bus.bus.dead_letters.list()]
    await command_bus.bus.dead_letters.discard(letter.id)
    await command_bus.run_until_idle()
    assert log == [("a", 1, 1)]


async def test_a_crash_between_handling_and_settling_runs_a_command_twice(command_bus: TestBus) -> None:
    command_bus.crash_after("handled", Add)
    await command_bus.dispatch(Add(box="a", value=1))
    await command_bus.dispatch(Add(box="a", value=2))
    await command_bus.run_until_idle()
    assert command_bus.crashed == 1
    assert log == [("a", 1, 1), ("a", 1, 2), ("a", 2, 1)]
    assert command_bus.replies == [2, 4]


@pytest.mark.parametrize("point", ["claimed", "handled"])
async def test_a_dead_worker_hands_nothing_back(command_bus: TestBus, point) -> None:
    """The next worker waits for the end of the lease, as after a real crash, and looks like any other."""
    command_bus.crash_after(point, Add)
    await command_bus.dispatch(Add(box="a", value=1))
    began = command_bus.clock.time()
    await command_bus.run_until_idle()
    lease = command_bus.bus.settings.lease
    assert 0.8 * lease < command_bus.clock.time() - began < 1.5 * lease


@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_an_idempotent_handler_bears_every_crash(command_bus: TestBus, point) -> None:
    command_bus.crash_after(point, AddOnce, times=2)
    await command_bus.dispatch(AddOnce(box="a", value=5))
    await command_bus.dispatch(AddOnce(box="a", value=6))
    await command_bus.run_until_idle()
    assert command_bus.crashed == 2
    assert totals["a"] == 11


@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_the_caller_learns_of_it_all_the_same(command_bus: TestBus, point) -> None:
    command_bus.crash_after(point)
    assert await command_bus.call(AddOnce(box="a", value=5), timeout=120) == 5
    assert command_bus.crashed == 1


@pytest.mark.parametrize(("point", "ran", "letters"), [("claimed", 0, 1), ("handled", 1, 1), ("settled", 1, 0)])
async def test_at_most_once_never_runs_again(command_bus: TestBus, point, ran, letters) -> None:
    command_bus.crash_after(point)
    await command_bus.dispatch(AddOrNot(box="a", value=1))
    await command_bus.run_until_idle()
    assert len(log) == ran
    assert (await command_bus.bus.stats()).dead_letters == letters


async def test_the_nth_crashes(command_bus: TestBus) -> None:
    command_bus.crash_after("claimed", Add, nth=3)
    for value in range(4):
        await command_bus.dispatch(Add(box="a", value=value))
    await command_bus.run_until_idle()
    assert log == [("a", 0, 1), ("a", 1, 1), ("a", 2, 2), ("a", 3, 1)]


async def test_assertions(command_bus: TestBus) -> None:
    await command_bus.dispatch(Add(box="a", value=1), headers={"who": "me"}, command_id="c-1")
    await command_bus.dispatch_batch([Add(box="b", value=1)])
    await command_bus.dispatch(Refused(box="a"))
    await command_bus.run_until_idle()
    assert command_bus.assert_dispatched(Add, box="a").value == 1
    command_bus.assert_dispatched(Add, value=1, count=2)
    command_bus.assert_not_dispatched(Add, box="c")
    with pytest.raises(AssertionError, match=r"expected Add\(box='c'\), found 0; sent were:"):
        command_bus.assert_dispatched(Add, box="c")
    with pytest.raises(AssertionError, match="3 times, found 2"):
        command_bus.assert_dispatched(Add, value=1, count=3)
    with pytest.raises(AssertionError, match="expected no Add"):
        command_bus.assert_not_dispatched(Add, box="a")
    with pytest.raises(TypeError, match="no field bax"):
        command_bus.assert_dispatched(Add, bax="a")
    assert (command_bus.sent[0].command_id, command_bus.sent[0].headers) == ("c-1", {"who": "me"})
    assert [str(reply) for reply in command_bus.replies if isinstance(reply, Reject)] == ["no"]


async def test_replies_are_asserted(command_bus: TestBus) -> None:
    with pytest.raises(AssertionError, match=r"expected Add\(\) replied, found 0; nothing was handled"):
        command_bus.assert_replied(Add)
    for value in (1, 2):
        await command_bus.dispatch(Add(box="a", value=value))
    await command_bus.dispatch(Refused(box="a"))
    await command_bus.dispatch(Stuck(box="b"))
    await command_bus.run_until_idle()
    assert command_bus.assert_replied(Add) == 3  # the last
    assert command_bus.assert_replied(Add, value=1) == 1
    assert command_bus.assert_replied(Add, 3, count=1) == 3
    command_bus.assert_replied(Add, box="a", count=2)
    with pytest.raises(AssertionError, match=r"Add\(box='a'\) replied with 4, found 0; handled were:\n  Add\(.*\): replied 1\n"):
        command_bus.assert_replied(Add, 4, box="a")
    with pytest.raises(AssertionError, match="1 times, found 2"):
        command_bus.assert_replied(Add, count=1)
    for neither in (Refused, Stuck):  # neither a refusal nor a failure is a reply
        with pytest.raises(AssertionError, match=r"replied, found 0") as failed:
            command_bus.assert_replied(neither)
        assert "Refused(box='a'): rejected with 'no': no" in str(failed.value)
        assert "Stuck(box='b'): raised OSError('never')" in str(failed.value)
    with pytest.raises(TypeError, match="no field bax"):
        command_bus.assert_replied(Add, bax="a")


async def test_refusals_are_asserted(command_bus: TestBus) -> None:
    for box in ("a", "b"):
        await command_bus.dispatch(Refused(box=box))
    await command_bus.dispatch(Stuck(box="b"))
    await command_bus.dispatch(Add(box="c", value=1))
    await command_bus.run_until_idle()
    refusal = command_bus.assert_rejected(Refused, box="a")
    assert (refusal.message, refusal.code) == ("no", "no")
    assert isinstance(command_bus.assert_rejected(Refused, "no", count=2), Reject)
    with pytest.raises(AssertionError, match=r"expected Refused\(\) rejected with 'closed', found 0; handled were:"):
        command_bus.assert_rejected(Refused, "closed")
    for neither in (Add, Stuck):
        with pytest.raises(AssertionError, match=r"expected .* rejected, found 0"):
            command_bus.assert_rejected(neither)


async def test_an_attempt_lost_in_a_crash_is_no_reply(command_bus: TestBus) -> None:
    command_bus.crash_after("handled", AddOrNot)
    await command_bus.dispatch(AddOrNot(box="a", value=1))
    await command_bus.run_until_idle()
    with pytest.raises(AssertionError, match="lost in a crash"):
        command_bus.assert_replied(AddOrNot)


async def test_an_application_keeps_its_bus() -> None:
    app = CommandBus("redis://production.invalid", registry=registry, namespace="shop")
    log.clear()
    for _ in range(2):
        async with TestBus(bus=app) as bus:
            await app.dispatch(Add(box="a", value=1))
            await bus.run_until_idle()
            bus.assert_dispatched(Add)
    assert len(log) == 2
    assert app.session.clients is None
    assert not app.is_open


async def test_all_is_given_back() -> None:
    from command_bus import clock

    loop = asyncio.get_running_loop()
    async with TestBus(registry) as bus:
        await bus.call(Add(box="a", value=1))
        bus.crash_after("handled")
        await bus.dispatch(Add(box="a", value=1))
        await bus.run_until_idle()
        await bus.advance(3600)
        assert loop.time() - time.monotonic() > 3000
    assert clock.mono is time.monotonic
    assert abs(loop.time() - time.monotonic()) < 60
    assert len(asyncio.all_tasks()) == 1
