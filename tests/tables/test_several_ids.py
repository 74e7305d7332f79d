"""The table *ids × ways* of commands of several entities: whatever stands in an id, the command runs once, in its place of each of its lines,
and leaves none of them held.
"""

from __future__ import annotations

import asyncio
import re
import string
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from command_bus import Command, CommandBus, EntityId, Envelope, InvalidCommand, RetryPolicy
from tests.conformance import conftest
from tests.conformance.conftest import Sandbox
from tests.tables.ends import GONE, STAYS

sandbox, servers = conftest.sandbox, conftest.servers
pytestmark = pytest.mark.server

ODD = [
    *(f"a{each}b" for each in string.punctuation + " \t\n\r\0\x1b\x7f"),
    *("%", "=", " ", "-", "|", "||", "=1-0 ", "a=1-0 b", "b|||1-0|0|0|", "|at=x", "|w=1-0", "~:1", "account:plain", "{0}", "}{", "*", "\\", "0"),
    "ü", "u\u0308", "日本", "\U0001f600", "\u202eabc", "\u200b", "\u00a0", "ß", "İ",
    "x" * 400, "日" * 133, "\0" * 133, "x" * 513, "%" * 400,
]  # fmt: skip
"""Ids with every character that a line, a record or a key could take for its own, and long ones."""


class Deposit(Command[None], entity="account"):
    account: EntityId
    note: str = ""


class Transfer(Command[str], entity="account", retry=RetryPolicy(attempts=2, delay=0.01)):
    source: EntityId
    target: EntityId
    note: str = ""
    fails: int = 0


Way = Callable[[CommandBus, list[Transfer]], Awaitable[Any]]
WAYS: dict[str, Way] = {}


def way(function: Way) -> Way:
    WAYS[function.__name__] = function
    return function


@way
async def dispatch(bus: CommandBus, commands: list[Transfer]) -> None:
    for each in commands:
        await bus.dispatch(each)


@way
async def dispatch_batch(bus: CommandBus, commands: list[Transfer]) -> None:
    result = await bus.dispatch_batch([Envelope(each, headers={"a": "b"}) for each in commands])
    assert not [each for each in result.outcomes if each.error]


@way
async def call(bus: CommandBus, commands: list[Transfer]) -> list[Any]:
    return [asyncio.create_task(bus.call(each, timeout=60)) for each in commands]


@way
async def delayed(bus: CommandBus, commands: list[Transfer]) -> None:
    for each in commands:
        await bus.dispatch(each, delay=0.001)


@way
async def with_id(bus: CommandBus, commands: list[Transfer]) -> None:
    for _ in range(2):  # the second is a duplicate
        for number, each in enumerate(commands):
            await bus.dispatch(each, command_id=f"t-{number}")


@way
async def retried(bus: CommandBus, commands: list[Transfer]) -> None:
    await dispatch(bus, [each.model_copy(update={"fails": 1}) for each in commands])


async def _left(sandbox: Sandbox, bus: CommandBus) -> list[str]:
    """Return the keys that are left of what has all ended."""
    prefix = f"{{{bus.settings.namespace}:0}}:"
    client = sandbox.clients.at(prefix).commands()
    keys = [key.decode().removeprefix(prefix) async for key in client.scan_iter(f"{prefix}*", count=1000)]
    await client.aclose()
    return [key for key in keys if next(how for pattern, how in STAYS if re.fullmatch(pattern, key, re.DOTALL)) == GONE]


def _pairs(odd: str) -> list[tuple[str, str]]:
    near = odd[:-1] if len(odd) > 1 else f"{odd}x"
    return [(odd, "plain"), ("plain", odd), (odd, odd), (odd, near)]


@pytest.mark.parametrize("name", WAYS)
async def test_201_whatever_stands_in_an_id_it_runs_in_its_place_of_each_line(sandbox: Sandbox, name: str) -> None:
    ran: dict[str, list[str]] = defaultdict(list)
    failed: set[str] = set()

    @sandbox.registry.handles(Deposit)
    async def deposit(command: Deposit) -> None:
        ran[str(command.account)].append(command.note)

    @sandbox.registry.handles(Transfer)
    async def transfer(command: Transfer) -> str:
        if command.fails and command.note not in failed:
            failed.add(command.note)
            raise ValueError("the first time")
        for each in dict.fromkeys((str(command.source), str(command.target))):
            ran[each].append(command.note)
        return str(command.source)

    transfers = [
        Transfer(source=source, target=target, note=f"t{number}-{place}")
        for number, odd in enumerate(ODD)
        for place, (source, target) in enumerate(_pairs(odd))
    ]
    expected: dict[str, list[str]] = defaultdict(list)
    for each in transfers:
        for entity in dict.fromkeys((str(each.source), str(each.target))):
            expected[entity].append(each.note)
    is_in_order = name not in ("delayed", "call")
    async with sandbox.bus() as bus:
        called = await WAYS[name](bus, transfers) or []
        if is_in_order:
            await bus.dispatch_batch([Deposit(account=entity, note="behind") for entity in expected])
        async with bus.worker(concurrency=20):
            assert await asyncio.gather(*called) == [str(each.source) for each in transfers][: len(called)]
            await bus.wait_idle(60)
        for entity, notes in expected.items():
            if is_in_order:
                assert ran[entity] == [*notes, "behind"], repr(entity)
            else:
                assert sorted(ran[entity]) == sorted(notes), repr(entity)
        assert (await bus.stats()).depth == 0
        assert not [each async for each in bus.dead_letters.list()]
        assert await _left(sandbox, bus) == []


async def test_ids_that_together_take_too_many_bytes_are_refused(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        for source, target in (("a", ""), ("", "a"), ("a", "\ud800"), ("a", "x" * 5000)):
            with pytest.raises((InvalidCommand, ValueError)):
                await bus.dispatch(Transfer(source=source, target=target))
        assert (await bus.stats()).depth == 0
