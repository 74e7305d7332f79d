"""Names of what undoes: nothing is lost, or undone twice, if a later run does things in another order."""

from __future__ import annotations

from typing import Any

import pytest

from command_bus import Command, CommandBus, CommandFailed, CommandRejected, DurableContext, EntityId, Reject, StepMismatch
from command_bus.durable.names import UNDO
from command_bus.durable.run import DurableRun
from command_bus.transport.ports.durable import Note
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Flow, Reserve, Shop


class Unhold(Command[None], entity="account"):
    account: EntityId
    hold: str


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


@pytest.fixture
def undone(sandbox: Sandbox) -> list[str]:
    """Return what was undone, in its order."""
    holds: list[str] = []

    @sandbox.registry.handles(Unhold)
    async def unhold(command: Unhold) -> None:
        holds.append(command.hold)

    return holds


def holding(shop: Shop, how: str) -> None:
    """Make a script that fails once behind the first of two articles, and takes them in the other order then."""

    @shop.script
    async def order(context: DurableContext) -> Any:
        is_again = bool(shop.count("failed"))
        for sku in ("b", "a") if is_again else ("a", "b"):
            unhold = Unhold(account="x", hold=sku)
            if how != "undo":
                context.compensate(unhold, key=sku if how == "key" else None)
            await context.call(Reserve(sku=sku), undo=unhold if how == "undo" else None)
            if not is_again:
                shop.log.append("failed")
                raise ValueError("the light went out")
        raise Reject("no")


async def rejected(bus: CommandBus) -> None:
    with pytest.raises(CommandRejected):
        await bus.call(Flow(order="o-1"), timeout=20)


@pytest.mark.parametrize("how", ["undo", "key"])
async def test_another_order_undoes_the_same(sandbox: Sandbox, shop: Shop, undone: list[str], how: str) -> None:
    holding(shop, how)
    async with sandbox.bus() as bus, bus.worker():
        await rejected(bus)
    assert undone == ["b", "a"]  # the reverse of what was stored
    assert await shop.side_records() == []


async def test_another_compensation_under_a_known_name_is_a_mismatch(sandbox: Sandbox, shop: Shop, undone: list[str]) -> None:
    errors: list[StepMismatch] = []

    @shop.script
    async def order(context: DurableContext) -> Any:
        hold = "b" if shop.count("failed") else "a"
        try:
            context.compensate(Unhold(account="x", hold=hold))
        except StepMismatch as error:
            errors.append(error)
            raise Reject("no") from None
        await context.step("pack", shop.effect, "pack")
        shop.log.append("failed")
        raise ValueError("the light went out")

    async with sandbox.bus() as bus, bus.worker():
        await rejected(bus)
    assert "give each a key" in str(errors[0])
    assert undone == ["a"]


async def test_a_key_is_of_one_compensation_in_a_run(sandbox: Sandbox, shop: Shop, undone: list[str]) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        for hold in ("a", "a", "b"):
            context.compensate(Unhold(account="x", hold=hold), key="one")
            await context.step("pack", shop.effect, "pack")
        return 1

    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed, match="something else under this name"):
            await bus.call(Flow(order="o-1"), timeout=20)
    assert undone == []


async def test_what_undoes_a_call_is_stored_behind_what_was_named_before(
    sandbox: Sandbox, shop: Shop, undone: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker may be lost between the two. What is not stored gets its place in the next run: behind what is."""
    store, stored = DurableRun.store, list[str]()

    async def noted(run: DurableRun, *notes: Note, progressed: bool = False) -> list[bytes | None]:
        is_behind = any(note.name.startswith("c:") for note in notes)
        stored.extend(f"begins {note.name}" for note in notes if is_behind and note.name.startswith(UNDO))
        found = await store(run, *notes, progressed=progressed)
        stored.extend(f"stored {note.name}" for note in notes if note.name.startswith(UNDO))
        return found

    monkeypatch.setattr(DurableRun, "store", noted)

    @shop.script
    async def order(context: DurableContext) -> Any:
        context.compensate(Unhold(account="x", hold="first"))
        await context.call(Reserve(sku="a"), undo=Unhold(account="x", hold="second"))
        raise Reject("no")

    async with sandbox.bus() as bus, bus.worker():
        await rejected(bus)
    assert [each.split()[0] for each in stored] == ["stored", "begins", "stored"]
    assert undone == ["second", "first"]
