"""Readers of several shards share a worker's slots: reserved before they read, in turn, and none for a quiet shard."""

from __future__ import annotations

import asyncio

import pytest

from command_bus.transport import slots as slots_module
from command_bus.transport.slots import Ask, Slots


async def ask(slots: Slots, reader: int, wanted: int = 8) -> Ask:
    return await asyncio.wait_for(slots.ask(reader, wanted), 1.0)


async def waits(task: asyncio.Task[Ask]) -> bool:
    for _ in range(5):
        await asyncio.sleep(0)
    return not task.done()


async def quieten(slots: Slots, *readers: int) -> None:
    """Let these readers find nothing."""
    for reader in readers:
        assert slots.answered(reader, await ask(slots, reader), 0, 0) == 0


async def test_a_single_reader_blocks_on_all_its_slots() -> None:
    slots = Slots(10)
    first = await ask(slots, 0)
    assert first == Ask(8, 8, blocks=True)
    assert slots.answered(0, first, 3, 2) == 2, "one was a tick"
    assert slots.free == 8
    slots.answered(0, await ask(slots, 0), 0, 0)
    assert await ask(slots, 0, 100) == Ask(8, 8, blocks=True)
    third = asyncio.create_task(slots.ask(0, 100))
    assert await waits(third)
    slots.give()
    slots.give()
    assert await third == Ask(2, 2, blocks=True), "what is freed in one turn is taken together"


async def test_slots_are_occupied_before_anybody_reads() -> None:
    """Slots that a shard without work had go to a shard with work."""
    slots = Slots(4, 8)
    asks = [await ask(slots, reader) for reader in range(4)]
    assert asks == [Ask(1, 1, blocks=False)] * 4
    others = [asyncio.create_task(slots.ask(reader, 8)) for reader in range(4, 8)]
    assert await waits(others[0])
    assert [slots.answered(reader, each, 1, 1) for reader, each in enumerate(asks)] == [1, 1, 1, 1]
    assert await waits(others[0]), "they run now"
    for other in others:
        slots.give()
        assert await asyncio.wait_for(other, 1.0) == Ask(1, 1, blocks=False)
    assert slots.free == 0


async def test_freed_slots_go_round_and_no_shard_starves() -> None:
    slots = Slots(1, 3)
    slots.answered(0, await ask(slots, 0), 1, 1)
    order: list[int] = []

    async def read(reader: int) -> None:
        while len(order) < 30:
            mine = await slots.ask(reader, 8)
            order.append(reader)
            slots.answered(reader, mine, 1, 1)

    readers = [asyncio.create_task(read(reader)) for reader in range(3)]
    while len(order) < 30:
        slots.give()
        await asyncio.sleep(0)
    assert all(order.count(reader) >= 9 for reader in range(3)), order
    for task in readers:
        task.cancel()
    await asyncio.gather(*readers, return_exceptions=True)


async def test_all_the_slots_are_for_the_only_shard_that_has_work() -> None:
    """Readers that block occupy nothing."""
    slots = Slots(40, 8)
    await quieten(slots, *range(1, 8))
    blocking = [await ask(slots, reader) for reader in range(1, 8)]
    assert blocking == [Ask(5, 0, blocks=True)] * 7
    assert await ask(slots, 0, 100) == Ask(40, 40, blocks=False)


@pytest.mark.parametrize(("total", "count"), [(1, 1), (4, 1), (100, 8), (20, 2)])
async def test_an_idle_worker_blocks_on_all_its_shards(total: int, count: int) -> None:
    slots = Slots(total, 8)
    await quieten(slots, *range(8))
    for reader in range(8):
        assert await ask(slots, reader) == Ask(count, 0, blocks=True)


