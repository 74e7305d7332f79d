"""Dead letters of durable commands: they keep what was stored, until they are replayed, discarded or too old."""

from __future__ import annotations

from typing import Any

import pytest

from command_bus import (
    CommandBus,
    CommandFailed,
    DurableContext,
    GiveUp,
    TransportUnavailable,
    UnknownCommand,
    UnknownDeadLetter,
)
from command_bus.transport.redis.worker import upkeep
from tests.conformance.conftest import Sandbox
from tests.conformance.durable_shop import Fast, Flow, ParkedFlow, Refund, Reserve, Shop
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
