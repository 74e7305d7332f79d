"""A worker process of one release of a durable handler; what it does goes to a log that outlives it.

Run as `python -m tests.integration.durable_deploy_app URL NAMESPACE LOG LEASE RELEASE`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import sys

from command_bus import Command, CommandBus, DurableContext, EntityId, HandlerRegistry, RetryPolicy

__all__ = ["RELEASES", "Order", "build"]

_HOLD, _ONE, _TWO, _SHIP, _THANK = ("hold", "h"), ("write", "1"), ("write", "2"), ("ship", "s"), ("thank", "t")

RELEASES = {
    "first": ((_HOLD, _ONE, _TWO), (_SHIP,)),
    "longer": ((_HOLD, _ONE, _TWO), (_SHIP, _THANK)),
    "shorter": ((_ONE, _TWO), (_SHIP,)),
    "swapped": ((_ONE, _TWO, _HOLD), (_SHIP,)),
    "reordered": ((_HOLD, _TWO, _ONE), (_SHIP,)),
}
"""The steps of each release, name and argument: before the handler waits for the signal `go`, and behind that."""


class Order(Command[str], entity="order", durable=True, retry=RetryPolicy(attempts=100, delay=0.01), on_poison="park"):
    order: EntityId


def build(url: str, namespace: str, log: str, lease: float, release: str) -> CommandBus:
    registry = HandlerRegistry()
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(what: str, order: str, step: str = "", value: str = "") -> None:
        """Append a line with one write, so that a SIGKILL leaves whole lines."""
        record = {"ev": what, "order": order, "step": step, "value": value, "release": release, "pid": os.getpid()}
        os.write(file, json.dumps(record).encode() + b"\n")

    @registry.handles(Order)
    async def handle(command: Order, context: DurableContext) -> str:
        order = str(command.order)

        async def effect(argument: str) -> str:
            value = secrets.token_hex(4)
            note("effect", order, argument, value)
            await asyncio.sleep(0.1 * random.random())
            return value

        async def do(steps: tuple[tuple[str, str], ...]) -> None:
            for name, argument in steps:
                note("stored", order, argument, await context.step(name, effect, argument))

        before, behind = RELEASES[release]
        await do(before)
        await context.signal("go")
        await do(behind)
        note("end", order)
        return release

    return CommandBus(url, namespace=namespace, registry=registry, lease=lease)


async def main() -> None:
    url, namespace, log, lease, release = sys.argv[1:]
    bus = build(url, namespace, log, float(lease), release)
    async with bus:
        await bus.worker(concurrency=8).run()


if __name__ == "__main__":
    asyncio.run(main())
