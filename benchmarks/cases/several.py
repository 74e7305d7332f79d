"""Commands that stand in the lines of two entities beside plain ones: accepted in batches, then handled. Server and client work for one."""

from __future__ import annotations

import asyncio
import random
import time
from functools import partial
from typing import Any

from benchmarks.case import Case
from benchmarks.figures import Sample
from benchmarks.ground import Ground
from command_bus import Command, CommandBus, EntityId, HandlerRegistry, Message

__all__ = ["ALL"]

_COMMANDS, _ACCOUNTS = 10_000, 1_000
registry = HandlerRegistry()


class Deposit(Command[None], entity="account"):
    account: EntityId


class Transfer(Command[None], entity="account"):
    source: EntityId
    target: EntityId


class Crossing(Command[None], entity="account", across_shards=True):
    source: EntityId
    target: EntityId


@registry.handles(Crossing)
async def crossing(command: Crossing) -> None:
    pass


@registry.handles(Deposit)
async def deposit(command: Deposit) -> None:
    pass


@registry.handles(Transfer)
async def transfer(command: Transfer) -> None:
    pass


def commands_of(count: int, kind: str, accounts: int) -> list[Message[None]]:
    """Return commands of a kind; each has entities of its own if there are no accounts, else random ones of those."""
    chance = random.Random(7)

    def account(number: int) -> str:
        return f"a-{chance.randrange(accounts) if accounts else number}"

    if kind == "plain":
        return [Deposit(account=account(number)) for number in range(count)]
    of = Crossing if kind == "crossing" else Transfer
    return [of(source=account(2 * number), target=account(2 * number + 1)) for number in range(count)]


def measured(ground: Ground, kind: str, accounts: int, shards: int = 1) -> Sample:
    """Measure a kind of commands over accounts; of those that may cross three of four do so over four shards."""
    count = ground.count(_COMMANDS)
    commands = commands_of(count, kind, accounts)
    with ground.spending() as spent:
        seconds, cpu = asyncio.run(_handle(ground.url, commands, shards))
    return {"per_s": count / seconds, "client_us": cpu / count * 1e6, **spent.per(count)}


async def _handle(url: str, commands: list[Message[None]], shards: int) -> tuple[float, float]:
    limits: dict[str, Any] = {"max_total_depth": 10_000_000, "max_depth": 1_000_000}
    bus = CommandBus(url, namespace=f"bench-several-{shards}", registry=registry, shards=shards, **limits)
    async with bus:
        began, cpu = time.perf_counter(), time.process_time()
        result = await bus.dispatch_batch(commands)
        if result.accepted != len(commands):
            raise RuntimeError(f"{result.rejected} were refused")
        async with bus.worker():
            await bus.wait_idle(300)
        return time.perf_counter() - began, time.process_time() - cpu


ALL = [
    Case("several, plain commands of own entities", "several", partial(measured, kind="plain", accounts=0)),
    Case("several, commands of two own entities", "several", partial(measured, kind="several", accounts=0)),
    Case("several, plain commands over 1,000 accounts", "several", partial(measured, kind="plain", accounts=_ACCOUNTS)),
    Case("several, transfers over 1,000 accounts", "several", partial(measured, kind="several", accounts=_ACCOUNTS)),
    Case("several, plain commands in four shards", "several", partial(measured, kind="plain", accounts=0, shards=4)),
    Case("several, commands across four shards", "several", partial(measured, kind="crossing", accounts=0, shards=4)),
]
