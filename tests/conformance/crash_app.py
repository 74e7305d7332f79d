"""A worker process whose handlers end it: `python -m tests.conformance.crash_app URL NAMESPACE LEASE`."""

from __future__ import annotations

import asyncio
import os
import sys

from command_bus import Command, CommandBus, EntityId, HandlerRegistry, RetryPolicy

__all__ = ["EXIT", "Crash", "CrashOnce", "Fine"]

EXIT = 9
registry = HandlerRegistry()


class Crash(Command[None], entity="box", retry=RetryPolicy(attempts=2, delay=0.0)):
    box: EntityId


class CrashOnce(Command[None], entity="box", delivery="at_most_once"):
    box: EntityId


class Fine(Command[int], entity="box"):
    box: EntityId


@registry.handles(Crash)
@registry.handles(CrashOnce)
async def crash(command: Crash | CrashOnce) -> None:
    os._exit(EXIT)


@registry.handles(Fine)
async def fine(command: Fine) -> int:
    return os.getpid()


async def main() -> None:
    url, namespace, lease = sys.argv[1:]
    async with CommandBus(url, namespace=namespace, registry=registry, lease=float(lease)) as bus:
        await bus.worker().run()


if __name__ == "__main__":
    asyncio.run(main())