async def test_without_a_free_slot_an_arrival_waits() -> None:
    slots = Slots(2, 2)
    await quieten(slots, 0, 1)
    both = [await ask(slots, reader) for reader in (0, 1)]
    assert slots.answered(0, both[0], 1, 1) == 1
    more = await ask(slots, 0)
    assert more == Ask(1, 1, blocks=False), "it was full: there may be more"
    assert slots.answered(0, more, 1, 1) == 1
    assert slots.answered(1, both[1], 1, 1) == 0
    assert slots.free == 0


async def test_a_quiet_shard_is_read_in_turn_while_slots_are_scarce() -> None:
    slots = Slots(1, 2)
    await quieten(slots, 1)
    slots.answered(0, await ask(slots, 0), 1, 1)
    quiet = asyncio.create_task(slots.ask(1, 8))
    busy = asyncio.create_task(slots.ask(0, 8))
    assert await waits(quiet)
    slots.give()
    slots.answered(0, await asyncio.wait_for(busy, 1.0), 1, 1)
    assert await waits(quiet), "it has looked a moment ago"
    await asyncio.sleep(slots_module._LOOK_AGAIN * 1.5)
    busy = asyncio.create_task(slots.ask(0, 8))
    assert await waits(busy)
    slots.give()
    assert await asyncio.wait_for(quiet, 1.0) == Ask(1, 1, blocks=False)
    assert await waits(busy)
    slots.answered(1, Ask(1, 1, blocks=False), 0, 0)
    assert await asyncio.wait_for(busy, 1.0) == Ask(1, 1, blocks=False)


async def test_quiet_readers_block_as_soon_as_a_slot_is_spare() -> None:
    slots = Slots(1, 2)
    await quieten(slots, 1)
    slots.answered(0, await ask(slots, 0), 1, 1)
    quiet = asyncio.create_task(slots.ask(1, 8))
    assert await waits(quiet)
    slots.give()
    await quieten(slots, 0)
    assert await asyncio.wait_for(quiet, 0.05) == Ask(1, 0, blocks=True)


async def test_a_reader_that_gives_up_in_line_keeps_nothing() -> None:
    slots = Slots(1, 2)
    slots.answered(0, await ask(slots, 0), 1, 1)
    first, second = (asyncio.create_task(slots.ask(reader, 8)) for reader in (0, 1))
    assert await waits(first)
    slots.give()
    first.cancel()
    assert await asyncio.wait_for(second, 1.0) == Ask(1, 1, blocks=False)
    assert first.cancelled()
    slots.answered(1, Ask(1, 1, blocks=False), 0, 0)
    assert slots.free == 1


async def test_a_slot_taken_by_a_read_that_blocked_is_waited_for_again() -> None:
    slots = Slots(1, 3)
    await quieten(slots, 0, 1, 2)
    blocked = await ask(slots, 0)
    slots.answered(1, await ask(slots, 1), 1, 1)
    waiting = asyncio.create_task(slots.ask(1, 8))
    assert await waits(waiting)
    slots.give()
    assert slots.answered(0, blocked, 1, 1) == 1, "it arrived before the one in line ran"
    assert await waits(waiting)
    assert slots.free == 0
    slots.give()
    assert await asyncio.wait_for(waiting, 1.0) == Ask(1, 1, blocks=False)


# Slots that are lent.


async def running(slots: Slots, reader: int = 0) -> None:
    """Count one more running handler."""
    assert slots.answered(reader, await ask(slots, reader, 1), 1, 1) == 1


async def test_a_lent_slot_goes_to_the_next_reader_after_returning_handlers() -> None:
    slots = Slots(1, max_lent=5)
    await running(slots)
    assert slots.lend()
    await running(slots)
    reader = asyncio.create_task(slots.ask(0, 8))
    returns = slots.take_back()
    assert await waits(reader)
    assert not returns.done()
    slots.give()
    await asyncio.wait_for(returns, 1.0)
    assert (slots.running, slots.lent) == (1, 0)
    assert await waits(reader)
    slots.give()
    assert (await asyncio.wait_for(reader, 1.0)).count == 1


