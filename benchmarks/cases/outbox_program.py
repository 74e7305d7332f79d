"""Programs that add to an outbox and relay it, in processes of their own, speaking `protocol`."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import redis.asyncio
from sqlalchemy import Column, MetaData, Table, Text, insert, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from benchmarks import protocol
from benchmarks.cases.messages import Note, note
from benchmarks.cases.program import bus_of, run
from benchmarks.protocol import Stretch
from command_bus.cli.process.worker_process import collect_rarely
from command_bus.sql import Outbox, OutboxRelay, metadata

_ENTITIES, _PAGE, _COMMITTERS = 1000, 500, 4
_OWN = MetaData()
_ENTRY = Table("entry", _OWN, Column("id", Text, primary_key=True))


async def _prepared(given: argparse.Namespace) -> AsyncEngine:
    engine = create_async_engine(given.database)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.run_sync(_OWN.create_all)
    return engine


async def relay(given: argparse.Namespace) -> None:
    """Send what is there until nothing is left."""
    engine = await _prepared(given)
    async with bus_of(given) as bus:
        outbox = Outbox(bus)
        for start in range(0, given.count, _PAGE):
            notes: list[Note] = [note(number, _ENTITIES) for number in range(start, min(start + _PAGE, given.count))]
            async with engine.begin() as connection:
                await connection.execute(outbox.insert(notes))
        collect_rarely()
        await asyncio.get_running_loop().run_in_executor(None, protocol.ready)
        with Stretch(given.count):
            if given.kind == "loop":
                await _loop(engine, given.url)
            else:
                async with OutboxRelay(bus, engine, keep=0.5) as sender:
                    await sender.drained(timeout=600)
    await engine.dispose()


async def _loop(engine: AsyncEngine, url: str) -> None:
    client: Any = redis.asyncio.Redis.from_url(url)
    look = text("SELECT id, mailbox, envelope FROM command_outbox ORDER BY id LIMIT :most FOR UPDATE SKIP LOCKED")
    while True:
        async with engine.begin() as connection:
            rows = (await connection.execute(look, {"most": _PAGE})).all()
            if not rows:
                break
            pipeline = client.pipeline(transaction=False)
            for row in rows:
                pipeline.xadd(f"bare:{row.mailbox}", {"e": bytes(row.envelope)})
            await pipeline.execute()
            ids = [row.id for row in rows]
            await connection.execute(text("DELETE FROM command_outbox WHERE id = ANY(CAST(:ids AS bigint[]))"), {"ids": ids})
    await client.aclose()


async def commit(given: argparse.Namespace) -> None:
    """Commit transactions from four tasks at once."""
    engine, bus = await _prepared(given), bus_of(given)
    outbox = Outbox(bus)

    async def write(first: int) -> None:
        for number in range(first, given.count, _COMMITTERS):
            async with AsyncSession(engine) as session, session.begin():
                await session.execute(insert(_ENTRY), [{"id": f"e{number}"}])
                if given.kind == "outbox":
                    outbox.add(session, note(number, given.count))

    protocol.ready()
    with Stretch(given.count):
        await asyncio.gather(*(write(first) for first in range(_COMMITTERS)))
    await engine.dispose()


def main() -> None:
    parser = protocol.parser("relay", "commit")
    parser.add_argument("--database", required=True)
    parser.add_argument("--kind", choices=("outbox", "loop", "insert"), required=True)
    parser.add_argument("--shards", type=int, default=1)
    given = parser.parse_args()
    run({"relay": relay, "commit": commit}[given.role](given))


if __name__ == "__main__":
    main()
