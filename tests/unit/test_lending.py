"""The slot of a handler that waits: lent once and taken back once, whatever its tasks do at the same time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from command_bus.transport.slots import Slots
from command_bus.worker import lending as lending_module
from command_bus.worker.lending import Lending


def one_of(slots: Slots, *, beyond: bool = False) -> Lending:
    """Return the lending of a handler that has begun to run."""
    slots.running += 1
    return Lending(slots, None, beyond=beyond, loop=asyncio.get_running_loop())


async def wait_in(lending: Lending, until: asyncio.Event) -> None:
    async with lending:
        await until.wait()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def state(slots: Slots) -> tuple[int, int]:
    return slots.running, slots.lent


async def test_it_is_lent_from_the_first_wait_to_the_last() -> None:
    slots, first, second = Slots(1, max_lent=5), asyncio.Event(), asyncio.Event()
    lending = one_of(slots)
    waits = [asyncio.create_task(wait_in(lending, event)) for event in (first, second)]
    await turns()
    assert state(slots) == (0, 1)
    first.set()
    await turns()
    assert state(slots) == (0, 1), "the handler still waits for the other"
    second.set()
    await asyncio.gather(*waits)
    assert state(slots) == (1, 0)


async def test_a_slot_stays_lent_when_a_second_wait_begins_before_the_first_ends() -> None:
    slots, first, second = Slots(1, max_lent=5), asyncio.Event(), asyncio.Event()
    lending = one_of(slots)
    going = asyncio.create_task(wait_in(lending, first))
    await turns()
    slots.running += 1  # another handler has the slot
    first.set()
    await turns()
    assert not going.done()
    waiting = asyncio.create_task(wait_in(lending, second))
    await turns()
    assert going.done(), "its handler waits: it has no need of a slot"
    assert state(slots) == (1, 1)
    slots.give()
    assert state(slots) == (0, 1)
    second.set()
    await waiting
    assert state(slots) == (1, 0)


async def test_a_handler_cancelled_in_its_wait_does_not_wait_for_a_slot() -> None:
    slots = Slots(1, max_lent=5)
    lending = one_of(slots)
    wait = asyncio.create_task(wait_in(lending, asyncio.Event()))
    await turns()
    slots.running += 1
    wait.cancel()
    await asyncio.gather(wait, return_exceptions=True)
    assert state(slots) == (2, 0)


@pytest.mark.parametrize("given_first", [True, False])
async def test_a_handler_cancelled_while_it_waits_for_its_slot_gets_it_once(given_first: bool) -> None:
    slots, event = Slots(1, max_lent=5), asyncio.Event()
    lending = one_of(slots)
    wait = asyncio.create_task(wait_in(lending, event))
    await turns()
    slots.running += 1
    event.set()
    await turns()
    if given_first:
        slots.give()
        wait.cancel()
    else:
        wait.cancel()
        slots.give()  # in the same turn of the event loop: the turn is in line, and cancelled
    await asyncio.gather(wait, return_exceptions=True)
    assert state(slots) == (1, 0)
    lending.end()
    slots.give()
    assert state(slots) == (0, 0)


async def test_after_one_too_many_no_caller_returns_before_there_is_room() -> None:
    slots, event = Slots(1, max_lent=5), asyncio.Event()
    lending = one_of(slots)
    wait = asyncio.create_task(wait_in(lending, event))
    await turns()
    slots.running += 2  # one beyond the total
    event.set()
    await turns()
    slots.give()
    await turns()
    assert not wait.done()
    slots.give()
    await asyncio.wait_for(wait, 1)
    assert state(slots) == (1, 0)


@pytest.mark.parametrize("when", ["waiting", "in line", "granted"])
async def test_it_ends_with_its_handler(when: str) -> None:
    """Later waits of its tasks do not affect its slot."""
    slots, event = Slots(1, max_lent=5), asyncio.Event()
    lending = one_of(slots)
    wait = asyncio.create_task(wait_in(lending, event))
    await turns()
    if when != "waiting":
        slots.running += 1
        event.set()
        await turns()
    if when == "granted":
        slots.give()
    lending.end()
    event.set()
    await asyncio.wait_for(wait, 1)
    assert state(slots) == (2 if when == "in line" else 1, 0)
    await wait_in(lending, event)
    assert slots.lent == 0


async def test_a_handler_that_kept_its_slot_lends_it_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending_module, "_LEND_LATER", 0.01)
    slots, event = Slots(2, max_lent=1), asyncio.Event()
    first, second = one_of(slots), one_of(slots)
    waits = [asyncio.create_task(wait_in(lending, each)) for lending, each in ((first, event), (second, asyncio.Event()))]
    await turns()
    assert state(slots) == (1, 1)
    event.set()
    await waits[0]
    slots.give()
    for _ in range(200):
        if slots.lent:
            break
        await asyncio.sleep(0.01)
    assert state(slots) == (0, 1)
    waits[1].cancel()
    await asyncio.gather(waits[1], return_exceptions=True)


async def test_another_event_loop_waits_as_well() -> None:
    slots = Slots(1, max_lent=5)
    lending = one_of(slots)
    began, may_end = threading.Event(), threading.Event()

    def elsewhere(then: Callable[[], object]) -> None:
        async def wait() -> None:
            async with lending:
                began.set()
                await asyncio.to_thread(may_end.wait, 10)
            then()

        asyncio.run(wait())

    done = threading.Event()
    thread = threading.Thread(target=elsewhere, args=(done.set,))
    thread.start()
    await asyncio.to_thread(began.wait, 10)
    await turns()
    assert state(slots) == (0, 1)
    may_end.set()
    assert await asyncio.to_thread(done.wait, 10)
    thread.join()
    assert state(slots) == (1, 0)


async def test_a_thread_that_outlives_its_handler_does_not_wait_for_the_worker() -> None:
    """Its worker's event loop may have stopped by then, and would never answer."""
    lending = one_of(Slots(1, max_lent=5))
    lending.end()
    loop = asyncio.new_event_loop()
    stopped = Lending(Slots(1, max_lent=5), None, beyond=False, loop=loop)
    stopped.end()
    try:
        async with asyncio.timeout(5), stopped:
            pass
    finally:
        loop.close()
