"""Workers from zero, up to two, and back to zero. Run `python -m examples.scaler`.

It needs no server of yours. In earnest the agent starts containers, and runs on as many machines as you like: each hint wakes one of them.
"""

from __future__ import annotations

import asyncio
import sys

from command_bus import Command, CommandBus, EntityId, HandlerRegistry
from command_bus.notifications import RedisNotifier

MOST = 2
registry = HandlerRegistry()


class Pack(Command[None], entity="order"):
    order: EntityId


@registry.handles(Pack)
async def pack(_: Pack) -> None:
    await asyncio.sleep(0.05)


def shop() -> CommandBus:
    return CommandBus(namespace="scaler-example", registry=registry, notifier=RedisNotifier())


async def work() -> None:
    """Be one worker, as long as there is work."""
    async with shop() as bus, bus.worker():
        await bus.wait_idle()


class Agent:
    def __init__(self, bus: CommandBus) -> None:
        self.bus = bus
        self.running: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        async with self.bus.notifier.listen("work", types={"order"}) as woken:
            await self.look()  # what came before anybody listened
            async for entity_type in woken:
                while len(self.running) < MOST and await self.bus.notifier.consume_hint(entity_type):
                    self.start()

    def start(self) -> None:
        worker = asyncio.create_task(self.one_worker())
        self.running.add(worker)
        worker.add_done_callback(self.running.discard)

    async def one_worker(self) -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "examples.scaler", "work")
        await process.wait()
        await self.look()  # what came while it was about to end

    async def look(self) -> None:
        """Notices may be lost; the counts of the server are not."""
        if (await self.bus.stats()).depth:
            self.start()


async def main() -> None:
    async with shop() as bus:
        agent = Agent(bus)
        listening = asyncio.create_task(agent.run())
        for orders in (20, 1):
            print("workers before:", len(agent.running))
            await bus.dispatch_batch([Pack(order=f"o-{number}") for number in range(orders)])
            await bus.wait_idle()
            print("orders packed:", orders)
            while agent.running:
                await asyncio.wait(agent.running)
        print("workers at the end:", len(agent.running))
    await listening


if __name__ == "__main__":
    asyncio.run(work() if sys.argv[1:] == ["work"] else main())
