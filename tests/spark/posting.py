"""A worker process that writes each move to a database, once, by the inbox: `python -m tests.spark.posting URL NAMESPACE DATABASE`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, Integer, MetaData, Table, Text, insert
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from command_bus import BusSettings, CommandBus, CommandContext, HandlerRegistry, Reject, RetryPolicy
from command_bus.sql import Inbox
from tests.spark.trucks import Move

__all__ = ["EFFECT", "registry_for"]

EFFECT = Table("effect", metadata := MetaData(), Column("command_id", Text), Column("truck", Text), Column("seq", Integer))
"""The effects. Nothing in the table keeps a second one away."""


def registry_for(engine: AsyncEngine) -> HandlerRegistry:
    """Return the handler. It refuses what weighs exactly 100."""
    registry, inbox = HandlerRegistry(), Inbox()

    @registry.handles_many(Move, size=500, wait=0.01)
    async def move(commands: Sequence[Move], contexts: Sequence[CommandContext]) -> Sequence[Any]:
        refused = {at for at, command in enumerate(commands) if command.load == 100}
        async with AsyncSession(engine) as session, inbox.batch(session, contexts) as batch:
            fresh = [at for at in batch.fresh if at not in refused]
            if fresh:
                rows = [
                    {"command_id": contexts[at].command_id, "truck": str(commands[at].truck), "seq": commands[at].seq}
                    for at in fresh
                ]
                await session.execute(insert(EFFECT), rows)
            results = batch.results({at: commands[at].seq for at in fresh})
        return [Reject("too heavy", code="heavy") if at in refused else result for at, result in enumerate(results)]

    return registry


async def serve(url: str, name: str, database: str) -> None:
    settings = BusSettings(url=url, namespace=name, lease=5.0, retry=RetryPolicy(attempts=1_000, delay=0.05, max_delay=0.5))
    async with CommandBus(settings=settings, registry=registry_for(create_async_engine(database))) as bus:
        await bus.worker(concurrency=1_000).run()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
