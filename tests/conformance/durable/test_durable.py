"""Durable handlers: steps once, calls once, sleeps and signals, in the line of their entity, without a worker while they wait."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from command_bus import (
    CommandFailed,
    CommandRejected,
    DurableContext,
    InvalidCommand,
    RetryPolicy,
    UnknownCommand,
)
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Charge, Fast, Flow, Reserve, Shop
from tests.conformance.put_service import until


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


# Steps.


@pytest.mark.promise("A stored step is not repeated")
@pytest.mark.parametrize("shards", [1, 4])
async def test_what_is_stored_is_not_done_again(sandbox: Sandbox, shop: Shop, shards: int) -> None:
    """Each attempt gets one step and one call further."""

    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append(f"attempt {context.attempt}")
        results = []
        for number in range(4):
            results.append(await context.step("pack", shop.effect, f"pack {number}"))
            results.append(await context.call(Reserve(sku=f"s-{number}", pieces=number)))
            if shop.count(f"fail {number}") == 0:
                shop.log.append(f"fail {number}")
                raise ValueError("the light went out")
        return results

    async with sandbox.bus(shards=shards) as bus, bus.worker():
        results = await bus.call(Flow(order="o-1"), timeout=20)
        await bus.wait_idle(10)
        stats = await bus.stats()
    assert results == [each for number in range(4) for each in (f"PACK {number}", number)]
    for number in range(4):
        assert shop.count(f"pack {number}") == 1
        assert shop.count(("reserve", f"s-{number}")) == 1
    assert {f"attempt {number}" for number in (1, 2)} >= {each for each in shop.log if str(each).startswith("attempt")}, (
        "each attempt got on, so the next is the second"
    )
    assert (stats.accepted, stats.settled, stats.depth) == (5, 5, 0)
    assert await shop.side_records() == []


async def test_its_receipt_is_asked_for_the_result(sandbox: Sandbox, shop: Shop) -> None:
    """The result of a durable command is kept, without `keep_result`."""

    @shop.script
    async def order(context: DurableContext) -> Any:
        return await context.step("charge", shop.effect, "charge")

    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"))
        assert await receipt.result(timeout=20) == "CHARGE"


async def test_attempts_without_progress_end_it(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.step("pack", shop.effect, "pack")
        shop.log.append(f"attempt {context.attempt}")
        raise ValueError("no paper")

    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed, match="no paper"):
            await bus.call(Flow(order="o-1"), timeout=20)
    assert [each for each in shop.log if each != "pack"] == ["attempt 1", "attempt 2", "attempt 3"]
    assert shop.count("pack") == 1


@dataclass
class Receipt:
    number: int
    by: str


async def test_a_stored_result_is_of_the_type_that_the_step_returns(sandbox: Sandbox, shop: Shop) -> None:
    async def sign(number: int) -> Receipt:
        return Receipt(number, "ann")

    @shop.script
    async def order(context: DurableContext) -> Any:
        first = await context.step("sign", sign, 7)
        raw: Any = await context.step("raw", lambda: Receipt(8, "bob"), returns=Receipt)
        shop.log.append((first, raw))
        if len(shop.log) == 1:
            raise ValueError("again")
        return first.number + raw.number

    async with sandbox.bus() as bus, bus.worker():
        assert await bus.call(Flow(order="o-1"), timeout=20) == 15
    assert shop.log == 2 * [(Receipt(7, "ann"), Receipt(8, "bob"))]


@pytest.mark.promise("A stored step is not repeated")
async def test_a_step_has_one_idempotency_key_in_all_attempts(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        async def pay(card: str) -> None:
            shop.log.append((card, context.step_key))
            if shop.count((card, context.step_key)) == 1:
                raise ConnectionError("no answer")

        for card in ("a", "b"):
            await context.step("pay", pay, card)
        assert context.step_key is None
        return None

    async with sandbox.bus() as bus, bus.worker():
        for order_id in ("o-1", "o-2"):
            await bus.call(Flow(order=order_id), timeout=20)
    keys = [key for _, key in shop.log]
    assert len(shop.log) == 8
    assert len(set(keys)) == 4
    assert all(shop.count(each) == 2 for each in shop.log)


async def test_a_step_that_is_retried_in_place_uses_no_attempt_up(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")

        def pay() -> int:
            shop.log.append("pay")
            if shop.count("pay") < 5:
                raise ConnectionError("no answer")
            return 5

        return await context.step("pay", pay, retry=RetryPolicy(attempts=6, delay=0.0))

    async with sandbox.bus() as bus, bus.worker():
        assert await bus.call(Flow(order="o-1"), timeout=20) == 5
    assert (shop.count("run"), shop.count("pay")) == (1, 5)


@pytest.mark.promise("A stored step is not repeated")
@pytest.mark.parametrize("changed", ["step", "call"])
async def test_another_step_under_a_known_name_gets_no_foreign_result(sandbox: Sandbox, shop: Shop, changed: str) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        number = shop.count("run") if changed == "step" else 0
        await context.step("pay", shop.effect, f"card {number}")
        pieces = shop.count("run") if changed == "call" else 1
        await context.call(Reserve(sku="s-1", pieces=pieces))
        raise ValueError("again")

    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed, match="did something else under this name") as raised:
            await bus.call(Flow(order="o-1"), timeout=20)
    assert "StepMismatch" in str(raised.value)
    assert (shop.count("card 0") + shop.count("card 1"), shop.count(("reserve", "s-1"))) == (1, 1)


async def test_keys_tell_steps_apart_whatever_their_order(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        cards = ["a", "b", "c"] if shop.count("run") == 1 else ["c", "a", "b"]
        found = [await context.step("pay", shop.effect, card, key=card) for card in cards]
        if shop.count("run") == 1:
            raise ValueError("again")
        return found

    async with sandbox.bus() as bus, bus.worker():
        assert await bus.call(Flow(order="o-1"), timeout=20) == ["C", "A", "B"]
    assert [shop.count(card) for card in "abc"] == [1, 1, 1]


@pytest.mark.parametrize(
    ("what", "text"),
    [("arguments", "cannot be told from others"), ("result", "cannot be stored"), ("name", "printable"), ("key", "printable")],
)
async def test_a_bad_step_ends_the_command_without_a_retry(sandbox: Sandbox, shop: Shop, what: str, text: str) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        if what == "arguments":
            await context.step("pay", repr, object())
        elif what == "result":
            await context.step("pay", object)
        elif what == "name":
            await context.step("two words", shop.effect, "x")
        else:
            await context.step("pay", shop.effect, "x", key="")
        return None

    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed, match=text):
            await bus.call(Flow(order="o-1"), timeout=20)
    assert shop.log.count("run") == 1


async def test_arguments_that_are_no_data_need_a_key(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        done = await context.step("pay", lambda card: 5, object(), key="card")
        if shop.count("run") == 1:
            raise ValueError("again")
        return done

    async with sandbox.bus() as bus, bus.worker():
        assert await bus.call(Flow(order="o-1"), timeout=20) == 5


async def test_a_stored_result_that_does_not_fit_any_more_names_the_step(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        kind: Any = str if shop.count("run") == 1 else int
        await context.step("pay", lambda: "five", returns=kind)
        raise ValueError("a new release")

    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed, match=r"'pay#1'.*does not fit any more"):
            await bus.call(Flow(order="o-1"), timeout=20)
    assert shop.count("run") == 2


# Calls.


@pytest.mark.parametrize("shards", [1, 4])
async def test_outcomes_of_calls_are_raised_as_from_the_bus(sandbox: Sandbox, shop: Shop, shards: int) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        try:
            await context.call(Reserve(sku="s-1", end="reject"))
        except CommandRejected as refusal:
            shop.log.append((refusal.code, refusal.message))
        try:
            await context.call(Reserve(sku="s-2", end="fail", seconds=0.2))
        except CommandFailed as failure:
            shop.log.append(failure.message)
        if shop.count("run") < 3:
            raise ValueError("again")
        return None

    async with sandbox.bus(shards=shards) as bus, bus.worker():
        await bus.call(Flow(order="o-1"), timeout=20)
    assert shop.count(("sold_out", "sold out")) >= 2
    assert len({each for each in shop.log if "no shelf" in str(each)}) == 1
    assert (shop.count(("reserve", "s-1")), shop.count(("reserve", "s-2"))) == (1, 1)


@pytest.mark.promise("A durable wait holds no worker")
@pytest.mark.parametrize("shards", [1, 4])
async def test_a_call_that_takes_long_holds_no_slot(sandbox: Sandbox, shop: Shop, shards: int) -> None:
    """One slot serves the caller, what it calls, and others meanwhile; the entity's line waits."""
    shop.gates["s-1"] = asyncio.Event()

    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        pieces = await context.call(Reserve(sku="s-1", pieces=3))
        shop.log.append("end")
        return pieces

    async with sandbox.bus(shards=shards, concurrency=2) as bus, bus.worker():
        flows = [await bus.dispatch(Flow(order="o-1"), keep_result=True)]
        await shop.suspended()
        behind = await bus.dispatch(Fast(order="o-1"))
        assert await bus.call(Fast(order="o-2"), timeout=10) == 1
        assert ("fast", "o-1") not in shop.log
        shop.gates["s-1"].set()
        assert await flows[0].result(timeout=10) == 3
        await bus.wait_idle(10)
        del behind
    assert shop.log.index("end") < shop.log.index(("fast", "o-1"))
    assert (shop.count("run"), shop.count(("reserve", "s-1"))) == (2, 1)


