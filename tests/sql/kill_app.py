"""A worker process whose handler charges accounts by the inbox, for tests that kill it behind the commit.

Run as `python -m tests.sql.kill_app URL NAMESPACE DATABASE MODE`. With the mode `stop` it says `committed` behind the first commit and waits to be
killed; with `go` it works.
"""

from __future__ import annotations

import asyncio
import sys
import threading

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from command_bus import Command, CommandBus, CommandContext, EntityId, HandlerRegistry
from command_bus.sql import Inbox

registry = HandlerRegistry()
LEASE = 1.0


class Charge(Command[int], entity="account"):
    account: EntityId
    cents: int


class Note(Command[None], entity="note"):
    note: EntityId
    text: str


async def main(url: str, namespace: str, database: str, mode: str) -> None:
    engine, inbox = create_async_engine(database), Inbox()

    @registry.handles(Charge)
    async def charge(command: Charge, context: CommandContext) -> int:
        async with AsyncSession(engine) as session:
            async with inbox.once(session, context) as once:
                if once.repeated:
                    return int(once.reply)
                context.send(Note(note=command.account, text=f"charged {command.cents} by {mode}"))
                sql = text("UPDATE account SET balance = balance + :cents WHERE id = :id RETURNING balance")
                values = {"cents": command.cents, "id": str(command.account)}
                once.remember((await session.execute(sql, values)).scalar_one())
        if mode == "stop":
            print("committed", flush=True)
            threading.Event().wait()  # the whole process stands still, until it is killed
        return int(once.reply)

    @registry.handles(Note)
    async def note(command: Note) -> None:
        async with AsyncSession(engine) as session, session.begin():
            await session.execute(text("INSERT INTO noted VALUES (:text)"), {"text": command.text})

    async with CommandBus(url, namespace=namespace, registry=registry, lease=LEASE) as bus, bus.worker():
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
