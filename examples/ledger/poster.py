"""A worker: posts to the accounts, up to fifty commands of one in a transaction. `python -m examples.ledger.poster CONCURRENCY`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from command_bus import BusSettings, CommandBus, CommandContext, HandlerRegistry, RetryPolicy
from command_bus.sql import Inbox
from examples.flights.worker import main
from examples.ledger.books import ACCOUNT, ENTRY, Post, engine_here

_PATIENT = RetryPolicy(attempts=1_000, delay=0.05, max_delay=0.5)  # connections are cut, and nothing is given up


def registry_for(engine: AsyncEngine) -> HandlerRegistry:
    """Return the handler."""
    registry, inbox = HandlerRegistry(), Inbox()

    @registry.handles_many(Post, of="entity", size=50)
    async def post(commands: Sequence[Post], contexts: Sequence[CommandContext]) -> Sequence[Any]:
        async with AsyncSession(engine) as session, inbox.batch(session, contexts) as batch:
            fresh = [commands[at] for at in batch.fresh]
            if fresh:
                rows = [
                    {"account": str(each.account), "transfer": each.transfer, "number": each.number, "cents": each.cents}
                    for each in fresh
                ]
                await session.execute(insert(ENTRY).values(rows))
                total = sum(each.cents for each in fresh)
                account = update(ACCOUNT).where(ACCOUNT.c.id == str(fresh[0].account))
                await session.execute(account.values(balance=ACCOUNT.c.balance + total))
            return batch.results()

    return registry


async def serve(concurrency: int) -> None:
    """Run a worker until SIGTERM."""
    settings = BusSettings(retry=_PATIENT)
    async with CommandBus(settings=settings, registry=registry_for(engine_here())) as bus:
        await bus.worker(concurrency=concurrency).run()


if __name__ == "__main__":
    main(serve)
