"""Dead letters of durable commands: they keep what was stored, until they are replayed, discarded or too old."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from command_bus import (
    CommandBus,
    CommandFailed,
    DurableContext,
    GiveUp,
    InvalidCommand,
    TransportUnavailable,
    UnknownCommand,
    UnknownDeadLetter,
)
from command_bus.transport.redis.maintenance import upkeep
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Fast, Flow, ParkedFlow, Refund, Reserve, Shop
from tests.conformance.put_service import until


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


async def letter_of(bus: CommandBus) -> Any:
    return await anext(bus.dead_letters.list())


def failing(shop: Shop, *, undo: bool = False) -> list[bool]:
    """Make a script that fails after a step until its list has an element."""
    mended: list[bool] = []

    @shop.script
    async def order(context: DurableContext) -> Any:
        pieces = await context.call(Reserve(sku="s-1"), undo=Refund(account="a-1") if undo else None)
        await context.step("charge", shop.effect, "charge")
        if not mended:
            raise GiveUp("the printer is on fire")
        return pieces

    return mended


async def test_a_replay_goes_on_from_what_was_stored(sandbox: Sandbox, shop: Shop) -> None:
    mended = failing(shop)
    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed):
            await bus.call(Flow(order="o-1"), timeout=20)
        assert len(await shop.side_records()) == 1
        mended.append(True)
        command_id = await bus.dead_letters.replay((await letter_of(bus)).id)
        assert await bus.result(command_id, Flow, timeout=20) == 1
        await bus.wait_idle(10)
    assert (shop.count("charge"), shop.count(("reserve", "s-1"))) == (1, 1)
    assert await shop.side_records() == []


async def test_what_was_stored_goes_with_a_discarded_letter(sandbox: Sandbox, shop: Shop) -> None:
    failing(shop)
    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed):
            await bus.call(Flow(order="o-1"), timeout=20)
        await bus.dead_letters.discard((await letter_of(bus)).id)
        await until(lambda: _none(shop))


async def test_what_was_stored_goes_with_a_letter_that_is_too_old(
    sandbox: Sandbox, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_LONGEST_PAUSE", 0.2)
    failing(shop)
    async with sandbox.bus(dead_letter_ttl=0.5) as bus, bus.worker():
        with pytest.raises(CommandFailed):
            await bus.call(Flow(order="o-1"), timeout=20)
        await until(lambda: _none(shop))


async def test_a_command_that_uses_the_id_again_gets_nothing_of_it(sandbox: Sandbox, shop: Shop) -> None:
    """The mark of a letter with a side record does not end, so the id is refused until the letter is gone."""
    mended = failing(shop)
    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed):
            await bus.call(Flow(order="o-1"), command_id="o-1", timeout=20)
        client = sandbox.client(0)
        marks = [key for key in await sandbox.keys() if key.endswith("}:k:o-1")]
        assert [await client.ttl(key) for key in marks] == [-1]
        await client.aclose()
        await bus.dead_letters.discard((await letter_of(bus)).id)
        mended.append(True)


async def test_a_parked_command_is_compensated_once_it_is_discarded(sandbox: Sandbox, shop: Shop) -> None:
    failing(shop, undo=True)
    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed):
            await bus.call(ParkedFlow(order="o-1"), timeout=20)
        await bus.dispatch(Fast(order="o-1"))
        assert shop.count(("refund", "a-1")) == 0
        letter = await letter_of(bus)
        assert letter.parked
        await bus.dead_letters.discard(letter.id)
        await bus.wait_idle(20)
        assert await bus.dead_letters.count() == {}
    assert shop.log[-2:] == [("refund", "a-1"), ("fast", "o-1")]
    assert await shop.side_records() == []


async def _parked(bus: CommandBus, **options: Any) -> Any:
    """Return the dead letter of a parked command that has something to undo."""
    with pytest.raises(CommandFailed):
        await bus.call(ParkedFlow(order="o-1"), timeout=20, **options)
    return await letter_of(bus)


async def test_a_discard_that_is_cut_off_and_repeated_compensates(
    sandbox: Sandbox, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(shop, undo=True)
    async with sandbox.bus() as bus, bus.worker():
        letter = await _parked(bus)
        store = type(bus.transport.operator.dead_letters)
        with monkeypatch.context() as patched:
            patched.setattr(store, "settle", _away)
            with pytest.raises(TransportUnavailable):
                await bus.dead_letters.discard(letter.id)
        await bus.dead_letters.discard(letter.id)
        await bus.wait_idle(20)
    assert shop.count(("refund", "a-1")) == 1


async def test_who_discards_what_another_operator_has_replayed_changes_nothing(
    sandbox: Sandbox, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    mended = failing(shop, undo=True)
    async with sandbox.bus() as bus, bus.worker():
        letter = await _parked(bus, command_id="c-1")
        store = type(bus.transport.operator.dead_letters)
        settle = store.settle

        async def later(self: Any, *given: Any, **options: Any) -> bool:
            monkeypatch.undo()
            mended.append(True)
            await bus.dead_letters.replay(letter.id)
            assert await bus.result("c-1", ParkedFlow, timeout=20) == 1
            return await settle(self, *given, **options)

        monkeypatch.setattr(store, "settle", later)
        with pytest.raises(UnknownDeadLetter):
            await bus.dead_letters.discard(letter.id)
    assert shop.count(("refund", "a-1")) == 0
    assert await shop.side_records() == []


async def test_a_signal_reaches_a_parked_command_and_its_record_can_be_read(sandbox: Sandbox, shop: Shop) -> None:
    mended: list[bool] = []

    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.step("charge", shop.effect, "charge")
        if not mended:
            raise GiveUp("the printer is on fire")
        return await context.signal("paid", timeout=20)

    async with sandbox.bus() as bus, bus.worker():
        letter = await _parked(bus, command_id="c-1")
        assert await bus.commands.signal("c-1", "paid", 5)
        assert (await bus.commands.status("c-1")).state == "parked"
        assert {(step.kind, step.name) for step in (await bus.commands.record("c-1")).steps} == {
            ("step", "charge#1"),
            ("signal", "paid#1"),
        }
        mended.append(True)
        await bus.dead_letters.replay(letter.id)
        assert await bus.result("c-1", ParkedFlow, timeout=20) == 5
        with pytest.raises(UnknownCommand):
            await bus.commands.signal("c-1", "paid", 5)
    assert await shop.side_records() == []


async def _away(*_: Any, **__: Any) -> bool:
    raise TransportUnavailable("the server is away")


async def _none(shop: Shop) -> bool:
    return not await shop.side_records()


async def test_n_replays_of_what_failed_to_undo_undo_once(sandbox: Sandbox, shop: Shop) -> None:
    """The letter of the refund is beside that of the order, which calls it again: all at once, or each by hand, in any order."""

    @shop.script
    async def order(context: DurableContext) -> Any:
        context.compensate(Refund(account="a-1", fails=1))
        await context.step("charge", shop.effect, "charge")
        raise GiveUp("no stock")

    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await until(lambda: has_letters(bus, 2))
        own, parked = sorted([each async for each in bus.dead_letters.list()], key=lambda each: each.parked)
        assert (own.name, parked.reason) == ("Refund", "compensation_failed")
        with pytest.raises(
            InvalidCommand, match=f"undoes what {receipt.command_id} on order:o-1 did.*replay the letter of that one"
        ):
            await bus.dead_letters.replay(own.id)
        assert await bus.dead_letters.replay_all() == 1
        with pytest.raises(CommandFailed, match="no stock"):
            await receipt.result(timeout=10)
        assert await bus.dead_letters.replay_all(name="Refund") == 0
        await bus.wait_idle(10)
    assert shop.count(("refund", "a-1")) == 2, "once in vain, and once again"


async def has_letters(bus: CommandBus, count: int) -> bool:
    return sum((await bus.dead_letters.count()).values()) == count


async def test_what_a_caller_calls_again_is_not_replayed_beside_it(sandbox: Sandbox, shop: Shop) -> None:
    """The order was compensated, so its replay calls anew. The letter of a call whose caller has none is replayed."""
    ends = {"o-1": "fails", "o-2": "returns"}

    @shop.script
    async def order(context: DurableContext) -> Any:
        context.compensate(Refund(account="a-1"))
        end = "return" if shop.count("mended") else "fail"
        with suppress(CommandFailed):
            return await context.call(Reserve(sku=f"s-{context.entity_id}", end=end))
        if ends[str(context.entity_id)] == "fails":
            raise GiveUp("no stock")
        return None

    async with sandbox.bus() as bus, bus.worker():
        for name in ends:
            await bus.dispatch(Flow(order=name))
        await until(lambda: has_letters(bus, 3))
        await bus.wait_idle(10)
        shop.log[:] = ["mended"]
        assert await bus.dead_letters.replay_all() == 2
        await bus.wait_idle(10)
    assert sorted(shop.log[1:]) == [("reserve", "s-o-1"), ("reserve", "s-o-2")]


@pytest.mark.parametrize("way", ["all", "by hand", "by name"])
async def test_what_was_called_again_is_not_replayed_later(sandbox: Sandbox, shop: Shop, way: str) -> None:
    """The order was compensated, so its replay calls again: also what its durable calls had called. What others called keeps its letter."""

    @shop.script
    async def order(context: DurableContext) -> Any:
        context.compensate(Refund(account="a-1"))
        with suppress(CommandFailed):
            await context.call(Flow(order=f"{context.entity_id}-inner", script="inner"))
        if context.entity_id == "o-1" and not shop.count("mended"):
            raise GiveUp("no stock")

    async def inner(context: DurableContext) -> Any:
        context.compensate(Reserve(sku="s-1"))
        await context.call(Refund(account=f"a-{context.entity_id}", fails=99))

    shop.scripts["inner"] = inner
    async with sandbox.bus() as bus, bus.worker():
        for name in ("o-1", "o-2"):
            await bus.dispatch(Flow(order=name))
        await until(lambda: has_letters(bus, 5))
        await bus.wait_idle(10)
        shop.log[:], shop.refusals = ["mended"], 99
        (own,) = [each async for each in bus.dead_letters.list() if each.entity_id == "o-1"]
        if way == "by hand":
            (called,) = [each async for each in bus.dead_letters.list() if each.entity_id == "o-1-inner"]
            with pytest.raises(InvalidCommand, match=f"replay the letter {own.id} of that one"):
                await bus.dead_letters.replay(called.id)
            await bus.dead_letters.replay(own.id)
        else:
            await bus.dead_letters.replay_all(entity_id=own.entity_id if way == "by name" else None)
        await bus.wait_idle(10)
        for _ in range(3):
            await bus.dead_letters.replay_all()
            await bus.wait_idle(10)
        assert not await bus.dead_letters.count()
    assert (shop.count(("refund", "a-o-1-inner")), shop.count(("refund", "a-o-2-inner"))) == (1, 1)


async def test_a_call_that_stays_failed_keeps_its_letter(sandbox: Sandbox, shop: Shop) -> None:
    """Its caller had nothing to undo, and goes on from its steps: it does not call again."""

    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.call(Refund(account="a-1", fails=99))

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"))
        await until(lambda: has_letters(bus, 2))
        await bus.wait_idle(10)
        shop.refusals = 99
        assert await bus.dead_letters.replay_all() == 1, "the order's, which goes on without it"
        await bus.wait_idle(10)
        (called,) = [each async for each in bus.dead_letters.list() if each.name == "Refund"]
        await bus.dead_letters.replay(called.id)
        await bus.wait_idle(10)
    assert shop.count(("refund", "a-1")) == 2
