"""A namespace on a server, the commands in its mailboxes, and the commands that the tests of this folder dispatch."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pydantic import BaseModel, Field
from redis import Redis

from command_bus import Command, CommandBus, EntityId, HandlerRegistry
from command_bus.serialization.envelope import unpack_envelope
from command_bus.serialization.msgpack import unpack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Landed", "Load", "Move", "Namespace", "Stop", "Weigh", "Where", "halved", "journeys", "until", "working"]


class Move(Command[int], entity="truck"):
    """A command of scalars with bounds, which Arrow can check."""

    truck: EntityId
    seq: int
    load: float = Field(default=0.0, ge=0, le=100)
    note: str | None = None


class Stop(Command[None], entity="truck"):
    truck: EntityId
    seq: int
    why: str = Field(max_length=10)


class Weigh(Command[None], entity="truck"):
    truck: EntityId
    seq: int
    free: float = Field(allow_inf_nan=True)
    finite: float


class Where(BaseModel):
    town: str
    at: tuple[float, float]


class Load(Command[None], entity="truck"):
    """A command of types that only the model can check."""

    truck: EntityId
    seq: int
    at: datetime
    weight: Decimal
    where: Where
    tags: dict[str, int]
    parts: list[str]


def halved(row: dict[str, Any]) -> Move:
    """Make a command; a mapper that is found by its name."""
    return Move(truck=row["truck"], seq=row["seq"], load=row["load"] / 2)


@dataclass(frozen=True)
class Landed:
    """A command in its mailbox."""

    command_id: str
    name: str
    entity: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class Namespace:
    """A namespace on a server."""

    url: str
    name: str = field(default_factory=lambda: f"t-{secrets.token_hex(4)}")

    @property
    def options(self) -> dict[str, str]:
        """Its URL and name as arguments and options."""
        return {"url": self.url, "namespace": self.name}

    def bus(self, **arguments: Any) -> CommandBus:
        return CommandBus(self.url, namespace=self.name, **arguments)

    def mailboxes(self) -> dict[str, list[Landed]]:
        """Return the commands in each mailbox, in order, as Redis has them."""
        with Redis.from_url(self.url) as client:
            keys = sorted(client.scan_iter(f"{{{self.name}:*}}:m:*", count=10_000))
            pipeline = client.pipeline(transaction=False)
            for key in keys:
                pipeline.xrange(key)
            streams: list[Any] = pipeline.execute()
            alone = {
                name: value for key in client.scan_iter(f"{{{self.name}:*}}:lone") for name, value in client.hgetall(key).items()
            }
        found: dict[str, list[Landed]] = {}
        for name, stream in zip([key.partition(b"}:m:")[2] for key in keys], streams, strict=True):
            envelopes = [fields[b"e"] if b"e" in fields else alone[name] for _, fields in stream]
            found[unquote(name.decode())] = [_landed(envelope) for envelope in envelopes]
        for name, envelope in alone.items():
            found.setdefault(unquote(name.decode()), [_landed(envelope)])
        return found

    def landed(self) -> list[Landed]:
        """Return all commands in mailboxes."""
        return [each for mailbox in self.mailboxes().values() for each in mailbox]

    def seqs(self) -> dict[str, list[int]]:
        """Return the numbers of each truck's waiting commands."""
        return {
            name.removeprefix("truck:"): [each.fields["seq"] for each in mailbox] for name, mailbox in self.mailboxes().items()
        }

    def depth(self) -> int:
        """Return the number of waiting commands, as the namespace counts them."""
        with Redis.from_url(self.url) as client:
            return sum(int(client.hget(key, "depth") or 0) for key in client.scan_iter(f"{{{self.name}:*}}:stats"))


def _landed(packed: bytes) -> Landed:
    envelope = unpack_envelope(packed)
    return Landed(envelope.command_id, envelope.name, envelope.entity_id or "", unpack(envelope.payload))


def journeys(spark: SparkSession, trucks: int, each: int, *, partitions: int = 3) -> DataFrame:
    """Return so many moves for each truck, shuffled: columns truck, seq, load, note."""
    from pyspark.sql import functions as F  # noqa: N812

    return (
        spark.range(trucks * each, numPartitions=partitions)
        .select(
            F.concat(F.lit("t"), (F.col("id") % trucks).cast("string")).alias("truck"),
            F.floor(F.col("id") / trucks).cast("long").alias("seq"),
            (F.col("id") % 100).cast("double").alias("load"),
            F.when(F.col("id") % 3 == 0, F.lit("third")).alias("note"),
        )
        .orderBy(F.xxhash64("seq", "truck"))
        .repartition(partitions)
    )


def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait for a condition to become true, and return its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)
    return value


@contextmanager
def working(namespace: Namespace, registry: HandlerRegistry, **settings: Any) -> Iterator[None]:
    """Run a worker in a thread of its own, while this one waits for Spark."""
    ready, stop = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    async def run() -> None:
        async with namespace.bus(registry=registry, **settings) as bus, bus.worker():
            ready.set()
            await asyncio.to_thread(stop.wait)

    def main() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=main, name="worker")
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        if failed:
            raise failed[0]
