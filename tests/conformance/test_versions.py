"""Versions of commands: old payloads run in their new shape, new ones wait for a worker that knows it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus import (
    Command,
    CommandBus,
    EntityId,
    EntityPolicy,
    Envelope,
    HandlerRegistry,
    InvalidCommand,
    Limit,
    NoHandler,
    Rate,
    RegistrationError,
    every,
    upcasts,
)
from command_bus.serialization.envelope import unpack_envelope
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until
from tests.conformance.schedules.schedule_parts import MINUTE, Clock, fire


class Deposit(Command[int], entity="account"):
    """As it was first."""

    account: EntityId
    euros: int


class Deposit2(Command[int], entity="account", name="Deposit", version=2):
    account: EntityId
    cents: int


class Deposit3(
    Command[int],
    entity="account",
    name="Deposit",
    version=3,
    priority="high",
    limits=(Limit("desk", key="currency", cost="cents"),),
):
    account: EntityId
    cents: int
    currency: str


def cents_for_euros(fields: dict[str, Any]) -> dict[str, Any]:
    """Make version 2 of version 1; a deposit of nothing cannot be read."""
    return {"account": fields["account"], "cents": 100 * fields["euros"] // (1 if fields["euros"] else 0)}


upcasts(Deposit2, since=1)(cents_for_euros)
upcasts(Deposit3, since=1)(cents_for_euros)
upcasts(Deposit3, since=2)(lambda fields: {**fields, "currency": "EUR"})


class Desk:
    """Handles deposits of one version, and notes what it saw."""

    def __init__(self, kind: type[Command[int]]) -> None:
        self.registry = HandlerRegistry()
        self.seen: list[dict[str, Any]] = []

        async def deposit(command: Any) -> int:
            self.seen.append(command.model_dump(exclude={"account"}))
            return len(self.seen)

        deposit.__annotations__["command"] = kind
        self.registry.handles(kind)(deposit)


async def the_letter(bus: CommandBus) -> Any:
    await until(bus.dead_letters.count)
    [letter] = [each async for each in bus.dead_letters.list()]
    return letter


@pytest.mark.promise("Versions of a command")
async def test_what_waits_from_earlier_versions_runs_in_order_in_the_new_shape(sandbox: Sandbox) -> None:
    desk = Desk(Deposit3)
    async with sandbox.bus() as old, sandbox.bus() as newer, sandbox.bus() as bus:
        await old.dispatch(Deposit(account="a", euros=1))
        await newer.dispatch_batch([Deposit2(account="a", cents=200), Envelope(Deposit2(account="a", cents=300), command_id="c")])
        await bus.dispatch_batch([Deposit3(account="a", cents=400, currency="USD")] * 2)
        await old.dispatch_raw("account", "a", "Deposit", {"account": "a", "euros": 6})
        await bus.dispatch_raw("account", "a", "Deposit", {"account": "a", "cents": 700}, version=2)
        await bus.dispatch(Deposit3(account="a", cents=800, currency="USD"))  # its type is agreed on by now: the short way
        await bus.dispatch_batch([Deposit3(account="a", cents=900, currency="USD")])
        await old.dispatch(Deposit(account="a", euros=10), delay=0.05)
        async with bus.worker(registry=desk.registry):
            await bus.wait_idle(10)
            seen = [(each["cents"], each["currency"]) for each in desk.seen]
            assert seen[:9] == [
                (100, "EUR"), (200, "EUR"), (300, "EUR"), (400, "USD"), (400, "USD"), (600, "EUR"), (700, "EUR"),
                (800, "USD"), (900, "USD"),
            ]  # fmt: skip
            await until(lambda: _is(len(desk.seen) == 10))
            assert await old.call(Deposit(account="b", euros=9), timeout=10) == 11
            assert await bus.call_raw("account", "b", "Deposit", {"account": "b", "cents": 1}, version=2, timeout=10) == 12


async def _is(value: bool) -> bool:
    return value


@pytest.mark.promise("Versions of a command")
async def test_an_older_worker_leaves_a_newer_command_to_a_newer_worker(sandbox: Sandbox) -> None:
    old, new = Desk(Deposit), Desk(Deposit2)
    async with sandbox.bus() as bus, bus.worker(registry=old.registry):
        await bus.dispatch(Deposit2(account="a", cents=5))
        waiting = asyncio.create_task(bus.call(Deposit2(account="a", cents=6), timeout=20))
        await asyncio.sleep(0.3)
        assert not old.seen
        async with bus.worker(registry=new.registry):
            assert await waiting == 2
    assert (old.seen, new.seen) == ([], [{"cents": 5}, {"cents": 6}])


@pytest.mark.promise("Versions of a command")
async def test_113_after_the_grace_a_newer_command_is_a_letter_that_a_newer_worker_can_run(sandbox: Sandbox) -> None:
    old, new = Desk(Deposit), Desk(Deposit2)
    async with sandbox.bus(unknown_grace=0.2) as bus:
        async with bus.worker(registry=old.registry):
            with pytest.raises(NoHandler, match="no worker handles version 2 of 'Deposit': this one has version 1"):
                await bus.call(Deposit2(account="a", cents=5), timeout=10)
            letter = await the_letter(bus)
            assert (letter.reason, letter.payload, old.seen) == ("no_handler", {"account": "a", "cents": 5}, [])
        async with bus.worker(registry=new.registry):
            await bus.dead_letters.replay(letter.id)
            await bus.wait_idle(10)
    assert new.seen == [{"cents": 5}]


@pytest.mark.parametrize("on_poison", ["skip", "park"])
async def test_112_an_upcaster_that_raises_makes_one_dead_letter(sandbox: Sandbox, on_poison: Any) -> None:
    desk = Desk(Deposit2)
    async with sandbox.bus(entities={"account": EntityPolicy(on_poison=on_poison)}) as bus, bus.worker(registry=desk.registry):
        await bus.dispatch(Deposit(account="a", euros=0), command_id="none")
        await bus.dispatch(Deposit(account="a", euros=1))
        await bus.dispatch(Deposit(account="b", euros=2))
        letter = await the_letter(bus)
        assert (letter.reason, letter.parked) == ("invalid", on_poison == "park")
        assert letter.error_message == "Deposit: the upcaster from version 1 raised ZeroDivisionError"
        with pytest.raises(InvalidCommand, match="euros"):
            await bus.dead_letters.replay(letter.id, payload={"account": "a", "euros": 1})
        await bus.dead_letters.replay(letter.id, payload={"account": "a", "cents": 7})
        await bus.wait_idle(10)
    assert sorted(each["cents"] for each in desk.seen) == [7, 100, 200], "an edited payload is of the announced version"


async def test_112_an_upcaster_moves_no_command_to_another_entity(sandbox: Sandbox) -> None:
    class Moved(Command[int], entity="account", name="Deposit", version=2):
        account: EntityId
        euros: int

    upcasts(Moved, since=1)(lambda fields: {**fields, "account": "b"})
    desk = Desk(Moved)
    async with sandbox.bus() as bus, bus.worker(registry=desk.registry):
        await bus.dispatch(Deposit(account="a", euros=1))
        letter = await the_letter(bus)
        assert (letter.reason, letter.entity_id, desk.seen) == ("invalid", "a", [])
        assert "sequenced for entity account:a" in letter.error_message


async def test_a_letter_of_an_older_version_is_replayed_and_edited_by_its_class(sandbox: Sandbox) -> None:
    desk = Desk(Deposit2)
    async with sandbox.bus() as bus, bus.worker(registry=desk.registry):
        await bus.dispatch(Deposit(account="a", euros=0))
        letter = await the_letter(bus)
        await bus.dead_letters.replay(letter.id)  # it fails again
        await until(lambda: _other(bus, letter.id))
        again = await the_letter(bus)
        await bus.dead_letters.replay(again.id, payload=Deposit2(account="a", cents=3))
        await bus.wait_idle(10)
    assert desk.seen == [{"cents": 3}]


async def _other(bus: CommandBus, letter_id: str) -> bool:
    return any([each.id != letter_id async for each in bus.dead_letters.list()])


async def test_a_schedule_that_was_put_before_fires_in_the_new_shape(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, desk = Clock(monkeypatch), Desk(Deposit3)
    async with sandbox.bus() as old, sandbox.bus() as bus:
        clock.rule(old)
        clock.rule(bus)
        await old.schedules.put("first", Deposit(account="a", euros=1), every(60))
        await bus.schedules.put("second", Deposit2(account="b", cents=2), every(60))
        await bus.schedules.put_raw("raw", "account", "c", "Deposit", {"account": "c", "cents": 3}, every(60), version=2)
        clock.ms += MINUTE
        for name in ("first", "second", "raw"):
            await fire(bus, name)
        async with bus.worker(registry=desk.registry):
            await bus.wait_idle(10)
    assert sorted(each["cents"] for each in desk.seen) == [2, 3, 100]


async def test_111_a_worker_whose_upcasters_have_a_gap_does_not_start(sandbox: Sandbox) -> None:
    class Gap(Command[int], entity="account", version=3):
        account: EntityId

    upcasts(Gap, since=2)(dict)
    async with sandbox.bus() as bus:
        with pytest.raises(RegistrationError, match="Gap has version 3, and no upcaster from version 1"):
            async with bus.worker(registry=Desk(Gap).registry):
                pass


async def test_limits_are_asked_by_the_new_fields(sandbox: Sandbox) -> None:
    desk = Desk(Deposit3)
    async with sandbox.bus() as bus:
        await bus.limits.put("desk", Rate(1, per=1000.0, burst=150))
        async with bus.worker(registry=desk.registry):
            await bus.call(Deposit(account="a", euros=1), timeout=10)
            [bucket] = [each for each in await bus.limits.list("desk") if each.key]
            assert bucket.key == "EUR"
            assert 49 <= (bucket.tokens or 0) <= 51, "a euro took a hundred"


async def test_the_version_is_announced(sandbox: Sandbox) -> None:
    desk = Desk(Deposit2)
    async with sandbox.bus() as bus, bus.worker(registry=desk.registry):
        info = await bus.fleet.command("Deposit")
        assert info is not None
        assert info.version == 2
        await bus.dispatch(Deposit(account="x", euros=0))
        assert unpack_envelope((await the_letter(bus)).raw).options is None, "nothing travels for the first version"
