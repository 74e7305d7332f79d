"""Handlers that write to PostgreSQL, in a process of its own, speaking `protocol`."""

from __future__ import annotations

import argparse
import asyncio

from sqlalchemy import Column, Integer, MetaData, Table, Text, insert, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from benchmarks import protocol
from benchmarks.cases.messages import Note
from benchmarks.cases.program import bus_of, run
from benchmarks.protocol import Handled, Stretch
from command_bus import CommandContext, HandlerRegistry
from command_bus.cli.process.worker_process import collect_rarely
from command_bus.sql import Inbox, metadata

_SIZE, _SLOTS = 500, 20
_OWN = MetaData()
_ACCOUNT = Table("account", _OWN, Column("id", Text, primary_key=True), Column("number", Integer, nullable=False))
_ENTRY = Table("entry", _OWN, Column("id", Text, primary_key=True), Column("number", Integer, nullable=False))
_UPDATE = text("UPDATE account SET number = number + :number WHERE id = :id")


async def _prepared(given: argparse.Namespace) -> AsyncEngine:
    engine = create_async_engine(given.database, pool_size=_SLOTS)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.run_sync(_OWN.create_all)
        await connection.execute(insert(_ACCOUNT), [{"id": f"e{number}", "number": 0} for number in range(1000)])
    return engine


def _registry(engine: AsyncEngine, kind: str, handled: Handled) -> HandlerRegistry:
    made, inbox = HandlerRegistry(), Inbox()

    async def bare(command: Note, context: CommandContext) -> int:
        del context  # both get one
        async with AsyncSession(engine) as session, session.begin():
            await session.execute(_UPDATE, {"number": command.number, "id": str(command.entity)})
        handled()
        return command.number

    async def once(command: Note, context: CommandContext) -> int:
        async with AsyncSession(engine) as session, inbox.once(session, context) as block:
            if not block.repeated:
                await session.execute(_UPDATE, {"number": command.number, "id": str(command.entity)})
                block.remember(command.number)
        handled()
        return command.number

    made.handles(Note)(bare if kind == "bare" else once)
    return made


async def work(given: argparse.Namespace) -> None:
    engine = await _prepared(given)
    async with bus_of(given, registry=_registry(engine, given.kind, Handled(given.count))) as bus:
        await bus.ping()
        worker = bus.worker(concurrency=_SLOTS)
        collect_rarely()
        await asyncio.get_running_loop().run_in_executor(None, protocol.ready)
        await worker.run()


async def write(given: argparse.Namespace) -> None:
    engine, inbox, size = await _prepared(given), Inbox(), 1 if given.kind == "single" else _SIZE
    contexts = [
        CommandContext(command_id=f"c-{number}", name="Note", entity_type="bench", entity_id=f"e{number}", fence=1)
        for number in range(given.count)
    ]
    protocol.ready()
    with Stretch(given.count):
        for start in range(0, given.count, size):
            chosen = contexts[start : start + size]
            async with AsyncSession(engine) as session:
                if given.kind == "single":
                    async with inbox.once(session, chosen[0]) as block:
                        await session.execute(insert(_ENTRY), [{"id": chosen[0].command_id, "number": 1}])
                        block.remember(1)
                else:
                    async with inbox.batch(session, chosen) as batch:
                        await session.execute(insert(_ENTRY), [{"id": each.command_id, "number": 1} for each in chosen])
                        batch.results(dict.fromkeys(batch.fresh, 1))
    await engine.dispose()


def main() -> None:
    parser = protocol.parser("work", "write")
    parser.add_argument("--database", required=True)
    parser.add_argument("--kind", choices=("bare", "once", "single", "batch"), required=True)
    parser.add_argument("--shards", type=int, default=1)
    given = parser.parse_args()
    run({"work": work, "write": write}[given.role](given))


if __name__ == "__main__":
    main()
