"""The ways in which a command of several entities leaves its lines: each frees all of them at once. Over every server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from command_bus import CommandBus, CommandBusError, Unique
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until
from tests.conformance.several.commands import Deposit, Log, Pay, Skipped, Transfer, is_empty

ID = "c-1"
LUA = Path(__file__).parents[3] / "command_bus/transport/redis/lua"


async def cancelled(bus: CommandBus) -> object:
    return await bus.commands.cancel(ID)


async def purged_at_home(bus: CommandBus) -> object:
    return await bus.entity("account", "a-1").purge()


async def purged_elsewhere(bus: CommandBus) -> object:
    return await bus.entity("account", "a-2").purge()


async def purged_by_type(bus: CommandBus) -> object:
    return await bus.entities.of("account").purge()


async def purged_with_all(bus: CommandBus) -> object:
    return await bus.entities.purge()


async def selected(bus: CommandBus) -> object:
    steps = [step async for step in bus.commands.select(name="Transfer").cancel("closed")]
    return steps[-1].done


REMOVED = {
    each.__name__: each for each in (cancelled, purged_at_home, purged_elsewhere, purged_by_type, purged_with_all, selected)
}


@pytest.mark.parametrize("delay", [0, 3600], ids=["in line", "delayed"])
@pytest.mark.parametrize("removed", REMOVED)
async def test_what_is_removed_leaves_all_lines(sandbox: Sandbox, log: Log, removed: str, delay: float) -> None:
    async with sandbox.bus() as bus:
        await bus.dispatch(Transfer(source="a-1", target="a-2", note="never"), command_id=ID, delay=delay)
        assert await REMOVED[removed](bus) == 1
        assert await is_empty(bus)
        assert not [key for key in await sandbox.entity_keys() if not key.endswith(("}:later", "}:audit"))]
        await bus.dispatch_batch([Deposit(account="a-1", note="1"), Deposit(account="a-2", note="2")])
        async with bus.worker():
            await until(lambda: is_empty(bus))
    assert log.ended == {"a-1": ["1"], "a-2": ["2"]}


async def test_a_purge_of_another_type_reaches_what_is_delayed(sandbox: Sandbox, log: Log) -> None:
    async with sandbox.bus() as bus:
        await bus.dispatch(Pay(order="o-1", account="a-2"), delay=3600)
        await bus.dispatch(Pay(order="o-1", account="a-3"), delay=3600)
        assert await bus.entity("account", "a-2").purge() == 1
        detail = await bus.entity("account", "a-3").show()
        assert [each.name for each in detail.waiting] == ["Pay"]
        assert await bus.entities.of("account").purge() == 1
        assert await is_empty(bus)


@pytest.mark.parametrize("delay", [0, 0.2], ids=["in line", "delayed"])
async def test_the_latest_of_one_entity_does_not_take_its_place(sandbox: Sandbox, log: Log, delay: float) -> None:
    async with sandbox.bus() as bus:
        await bus.dispatch(Transfer(source="a-1", target="a-2", note="1"), unique=Unique("k"), delay=delay, history="1 day")
        receipts = [
            await bus.dispatch(Deposit(account="a-1", note=note), unique=Unique("k", wins="latest"), delay=2 * delay)
            for note in ("never", "2")
        ]
        assert [each.status for each in receipts] == ["accepted", "replaced"]
        assert (await bus.dispatch(Deposit(account="a-2", note="3"), delay=2 * delay)).status == "accepted"
        assert [each.state for each in await keys_of(bus)] == ["delayed" if delay else "waiting"]
        async with bus.worker():
            await until(lambda: is_empty(bus))
        assert await keys_of(bus) == []
    assert log.ended == {"a-1": ["1", "2"], "a-2": ["1", "3"]}


async def keys_of(bus: CommandBus) -> list[object]:
    return [*(await bus.entity("account", "a-1").unique_keys()).keys]


async def done(bus: CommandBus, log: Log) -> None:
    await bus.dispatch(Transfer(source="a-1", target="a-2", note="done"))


async def rejected(bus: CommandBus, log: Log) -> None:
    await bus.dispatch(Skipped(source="a-1", target="a-2", note="rejected"))


async def skipped(bus: CommandBus, log: Log) -> None:
    log.failing["skipped"] = 1
    await bus.dispatch(Skipped(source="a-1", target="a-2", note="skipped"))


async def expired(bus: CommandBus, log: Log) -> None:
    await bus.dispatch(Transfer(source="a-1", target="a-2", note="never"), expires=0.001)
    await asyncio.sleep(0.02)


async def given_up(bus: CommandBus, log: Log) -> None:
    with pytest.raises(CommandBusError):
        await bus.call(Transfer(source="a-1", target="a-2", note="never"), timeout=0.01)


ENDED = {each.__name__: each for each in (done, rejected, skipped, expired, given_up)}


async def run(bus: CommandBus, end: Callable[[], Awaitable[bool]]) -> None:
    async with bus.worker():
        await until(end)


@pytest.mark.parametrize("ended", ENDED)
async def test_what_is_settled_leaves_all_lines(sandbox: Sandbox, log: Log, ended: str) -> None:
    async with sandbox.bus() as bus:
        await ENDED[ended](bus, log)
        await bus.dispatch_batch([Deposit(account="a-1", note="last"), Deposit(account="a-2", note="last")])
        await run(bus, lambda: is_empty(bus))
    assert [log.ended[account][-1] for account in ("a-1", "a-2")] == ["last", "last"]


TAKEN_OUT = {
    "advance/4_start.lua": ("step.box",),  # what is settled: 5_settle.lua frees
    "reactivate.lua": ("box", "box"),  # joins all lines again first; a place whose command is gone
    "remove.lua": ("box",),  # frees
    "settle_dead_letter.lua": ("box",),  # frees
    "shared/several.lua": ("key",),  # frees
    "shared/unique_line.lua": ("KEYS[first_box + box]", "KEYS[first_box + box]"),  # of one line; a question
}
"""The scripts that take single entries out of mailboxes, and the reason why no place is left behind."""


def test_every_script_that_takes_out_an_entry_is_known() -> None:
    found: dict[str, tuple[str, ...]] = {}
    for path in sorted(LUA.rglob("*.lua")):
        keys = re.findall(r"'(?:XDEL|XTRIM)', (\S*(?:box|key)\b\S*(?: \+ box\])?),", path.read_text())
        if keys:
            found[path.relative_to(LUA).as_posix()] = tuple(keys)
    assert found == TAKEN_OUT, (
        "a script that takes an entry out of a mailbox frees its places, too: say how, and add an act above"
    )
