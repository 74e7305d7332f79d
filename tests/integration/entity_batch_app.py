"""A worker whose handler takes neighbours of one entity: one command kills it, wherever it stands in a call."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from command_bus import Command, CommandBus, EntityId, EntityState, HandlerRegistry, RetryPolicy

LEASE = 1.0
KILLS = 2
registry = HandlerRegistry()


class Append(Command[int], entity="log", retry=RetryPolicy(attempts=1)):
    log: EntityId
    n: int


class Log(EntityState, entity="log"):
    numbers: list[int] = []  # noqa: RUF012 - pydantic copies it


@registry.handles_many(Append, of="entity", size=4)
async def append(commands: Sequence[Append], log: Log) -> Sequence[int]:
    print("called", *(each.n for each in commands), flush=True)
    if any(each.n == KILLS for each in commands):
        os.kill(os.getpid(), signal.SIGKILL)
    log.numbers += [each.n for each in commands]
    return [each.n for each in commands]


async def main(url: str, namespace: str) -> None:
    async with CommandBus(url, namespace=namespace, registry=registry, lease=LEASE) as bus, bus.worker():
        await asyncio.sleep(60)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