async def test_a_returning_handler_takes_a_reserved_slot() -> None:
    """A read may block for seconds; what it brings when its slot is gone is handed back."""
    slots = Slots(1, max_lent=5)
    await running(slots)
    slots.lend()
    blocked = await ask(slots, 0)
    await asyncio.wait_for(slots.take_back(), 1.0)
    assert slots.free == -1
    assert slots.answered(0, blocked, 1, 1) == 0
    assert (slots.free, slots.running) == (0, 1)
    slots.give()
    assert (slots.free, slots.running) == (1, 0)


async def test_no_more_than_the_bound_are_lent_but_for_those_beyond() -> None:
    slots = Slots(2, max_lent=1)
    await running(slots)
    await running(slots)
    assert slots.lend()
    assert slots.all_lent
    assert not slots.lend()
    assert slots.lend(beyond=True)
    assert (slots.running, slots.lent) == (0, 2)


async def test_slots_taken_and_freed_in_one_turn_do_not_block_the_loop() -> None:
    """A reader of a quiet shard waits for slots to spare; there is one, and a handler takes it before the reader looks."""
    slots = Slots(2, 2, max_lent=5)

    async def run_one() -> None:
        for count in (1, 0):
            slots.answered(0, await ask(slots, 0), count, count)

    await quieten(slots, 0, 1)
    for _ in range(2):
        await run_one()
        assert slots.lend()
    await run_one()
    assert slots.take_back().done()
    quiet = asyncio.create_task(slots.ask(1, 8))
    assert await waits(quiet)
    slots.give()
    assert slots.take_back().done()
    for _ in range(5):
        await asyncio.sleep(0)
    assert slots.free == 0
    quiet.cancel()
    await asyncio.gather(quiet, return_exceptions=True)


async def test_at_the_bound_one_caller_is_admitted_after_each_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "_STANDSTILL", 0.05)
    slots = Slots(4, max_lent=1)
    assert slots.admits_caller()
    await running(slots)
    slots.lend()
    assert not slots.admits_caller()
    await asyncio.sleep(0.06)
    assert slots.admits_caller()
    assert not slots.admits_caller()
    slots.take_back_now()
    assert slots.admits_caller()


async def test_readers_of_other_shards_that_wait_for_a_slot_are_known() -> None:
    slots = Slots(1, 2)
    await running(slots, 0)
    assert not slots.another_waits(0)
    waiting = asyncio.create_task(slots.ask(1, 8))
    assert await waits(waiting)
    assert slots.another_waits(0)
    assert not slots.another_waits(1)
    slots.give()
    await waiting
    assert not slots.another_waits(0)


async def test_a_returning_handler_leaves_a_read_that_does_not_wait_its_slots() -> None:
    """To give back what was read is work for the server, and for a worker."""
    slots = Slots(2, max_lent=5)
    await running(slots)
    slots.lend()
    prompt = await asyncio.wait_for(slots.ask(0, 8, may_block=False), 1.0)
    assert prompt == Ask(2, 2, blocks=False)
    first, second = slots.take_back(), slots.take_back()
    assert not first.done()
    assert slots.answered(0, prompt, 1, 1) == 1
    assert (first.done(), second.done()) == (True, False)  # the read needed one of its two
    slots.give()
    assert second.done()


async def test_a_returning_handler_leaves_them_only_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of one shard may be away, and handlers go on all the same."""
    monkeypatch.setattr(slots_module, "_KEPT", 0.02)
    slots = Slots(1, max_lent=5)
    await running(slots)
    slots.lend()
    prompt = await asyncio.wait_for(slots.ask(0, 8, may_block=False), 1.0)
    await asyncio.wait_for(slots.take_back(), 1.0)
    slots.lend()
    first, second = slots.take_back(), slots.take_back()
    await asyncio.wait_for(first, 1.0)
    slots.give()  # also where all slots ran when the handler wanted to go on
    await asyncio.wait_for(second, 1.0)
    assert slots.answered(0, prompt, 1, 1) == 0