async def test_a_call_of_a_parked_command_waits_for_its_replay(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        return await context.call(Charge(account="a-1", fails=True))

    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        (letter,) = await until(lambda: letters(bus))
        await shop.suspended()
        shop.refusals = 1
        await bus.dead_letters.replay(letter.id)
        assert await receipt.result(timeout=10) == 5
        await bus.wait_idle(10)


async def letters(bus: Any) -> list[Any]:
    return [letter async for letter in bus.dead_letters.list()]


async def test_a_call_that_takes_too_long_stays_timed_out(sandbox: Sandbox, shop: Shop) -> None:
    shop.gates["s-1"] = asyncio.Event()

    @shop.script
    async def order(context: DurableContext) -> Any:
        try:
            return await context.call(Reserve(sku="s-1", pieces=3), timeout=0.3)
        except TimeoutError:
            shop.log.append("late")
            shop.gates["s-1"].set()
        await context.call(Reserve(sku="s-1", pieces=4))  # behind it in line: so the first has ended
        if shop.count("late") < 3:
            raise ValueError("again")
        return "late"

    async with sandbox.bus() as bus, bus.worker():
        assert await bus.call(Flow(order="o-1"), timeout=20) == "late"


# Sleeps and signals.


@pytest.mark.promise("A durable wait holds no worker")
async def test_a_sleep_is_over_at_the_time_that_was_fixed_first(sandbox: Sandbox, shop: Shop) -> None:
    loop = asyncio.get_running_loop()

    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        await context.sleep(0.5)
        shop.log.append("awake")
        await context.sleep(0)
        if shop.count("awake") == 1:
            raise ValueError("again")
        return None

    async with sandbox.bus() as bus, bus.worker():
        began = loop.time()
        await bus.call(Flow(order="o-1"), timeout=20)
        took = loop.time() - began
    assert 0.45 < took < 5
    assert shop.log == ["run", "run", "awake", "run", "awake"]


@pytest.mark.promise("A durable wait holds no worker")
@pytest.mark.parametrize("when", ["before it starts", "before it waits", "while it waits"])
async def test_a_signal_is_kept_until_it_is_asked_for(sandbox: Sandbox, shop: Shop, when: str) -> None:
    go = asyncio.Event()

    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        await go.wait()
        return await context.signal("packed", returns=int)

    async with sandbox.bus() as bus:
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        if when == "before it starts":
            assert await bus.commands.signal(receipt.command_id, "packed", 7)
        async with bus.worker():
            if when == "before it waits":
                await until(lambda: shop.count("run"))
                assert await bus.commands.signal(receipt.command_id, "packed", 7)
            go.set()
            if when == "while it waits":
                await shop.suspended()
                assert await bus.commands.signal(receipt.command_id, "packed", 7)
            assert await receipt.result(timeout=10) == 7
            with pytest.raises(UnknownCommand):
                await bus.commands.signal(receipt.command_id, "packed", 8)
    assert shop.count("run") == (2 if when == "while it waits" else 1)
    assert await shop.side_records() == []


async def test_signals_come_in_their_order_and_each_id_once(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        return [await context.signal("item") for _ in range(3)]

    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        signal = bus.commands.signal
        assert await signal(receipt.command_id, "item", 1, signal_id="first")
        assert not await signal(receipt.command_id, "item", 9, signal_id="first")
        await shop.suspended()
        assert await signal(receipt.command_id, "item", 2, signal_id="second")
        await shop.suspended()
        assert await signal(receipt.command_id, "other", 5, signal_id="second")
        assert not await signal(receipt.command_id, "other", 6, signal_id="second")
        assert await signal(receipt.command_id, "item", 3)
        assert await receipt.result(timeout=10) == [1, 2, 3]


async def test_a_signal_that_does_not_come_stays_missed(sandbox: Sandbox, shop: Shop) -> None:
    """What comes later is for the next wait."""

    @shop.script
    async def order(context: DurableContext) -> Any:
        try:
            await context.signal("packed", timeout=0.3)
        except TimeoutError:
            shop.log.append("missed")
        if shop.count("missed") < 3:
            await asyncio.sleep(0)
            raise ValueError("again")
        return await context.signal("packed")

    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await until(lambda: shop.count("missed"))
        await bus.commands.signal(receipt.command_id, "packed", 7)
        assert await receipt.result(timeout=10) == 7
    assert shop.count("missed") == 3


async def test_128_a_signal_to_what_is_not_there_is_refused(sandbox: Sandbox, shop: Shop) -> None:
    async with sandbox.bus() as bus:
        with pytest.raises(UnknownCommand):
            await bus.commands.signal("nobody", "packed")
    assert await shop.side_records() == []


@pytest.mark.parametrize("where", ["waits", "runs", "delayed"])
async def test_134_a_signal_to_what_is_not_durable_is_refused(sandbox: Sandbox, shop: Shop, where: str) -> None:
    shop.gates["s-1"] = asyncio.Event()
    async with sandbox.bus() as bus:
        await bus.dispatch(Reserve(sku="s-1"), command_id="r-1", delay=60 if where == "delayed" else 0.0)
        if where == "runs":
            await bus.worker().start()
            await until(lambda: shop.count(("reserve", "s-1")))
        with pytest.raises(InvalidCommand, match="Reserve r-1 is not durable"):
            await bus.commands.signal("r-1", "packed")
        assert await shop.side_records() == []
        shop.gates["s-1"].set()


@dataclass
class Approval:
    by: str


async def test_a_signal_has_a_type(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        approval = await context.signal("approved", returns=Approval)
        shop.log.append(approval)
        return approval.by

    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await bus.commands.signal(receipt.command_id, "approved", Approval("ann"))
        assert await receipt.result(timeout=10) == "ann"
    assert shop.log == [Approval("ann")]
