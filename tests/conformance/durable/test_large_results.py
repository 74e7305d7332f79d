"""Workflows whose results together are too large: nothing that completed is said to have failed, or undone. Over every server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import Field

from command_bus import Command, CommandFailed, EntityId, Message, Reject
from command_bus.workflows import GroupCounts, chain, group, node
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until

SIZE, PAYLOAD = 38_000, 40_000
ROOM = 16 * (PAYLOAD + 64 * 1024)
"""Bytes of the outcomes of one command's calls, besides small ones."""


class Scan(Command[str], entity="scan"):
    scan: EntityId
    size: int = SIZE


class Undo(Command[None], entity="scan"):
    scan: EntityId


class Bind(Command[int], entity="book"):
    book: EntityId
    scans: list[str] = Field(default_factory=list[str])
    scan: str = ""


@pytest.fixture
def undone(sandbox: Sandbox) -> list[str]:
    got: list[str] = []

    @sandbox.registry.handles(Scan)
    async def scan(command: Scan) -> str:
        if command.size < 0:
            raise Reject("unlucky")
        return "x" * command.size

    @sandbox.registry.handles(Undo)
    async def undo(command: Undo) -> None:
        got.append(command.scan)

    @sandbox.registry.handles(Bind)
    async def bind(command: Bind) -> int:
        return len(command.scans)

    return got


def scans(count: int = ROOM // SIZE + 5) -> list[Any]:
    return [node(Scan(scan=str(number)), undo=Undo(scan=str(number))) for number in range(count)]


async def test_a_group_counts_results_that_have_no_room(sandbox: Sandbox, undone: list[str]) -> None:
    async with sandbox.bus(max_payload=PAYLOAD) as bus, bus.worker(concurrency=20):
        assert await bus.call(group(scans(), results=False), timeout=60) == GroupCounts(completed=len(scans()), failed=0)
        work = group([Scan(scan="bad", size=-1), *scans()], failures="ignore", results=False)
        assert await bus.call(work, timeout=60) == GroupCounts(completed=len(scans()), failed=1)
        assert undone == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: group(scans()),
        lambda: group(scans(), failures="ignore"),
        lambda: group(scans(4)),
        lambda: group(scans(2)).then(Bind(book="b"), takes="scans"),
        lambda: chain(*scans(1), node(Bind(book="b" * 3000), takes="scan")),
    ],
    ids=["no room", "no room ignored", "reply", "chord", "chain"],
)
async def test_206_results_that_are_too_large_park_the_workflow(
    sandbox: Sandbox, undone: list[str], make: Callable[[], Message[Any]]
) -> None:
    async with sandbox.bus(max_payload=PAYLOAD) as bus, bus.worker(concurrency=20):
        with pytest.raises(CommandFailed, match=r"BadStep.*results=False"):
            await bus.call(make(), command_id="w-1", timeout=60)
        (letter,) = [each async for each in bus.dead_letters.list()]
        assert (letter.command_id, letter.reason, letter.attempts) == ("w-1", "failed", 1)
        assert (await bus.commands.status("w-1")).state == "parked"
        assert undone == [], "all of them completed"


async def test_a_workflow_that_is_parked_so_goes_on_where_more_is_allowed(sandbox: Sandbox, undone: list[str]) -> None:
    async with sandbox.bus(max_payload=PAYLOAD) as bus:
        async with bus.worker(concurrency=20):
            receipt = await bus.dispatch(group(scans(2)).then(Bind(book="b"), takes="scans"), command_id="w-1")
            await until(bus.dead_letters.count)
        async with sandbox.bus(max_payload=3 * PAYLOAD) as more, more.worker():
            (letter,) = [each async for each in more.dead_letters.list()]
            await more.dead_letters.replay(letter.id)
            assert await receipt.result(timeout=20) == 2
    assert undone == []
