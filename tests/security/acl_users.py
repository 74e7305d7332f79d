"""A server with a user for each role of the ACL, and the commands of these tests."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from command_bus import (
    Command,
    CommandBus,
    CommandContext,
    DurableContext,
    EntityId,
    HandlerRegistry,
    Reject,
    RetryPolicy,
)
from command_bus.embedded import EmbeddedServer
from command_bus.transport.redis.acl import Role, acl_lines

__all__ = [
    "NAMESPACE",
    "ROLES",
    "TRIED",
    "Park",
    "Place",
    "Relay",
    "Trip",
    "Work",
    "_came_before_the_workers",
    "_looked_for_its_place",
    "made",
    "registry",
]


NAMESPACE = "shop"


ROLES: tuple[Role, ...] = ("producer", "worker", "operator", "gateway", "pipeline", "relay", "owner")


# By the client library, for appendfsync, and BLMPOP in lines for 6.2, which does not know it; a refusal is taken. 6.2 names no subcommands.
TRIED = {"client|setinfo", "client", "config|get", "config", "blmpop"}


class Work(Command[int], entity="line", retry=RetryPolicy(attempts=2, delay=0.01, jitter=0.0)):
    line: EntityId
    number: int


class Relay(Command[int], entity="sender"):
    sender: EntityId


class Trip(Command[int], entity="trip", durable=True):
    trip: EntityId
    parks: bool = False


class Park(Command[None], entity="line", retry=RetryPolicy(attempts=1), on_poison="park"):
    line: EntityId


def registry() -> HandlerRegistry:
    handlers = HandlerRegistry()

    @handlers.handles(Work)
    async def work(command: Work) -> int:
        if command.number == -1:
            raise OSError("broken")
        if command.number == -2:
            raise Reject("no")
        return command.number

    @handlers.handles(Park)
    async def park(command: Park) -> None:
        raise OSError("broken")

    @handlers.handles(Trip)
    async def travel(command: Trip, context: DurableContext) -> int:
        context.compensate(Work(line="undone", number=0))
        if command.parks:
            await context.call(Park(line=str(command.trip)))
        booked = await context.call(Work(line=str(command.trip), number=1))
        sent = await context.step("send", _sent)
        await context.sleep(0.1)
        return booked + sent + await context.signal("go", returns=int)

    @handlers.handles(Relay)
    async def relay(command: Relay, context: CommandContext) -> int:
        await context.dispatch(Work(line="relayed", number=1), command_id=f"of-{context.command_id}")
        await context.dispatch(Work(line="relayed", number=2), delay=0.01)
        return await context.call(Work(line="relayed", number=3), timeout=10)

    return handlers


def _sent() -> int:
    return 1


@dataclass
class Place:
    """A server on which each role has a user."""

    server: EmbeddedServer
    password: str
    admin: Redis
    selectors: bool

    def url(self, role: Role) -> str:
        return f"redis://command_bus-{NAMESPACE}-{role}:{self.password}@{self.server.url.partition('//')[2]}"

    def bus(self, role: Role, **settings: Any) -> CommandBus:
        return CommandBus(
            self.url(role), **{"namespace": NAMESPACE, "registry": registry(), "dispatch_timeout": 15.0, **settings}
        )

    def client(self, role: Role) -> Redis:
        client: Redis = Redis.from_url(self.url(role))
        return client

    async def denied(self) -> list[Any]:
        """Return the refused commands so far, without those that are only tried."""
        entries: Any = await self.admin.acl_log()
        return [
            (entry["reason"], entry["object"], entry["username"], entry["context"])
            for entry in entries
            if entry["object"] not in TRIED and not _looked_for_its_place(entry) and not _came_before_the_workers(entry)
        ]


def _looked_for_its_place(entry: Any) -> bool:
    """Match the one read of a mailbox that a producer tries after a timeout, and may not do."""
    what = entry["object"]
    return entry["username"].endswith("-producer") and ("}:m:" in what or what.endswith("}:lone") or what in ("xrange", "hget"))


def _came_before_the_workers(entry: Any) -> bool:
    """Match the loading of missing scripts that senders try once per request, and may not do."""
    return entry["username"].endswith(("-producer", "-pipeline")) and entry["object"] in ("script|load", "script")


@asynccontextmanager
async def made(server: EmbeddedServer, *, selectors: bool, **options: Any) -> AsyncIterator[Place]:
    admin: Redis = Redis.from_url(server.url)
    found = Place(server, secrets.token_urlsafe(16), admin, selectors)
    for role in ROLES:
        for line in acl_lines(role, NAMESPACE, password=found.password, selectors=selectors, **options):
            await admin.execute_command(*line.split(" "))
    try:
        yield found
    finally:
        print("refused:", await found.denied())  # what a failing test lacked
        await admin.aclose()
