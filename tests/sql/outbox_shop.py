"""A bus with an outbox on a database, for its tests."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from sqlalchemy.orm import Session

from command_bus import Command, CommandBus, EntityId, HandlerRegistry
from command_bus.embedded import EmbeddedServer
from command_bus.sql import Outbox, OutboxRelay
from tests.sql.conftest import Stage


class Ship(Command[None], entity="order"):
    order: EntityId
    n: int


class Both(Command[None], entity="order"):
    one: EntityId
    other: EntityId


class Shop:
    """A bus, its outbox on a database, and what was handled."""

    def __init__(self, stage: Stage, server: EmbeddedServer, **options: Any) -> None:
        self.stage = stage
        self.seen: list[tuple[str, int]] = []
        registry = HandlerRegistry()

        @registry.handles(Ship)
        async def ship(command: Ship) -> None:
            self.seen.append((str(command.order), command.n))

        self.bus = CommandBus(server.url, namespace=f"outbox-{secrets.token_hex(4)}", registry=registry, **options)
        self.outbox = Outbox(self.bus)

    def relay(self, **options: Any) -> OutboxRelay:
        return OutboxRelay(self.bus, self.stage.awaited, **{"keep": 0.2, **options})

    def add(self, *numbers: int, order: str = "o-1", ends: str = "commit", **options: Any) -> None:
        """Write rows. In a thread where a relay of SQLite runs: the loop that waits for a lock could not let the relay finish its read."""
        with Session(self.stage.engine) as session:
            for number in numbers:
                self.outbox.add(session, Ship(order=order, n=number), **options)
            getattr(session, ends)()

    def rows(self) -> int:
        return int(self.stage.ask("SELECT count(*) FROM command_outbox")[0][0])

    async def emptied(self) -> None:
        async with asyncio.timeout(20):
            while self.rows():
                await asyncio.sleep(0.05)

    async def handled(self) -> list[int]:
        async with self.bus.worker():
            await self.bus.wait_idle(20)
        return [number for _, number in self.seen]
