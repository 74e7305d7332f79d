"""The lines of commands of several entities: order beside what is delayed, and their repair. Over every server."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from command_bus import Command, CommandBus, CommandContext, EntityId, RetryPolicy
from command_bus.transport.redis.ready_stream import repair_page
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until

RETRY = RetryPolicy(attempts=3, delay=0.01)


class Give(Command[None], entity="account", retry=RETRY):
    account: EntityId
    note: str


class Move(Command[None], entity="account", retry=RETRY):
    source: EntityId
    target: EntityId
    note: str


class Ledger:
    """A record of what ran by entity; two at once in one is an error."""

    def __init__(self) -> None:
        self.ended: dict[str, list[str]] = defaultdict(list)
        self.running: set[str] = set()
        self.beside: list[str] = []
        self.gate = asyncio.Event()

    async def run(self, note: str, *entities: str) -> None:
        self.beside += self.running & {*entities}
        self.running.update(entities)
        try:
            if note.startswith("gate"):
                await self.gate.wait()
            await asyncio.sleep(0.02)
        finally:
            self.running.difference_update(entities)
        for entity in dict.fromkeys(entities):
            self.ended[entity].append(note)


@pytest.fixture
def ledger(sandbox: Sandbox) -> Ledger:
    ledger = Ledger()

    @sandbox.registry.handles(Give)
    async def give(command: Give, context: CommandContext) -> None:
        await ledger.run(command.note, str(command.account))

    @sandbox.registry.handles(Move)
    async def move(command: Move, context: CommandContext) -> None:
        await ledger.run(command.note, str(command.source), str(command.target))

    return ledger


async def _is_empty(bus: CommandBus) -> bool:
    stats = await bus.stats()
    return stats.depth == 0 and stats.entities == 0


async def _is_counted(bus: CommandBus) -> bool:
    found = await bus.entities.recount(correct=False)
    return found.stored == found.counted and found.delayed == 0


@pytest.mark.parametrize("late", ["a-1", "a-2"])
async def test_behind_what_is_due_in_one_line_it_is_passed_in_no_other(sandbox: Sandbox, ledger: Ledger, late: str) -> None:
    """While no worker lets delayed commands in, who comes later stands behind them; and what comes after it stands behind it, in each line."""
    async with sandbox.bus() as bus:
        await bus.dispatch(Give(account=late, note="1"), delay=0.05)
        await asyncio.sleep(0.15)
        await bus.dispatch(Move(source="a-1", target="a-2", note="2"))
        await bus.dispatch(Give(account="a-1", note="3"))
        await bus.dispatch(Give(account="a-2", note="4"))
        await bus.dispatch(Move(source="a-2", target="a-3", note="5"))
        assert await _is_counted(bus)
        async with bus.worker():
            await until(lambda: _is_empty(bus))
    first = {account: ["1"] if account == late else [] for account in ("a-1", "a-2")}
    assert ledger.ended == {"a-1": [*first["a-1"], "2", "3"], "a-2": [*first["a-2"], "2", "4", "5"], "a-3": ["5"]}
    assert not ledger.beside


async def test_a_cancelled_one_that_is_delayed_leaves_the_counts_of_all_lines(sandbox: Sandbox, ledger: Ledger) -> None:
    async with sandbox.bus() as bus:
        await bus.dispatch(Move(source="a-1", target="a-2", note="never"), delay=60, command_id="c-1")
        assert await bus.commands.cancel("c-1")
        assert await _is_counted(bus)
        async with bus.worker():
            await bus.dispatch(Give(account="a-2", note="1"))
            await until(lambda: _is_empty(bus))
    assert ledger.ended == {"a-2": ["1"]}
    assert not [key for key in await sandbox.keys() if key.endswith(":later")]


async def test_a_pause_of_a_line_that_it_heads_already_holds_it(sandbox: Sandbox, ledger: Ledger) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch_batch(
            [Give(account="a-1", note="gate"), Move(source="a-1", target="a-2", note="2"), Give(account="a-2", note="3")]
        )
        await until(lambda: _is(ledger.running == {"a-1"}))
        await asyncio.sleep(0.1)
        await bus.entity("account", "a-2").pause("ticket 4711")
        ledger.gate.set()
        await until(lambda: _is(ledger.ended["a-1"] == ["gate"]))
        await asyncio.sleep(0.2)
        assert ledger.ended["a-1"] == ["gate"]
        await bus.entity("account", "a-2").resume()
        await until(lambda: _is_empty(bus), 3)
    assert ledger.ended == {"a-1": ["gate", "2"], "a-2": ["2", "3"]}


async def test_a_delayed_one_that_is_due_waits_for_all_its_lines(sandbox: Sandbox, ledger: Ledger) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Give(account="a-2", note="gate"))
        await until(lambda: _is(ledger.running == {"a-2"}))
        await bus.dispatch(Move(source="a-1", target="a-2", note="2"), delay=0.05)
        await asyncio.sleep(0.4)
        await bus.dispatch(Give(account="a-2", note="3"))
        assert ledger.ended == {}
        ledger.gate.set()
        await until(lambda: _is_empty(bus), 3)
    assert ledger.ended == {"a-1": ["2"], "a-2": ["gate", "2", "3"]}


async def _lines(sandbox: Sandbox, line: str) -> tuple[str, list[str]]:
    """Return the key of a line, and the ids of its entries."""
    key = f"{{{sandbox.namespace}:0}}:m:account:{line}"
    client = sandbox.client()
    ids = [entry.decode() for entry, _ in await client.xrange(key)]
    await client.aclose()
    return key, ids


async def _look_after(bus: CommandBus) -> None:
    """Do what upkeep does now and then."""
    keys = bus.session.redis.keys.shards[0]
    await repair_page(bus.session.redis.connections.at(keys.prefix), keys, 0)


async def _repaired(bus: CommandBus) -> bool:
    await _look_after(bus)
    return (await bus.stats()).entities == 0


@pytest.mark.parametrize("while_it_runs", [False, True])
@pytest.mark.parametrize(
    "lost", ["place", "home", "place line", "home line", "place record", "home record", "both records", "all records", "ready"]
)
async def test_what_somebody_deleted_holds_nothing_up(sandbox: Sandbox, ledger: Ledger, lost: str, while_it_runs: bool) -> None:
    async with sandbox.bus(lease=1.0) as bus:
        if while_it_runs:
            first = [Move(source="a-1", target="a-2", note="gate")]
        else:
            first = [Move(source="a-1", target="a-2", note="0")]
            await bus.entity("account", "a-1").pause()
        commands = [
            *first,
            Give(account="a-1", note="1"),
            Give(account="a-2", note="2"),
            Move(source="a-2", target="a-1", note="3"),
        ]
        await bus.dispatch_batch(commands)
        async with bus.worker():
            if while_it_runs:
                await until(lambda: _is(ledger.running == {"a-1", "a-2"}))
            else:
                await asyncio.sleep(0.1)
            await _lose(sandbox, lost)
            if while_it_runs:
                await _look_after(bus)
                await asyncio.sleep(0.1)
                assert not ledger.beside, "while it runs"
                ledger.gate.set()
            else:
                await bus.entity("account", "a-1").resume()
            if "record" in lost:  # who comes next finds what no record names
                await bus.dispatch_batch([Give(account="a-1", note="4"), Give(account="a-2", note="5")])
            await until(lambda: _repaired(bus))
            await bus.entities.recount()
            assert await _is_empty(bus)
    if not (while_it_runs and lost in ("home record", "both records", "all records")):
        assert not ledger.beside  # the record of a line that runs is what keeps others from it
    assert {note for notes in ledger.ended.values() for note in notes} >= _that_stay(lost)


async def _is(value: bool) -> bool:
    return value


def _that_stay(lost: str) -> set[str]:
    """Return the commands of which nothing was deleted, or a place."""
    return {"home line": {"2"}, "place line": {"1"}}.get(lost, {"1", "2", "3"})


async def _lose(sandbox: Sandbox, lost: str) -> None:
    client, active = sandbox.client(), f"{{{sandbox.namespace}:0}}:active"
    place, places = await _lines(sandbox, "a-2")
    home, homes = await _lines(sandbox, "a-1")
    if lost == "place":
        await client.xdel(place, places[0])
    elif lost == "home":
        await client.xdel(home, homes[0])
    elif lost == "ready":
        await client.delete(f"{{{sandbox.namespace}:0}}:ready")
    elif lost.endswith("line"):
        await client.delete(place if lost.startswith("place") else home)
    else:
        names = {"place record": ["a-2"], "home record": ["a-1"], "both records": ["a-1", "a-2"]}.get(lost)
        await (client.hdel(active, *(f"account:{name}" for name in names)) if names else client.delete(active))
    await client.aclose()
