"""Random worlds of an outbox: relays that die behind any statement or script, requests that come late, a server that loses its last writes.

In each world every committed row is accepted once, as far as the server remembers, in the order of the commits.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from command_bus import Command, CommandBus, EntityId, HandlerRegistry
from command_bus.clock import mono
from command_bus.serialization.envelope import names_of
from command_bus.sql import Outbox, OutboxRelay, metadata, relay
from command_bus.testing import TestBus
from tests.selection import quick

KEEP = 6.0
ENTITIES = ("a", "b", "c")


class Note(Command[None], entity="note"):
    note: EntityId


class Died(Exception):
    """The process of a relay is gone, or its request has no answer."""


class World:
    """A database, a server and two relays that have their fates."""

    def __init__(self, seed: int, engine: AsyncEngine, bus: CommandBus, *, loses: bool) -> None:
        self.random, self.engine, self.bus, self.loses = Random(seed), engine, bus, loses
        self.clock = 1000.0
        self.store: Any = None
        self.committed: dict[str, list[str]] = {entity: [] for entity in ENTITIES}
        self.snapshots: list[tuple[float, Any, Any]] = []
        self.late: list[Callable[[], Awaitable[object]]] = []
        self.is_calm = False
        self.relays: list[OutboxRelay] = []
        self.number = 0

    def now(self) -> float:
        return self.clock

    async def fate(self, work: Callable[[], Awaitable[Any]], *, may_be_late: bool = False) -> Any:
        """Do a statement or script; die before it, behind it, or have it come late."""
        self.clock += self.random.choice((0.0, 0.1, 1.0))
        draw = 1.0 if self.is_calm else self.random.random()
        if draw < 0.05:
            raise Died
        if draw < 0.1 and may_be_late:
            self.late.append(work)
            raise Died
        found = await work()
        self.note()
        if draw < 0.17:
            raise Died
        return found

    def note(self) -> None:
        self.snapshots.append((self.clock, copy.deepcopy(self.store.data), copy.deepcopy(self.store.expires)))

    async def relay(self) -> OutboxRelay:
        made = OutboxRelay(self.bus, self.engine, keep=KEEP)
        connection = await self.engine.connect()
        made._connection = await connection.execution_options(isolation_level="AUTOCOMMIT")
        asked = made._ask
        made._ask = lambda statement, **values: self.fate(lambda: asked(statement, **values))  # type: ignore[method-assign]
        return made

    async def round(self) -> None:
        """Let one of the relays look, place and delete; who dies is replaced by one that knows nothing."""
        at = self.random.randrange(len(self.relays))
        try:
            await self.relays[at]._round()
        except relay._Stale:
            self.relays[at]._forget()
        except Died:
            await self.relays[at]._connection.close()
            self.relays[at] = await self.relay()

    async def add(self) -> None:
        outbox = Outbox(self.bus)
        async with self.engine.begin() as connection:
            for _ in range(self.random.choice((1, 1, 2, 4))):
                entity, self.number = self.random.choice(ENTITIES), self.number + 1
                name = f"{entity}{self.number}"
                given = {"command_id": name} if self.random.random() < 0.3 else {}
                command = Note(note=entity)
                (row,) = [outbox._values(outbox._builder.outgoing(command, given))]  # type: ignore[arg-type]
                await connection.execute(relay_table().insert().values(row))
                self.committed[entity].append(row["command_id"])

    async def lose(self) -> None:
        """Let the server forget its last writes, as in a failover: not older ones than `keep`."""
        recent = [each for each in self.snapshots if each[0] > self.clock - KEEP]
        if recent:
            _, data, expires = self.random.choice(recent)
            self.store.data, self.store.expires = copy.deepcopy(data), copy.deepcopy(expires)
            self.snapshots = [each for each in self.snapshots if each[0] <= self.clock - KEEP]
            self.note()

    async def live(self) -> None:
        self.note()
        self.relays = [await self.relay(), await self.relay()]
        for _ in range(self.random.randrange(20, 60)):
            draw = self.random.random()
            if draw < 0.25:
                await self.add()
            elif draw < 0.32 and self.late:
                await self.late.pop(self.random.randrange(len(self.late)))()
                self.note()
            elif draw < 0.36 and self.loses:
                await self.lose()
            elif draw < 0.42:
                self.clock += self.random.choice((1.0, KEEP, 100.0))
            else:
                await self.round()
        self.is_calm = True
        for each in self.relays[1:]:
            await each._connection.close()
        del self.relays[1:]
        for _ in range(60):
            self.clock += 1.0
            await self.round()
        for late in self.late:  # a day later
            await late()
        await self.relays[0]._connection.close()

    def accepted(self, entity: str) -> list[str]:
        """Return the ids of the commands that stand in a mailbox, in order."""
        keys = self.bus.session.redis.keys.of(f"note:{entity}")
        lone = (self.store.data.get(keys.lone.encode()) or {}).get(f"note:{entity}".encode())
        stream = self.store.data.get(keys.mailbox(f"note:{entity}").encode())
        if stream is None:
            return [] if lone is None else [names_of(lone[2:])[0]]
        entries = [dict(zip(fields[::2], fields[1::2], strict=True)) for fields in stream.entries.values()]
        return [names_of(fields.get(b"e", lone)[2:])[0] for fields in entries]


def relay_table() -> Any:
    return metadata.tables["command_outbox"]


@asynccontextmanager
async def world(seed: int, path: Path, *, loses: bool) -> AsyncIterator[World]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", connect_args={"timeout": 30})
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.execute(relay_table().delete())
    async with TestBus(HandlerRegistry()) as testing:
        bus = testing.bus
        made = World(seed, engine, bus, loses=loses)
        made.store = testing._processes.server.store
        await bus.session.transport.agreements.agree("note", mono() + 30)  # by the true clock
        place, look = bus.session.transport.outboxes.place, bus.session.transport.outboxes.look
        outboxes: Any = bus.session.transport.outboxes
        outboxes.place = lambda *given: made.fate(lambda: place(*given), may_be_late=True)
        outboxes.look = lambda *given: made.fate(lambda: look(*given))
        yield made
    await engine.dispose()


@pytest.mark.promise("An outbox sends what commits, once, in order")
@pytest.mark.parametrize("loses", [False, True])
@pytest.mark.parametrize("first", quick(range(0, 400, 20), [0]))
async def test_each_committed_row_is_accepted_once_in_order(
    first: int, loses: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(first, first + 20):
        async with world(seed, tmp_path / f"{seed}.db", loses=loses) as made:
            monkeypatch.setattr(relay, "mono", made.now)
            await made.live()
            for entity in ENTITIES:
                assert made.accepted(entity) == made.committed[entity], f"seed {seed}, {entity}"
            async with made.engine.begin() as connection:
                left = (await connection.execute(relay_table().select())).all()
            assert left == [], f"seed {seed}"
