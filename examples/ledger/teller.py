"""A teller: writes transfers, each with its two commands in one transaction. `python -m examples.ledger.teller CONCURRENCY`."""

from __future__ import annotations

import asyncio
import os
from random import Random

from sqlalchemy import insert, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from command_bus import BusSettings, CommandBus
from command_bus.sql import Outbox
from examples.flights.worker import main
from examples.ledger.books import ACCOUNT, ACCOUNTS, TRANSFER, Post, engine_here

_ABANDONED = 0.1


async def transfer(session: AsyncSession, outbox: Outbox, name: str, random: Random) -> None:
    """Ask for both postings. The accounts stay locked to the end of the commit, so that their numbers are in the order of the commits."""
    source, target = (f"a{number}" for number in random.sample(range(ACCOUNTS), 2))
    cents = random.randrange(1, 100)
    await session.execute(insert(TRANSFER), [{"id": name, "cents": cents}])
    for account, amount in sorted(((source, -cents), (target, cents))):
        asked = update(ACCOUNT).where(ACCOUNT.c.id == account).values(asked=ACCOUNT.c.asked + 1).returning(ACCOUNT.c.asked)
        number = (await session.execute(asked)).scalar_one()
        outbox.add(session, Post(account=account, transfer=name, number=number, cents=amount))


async def serve(concurrency: int) -> None:
    """Write until SIGTERM."""
    engine, outbox = engine_here(), Outbox(CommandBus(settings=BusSettings()))  # the bus is never opened
    await asyncio.gather(*(_write(engine, outbox, number) for number in range(concurrency)))


async def _write(engine: AsyncEngine, outbox: Outbox, writer: int) -> None:
    random, count = Random(f"{os.getpid()} {writer}"), 0
    while True:
        count += 1
        try:
            async with AsyncSession(engine) as session:
                await transfer(session, outbox, f"{os.getpid()}-{writer}-{count}", random)
                if random.random() < _ABANDONED:
                    await session.rollback()
                else:
                    await session.commit()
        except DBAPIError:  # its connection was cut
            await asyncio.sleep(0.1)
        await asyncio.sleep(random.uniform(0.0, 0.02))


if __name__ == "__main__":
    main(serve)
