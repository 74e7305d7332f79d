"""Commands with every kind of outcome, dispatched and settled without Spark; and reading views."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from redis import Redis

from command_bus import Command, CommandBus, EntityId, Envelope, HandlerRegistry, Reject, RetryPolicy
from command_bus.serialization.outcome import OutcomeRecord
from command_bus.serialization.reply import Completed, pack_reply
from command_bus.spark import PartitionDispatcher
from command_bus.spark.target import Target
from command_bus.spark.writing.writer import commit_dispatch
from command_bus.transport.ports.bulk import Opening
from tests.spark.trucks import Namespace, until

__all__ = [
    "DAY",
    "FourShards",
    "Lock",
    "Pay",
    "Slow",
    "key_of",
    "load",
    "numbers_in",
    "read",
    "registry_of",
    "settle",
    "settled",
    "target_of",
]


ONCE = RetryPolicy(attempts=1)
DAY = 86_400_000


class Pay(Command[int], entity="account", retry=RetryPolicy(attempts=2, delay=0.001)):
    account: EntityId
    amount: int


class Lock(Command[None], entity="locker", retry=ONCE, on_poison="park"):
    locker: EntityId
    broken: bool = False


class Slow(Command[None], entity="snail", retry=RetryPolicy(attempts=9, delay=3600, max_delay=3600, jitter=0)):
    snail: EntityId
    sick: bool = False


def registry_of(*, let_go: threading.Event | None = None) -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handles(Pay)
    def pay(command: Pay) -> int:
        if command.amount < 0:
            raise Reject("no money", code="poor", details={"short": -command.amount})
        if command.amount == 13:
            raise ValueError("unlucky")
        return command.amount * 2

    @registry.handles(Lock)
    def lock(command: Lock) -> None:
        if command.broken:
            raise RuntimeError("jammed")

    @registry.handles(Slow)
    async def slow(command: Slow) -> None:
        if command.sick:
            raise RuntimeError("sick")
        if let_go is not None:
            await asyncio.to_thread(let_go.wait)

    return registry


class FourShards(Namespace):
    """A namespace with four shards."""

    def bus(self, **arguments: Any) -> CommandBus:
        return super().bus(shards=4, **arguments)


def target_of(namespace: Namespace) -> Target:
    return Target.resolve(**namespace.options)


def load(
    namespace: Namespace, commands: list[Command[Any]], dispatch_id: str = "d", *, keep_ms: int = DAY, commit: bool = True
) -> None:
    """Dispatch commands without Spark, with the ids c0, c1, …"""
    opening = Opening(what="tests", keep_ms=keep_ms)
    with PartitionDispatcher(target_of(namespace), dispatch_id=dispatch_id, opening=opening) as dispatcher:
        dispatcher.dispatch_batch(Envelope(command, command_id=f"c{number}") for number, command in enumerate(commands))
    if commit:
        commit_dispatch(target_of(namespace), dispatcher.version, opening, [dispatcher.result])


def read(spark: SparkSession, namespace: Namespace, view: str = "outcomes", **options: Any) -> DataFrame:
    given = {name: str(value) for name, value in options.items()}
    return spark.read.format("command_bus").options(**namespace.options, view=view, **given).load()


def settled(namespace: Namespace) -> None:
    until(lambda: namespace.depth() == 0)


def key_of(namespace: Namespace, dispatch_id: str, shard: int = 0) -> str:
    return f"{{{namespace.name}:{shard}}}:b:{dispatch_id}:out"


def settle(
    namespace: Namespace, dispatch_id: str, numbers: range, *, shard: int = 0, at_ms: Callable[[int], int] | None = None
) -> None:
    """Store outcomes of commands with these numbers, as workers would: for large reads, or at chosen times."""
    with Redis.from_url(namespace.url) as client:
        pipeline = client.pipeline(transaction=False)
        for number in numbers:
            reply = pack_reply(f"c{number}", Completed(b"\xc0"))
            record = OutcomeRecord(
                "completed", "Pay", "account", f"a{number % 7}", 1, "w", 1, 1, number, f"1-{number}", reply
            ).pack()
            entry = "*" if at_ms is None else f"{at_ms(number)}-*"
            pipeline.xadd(key_of(namespace, dispatch_id, shard), {"r": record}, id=entry)
        pipeline.execute()


def numbers_in(rows: list[Row]) -> list[int]:
    return [int(row["command_id"][1:]) for row in rows]
