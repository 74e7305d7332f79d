"""Single steps that write the state of an entity: what they store and answer, also over lost replies and odd keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from command_bus.transport.redis.admin.states import RedisStates
from command_bus.transport.steps import NO_SETTLEMENT, Done, GiveBack, Lease, LeaseLost, Released, Started, StepFailed, Suspend
from tests.conformance.harness import TAKE, TransportHarness, done, left

pytestmark = pytest.mark.server
BOX = "box:a"


def changing(command_id: str, state: bytes, **options: Any) -> Done:
    return replace(done(command_id, **options), state=state)


async def stored(harness: TransportHarness, mailbox: str = BOX) -> bytes | None:
    value: Any = await harness.client.hget(harness.shard.states, mailbox)  # type: ignore[misc]
    return None if value is None else bytes(value)


def states(harness: TransportHarness) -> RedisStates:
    return RedisStates(harness.connections, harness.keys, patience=5)


def choose_way(lease: Lease, *, is_long: bool) -> None:
    """Let the next step take the long way, or leave it the usual one."""
    if is_long:
        lease.record = ""


@pytest.mark.parametrize("is_long", [False, True])
async def test_a_step_writes_the_state_and_starts_the_next(harness: TransportHarness, *, is_long: bool) -> None:
    await harness.put(BOX, "c1", "c2", "c3")
    worker = harness.worker()
    lease, _ = await worker.start()
    lease.state = b""
    for command_id, state in (("c1", b"one"), ("c2", b"two")):
        choose_way(lease, is_long=is_long)
        lease.state = state
        answer = await worker.do(lease, changing(command_id, state))
        assert isinstance(answer, Started)
        assert await stored(harness) == state
        assert lease.state == state, "it goes on from its own settlement"
    choose_way(lease, is_long=is_long)
    assert await worker.do(lease, changing("c3", b"")) == Released("idle")
    assert await stored(harness) is None
    assert await harness.nothing_of(BOX)


@pytest.mark.parametrize("left_by", [NO_SETTLEMENT, left("c1")])
@pytest.mark.parametrize("is_long", [False, True])
async def test_a_lone_command_writes_it_too(harness: TransportHarness, left_by: Any, *, is_long: bool) -> None:
    await harness.put(BOX, "c1")
    worker = harness.worker()
    lease, _ = await worker.start()
    choose_way(lease, is_long=is_long)
    assert await worker.do(lease, Done(left_by, state=b"one")) == Released("idle")
    assert await stored(harness) == b"one"


@pytest.mark.parametrize("is_long", [False, True])
async def test_a_step_that_is_repeated_says_that_the_state_has_to_be_read(harness: TransportHarness, *, is_long: bool) -> None:
    await harness.put(BOX, "c1", "c2", "c3")
    worker = harness.worker()
    lease, _ = await worker.start()
    lease.state = b"one"
    choose_way(lease, is_long=is_long)
    first, second = await worker.again(lease, changing("c1", b"one"))
    assert isinstance(first, Started)
    assert isinstance(second, Started)
    assert first.message == second.message
    assert lease.state is None
    assert await stored(harness) == b"one"


async def test_who_lost_the_lease_writes_nothing(harness: TransportHarness) -> None:
    await harness.put(BOX, "c1", "c2")
    worker = harness.worker()
    lease, _ = await worker.start()
    await worker.do(lease, GiveBack(counts=True))
    assert await worker.do(lease, changing("c1", b"late")) == LeaseLost()
    assert await stored(harness) is None


@pytest.mark.parametrize("is_long", [False, True])
async def test_a_key_of_another_type_is_an_error_of_this_step_alone(harness: TransportHarness, *, is_long: bool) -> None:
    await harness.put(BOX, "c1", "c2")
    worker = harness.worker()
    lease, _ = await worker.start()
    await harness.client.set(harness.shard.states, "odd")
    choose_way(lease, is_long=is_long)
    assert isinstance(await worker.do(lease, changing("c1", b"one")), StepFailed)
    assert await harness.waiting(BOX) == [b"c1", b"c2"], "nothing is settled"
    await harness.client.delete(harness.shard.states)
    assert isinstance(await worker.do(lease, changing("c1", b"one")), Started)
    assert await stored(harness) == b"one"


async def test_operators_change_it_while_nothing_runs(harness: TransportHarness) -> None:
    store = states(harness)
    assert await store.change(BOX, b"", None) == "none"
    assert await store.change(BOX, b"one", b"") == "done"
    assert await store.change(BOX, b"two", b"") == "other"
    assert await store.change(BOX, b"two", b"one") == "done"
    await harness.put(BOX, "c1", "c2")
    assert await store.change(BOX, b"three", None) == "done", "what waits has not read it"
    worker = harness.worker()
    lease, _ = await worker.start()
    assert await store.change(BOX, b"four", None) == "busy"
    assert await store.change(BOX, b"", None) == "busy"
    await harness.retry(worker, lease, 60_000)
    assert await store.change(BOX, b"four", None) == "done"
    assert await store.read([BOX, "box:other"]) == {BOX: b"four"}
    assert await store.change(BOX, b"", None) == "done"
    assert await stored(harness) is None


@pytest.mark.parametrize("others", [0, 1])
async def test_a_suspended_command_has_read_it(harness: TransportHarness, others: int) -> None:
    await harness.put(BOX, "c1", *(f"c{number + 2}" for number in range(others)))
    worker = harness.worker()
    lease, _ = await worker.start()
    await worker.do(lease, Suspend("c1", ("x",)))
    assert await states(harness).change(BOX, b"one", None) == "busy"


async def test_a_state_of_a_later_release_is_left_alone(harness: TransportHarness) -> None:
    await harness.client.hset(harness.shard.active, BOX, "n|1-0|5|1-0|1|5|w#1")  # type: ignore[misc]
    assert await states(harness).change(BOX, b"one", None) == "newer"


async def test_pages_have_the_states_of_one_type(harness: TransportHarness) -> None:
    store = states(harness)
    for number in range(700):
        await store.change(f"box:{number}", b"%d" % number, None)
    await store.change("boxes:1", b"other", None)
    found = {name: value async for page in store.pages("box") for name, value in page.items()}
    assert found == {f"box:{number}": b"%d" % number for number in range(700)}


async def test_a_take_repeated_by_its_holder_reads_again(harness: TransportHarness) -> None:
    await harness.put(BOX, "c1", "c2")
    worker = harness.worker()
    lease, _ = await worker.start()
    lease.state = b"old"
    lease.ahead = None
    assert isinstance(await worker.do(lease, TAKE), Started)
    assert lease.state is None


@pytest.mark.parametrize("is_long", [False, True])
async def test_a_failover_that_loses_a_settlement_has_the_state_read_again(harness: TransportHarness, *, is_long: bool) -> None:
    await harness.put(BOX, "c1", "c2", "c3")
    worker = harness.worker()
    lease, first = await worker.start()
    lease.state = b"one"
    saved: dict[Any, Any] = {
        key: await harness.client.dump(key) async for key in harness.client.scan_iter(f"{harness.shard.prefix}*")
    }
    choose_way(lease, is_long=is_long)
    answer = await worker.do(lease, changing("c1", b"one"))
    assert isinstance(answer, Started)
    assert lease.state == b"one"
    for key in [key async for key in harness.client.scan_iter(f"{harness.shard.prefix}*")]:
        await harness.client.delete(key)
    for key, value in saved.items():
        await harness.client.restore(key, 0, value)
    choose_way(lease, is_long=is_long)
    again = await worker.do(lease, changing("c2", b"two"))
    assert isinstance(again, Started)
    assert again.message == first.message, "c1 is not settled any more"
    assert lease.state is None, "the state that c2 was to leave is not the one before c1"
    assert await stored(harness) is None
