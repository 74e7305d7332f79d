"""The table of the data model: each line is what a server has after that step."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from command_bus import Command, CommandBus, EntityId, HandlerRegistry
from command_bus.embedded import EmbeddedServer

pytestmark = pytest.mark.server

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "data-model.md").read_text(encoding="utf-8")
ENTITY = b"account:a-17"


class Deposit(Command[int], entity="account"):
    account: EntityId
    amount: int


def rows(first: str) -> list[list[str]]:
    """Return the cells of the table whose head begins with this."""
    lines = PAGE.partition(f"| {first} |")[2].splitlines()[2:]
    table = lines[: next(number for number, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table]


def found(client: Any) -> list[str]:
    """Return a line of the table as the server has it, without its first cell."""

    def key(name: str) -> str:
        return f"{{shop:0}}:{name}"

    record = client.hget(key("active"), ENTITY.decode())
    entries, pending = client.xlen(key("ready")), client.xpending(key("ready"), "workers")["pending"]
    mark = client.get(key("k:d-1"))
    return [
        "–" if record is None else f"`{record[:1].decode()}`",
        f"{entries}, {'leased' if pending else 'not read'}" if entries else "–",
        str(client.hlen(key("lone")) or "–"),
        str(client.xlen(key(f"m:{ENTITY.decode()}")) or "–"),
        "–" if mark is None else f"`{mark[:1].decode()}`",
        (client.hget(key("stats"), "depth") or b"0").decode(),
    ]


async def test_each_step_leaves_what_the_page_says() -> None:
    registry = HandlerRegistry()
    running: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    @registry.handles(Deposit)
    async def deposit(command: Deposit) -> int:
        goes_on = asyncio.Event()
        await running.put(goes_on)
        await goes_on.wait()
        return command.amount

    seen: list[list[str]] = []
    with EmbeddedServer.start(tcp=True) as server, Redis.from_url(server.url) as client:
        async with CommandBus(server.url, namespace="shop", registry=registry) as bus:
            await bus.dispatch(Deposit(account="a-17", amount=5), command_id="d-1")
            seen.append(found(client))
            await bus.dispatch(Deposit(account="a-17", amount=6), command_id="d-2")
            seen.append(found(client))
            async with bus.worker():
                for _ in range(2):
                    goes_on = await running.get()
                    seen.append(found(client))
                    goes_on.set()
                await bus.result("d-2", Deposit, timeout=5)
                seen.append(found(client))
    assert [row[1:] for row in rows("after")] == seen


def test_the_keys_are_those_of_the_wire_format() -> None:
    wire = (Path(__file__).resolve().parents[2] / "docs" / "wire-format.md").read_text(encoding="utf-8")
    known = {
        each for line in wire.splitlines() if line.startswith("| `") for each in re.findall(r"`([^`]+)`", line.split("|")[1])
    }
    named = {each for row in rows("used") for each in re.findall(r"`([^`]+)`", row[1])}
    assert named - known == set()
