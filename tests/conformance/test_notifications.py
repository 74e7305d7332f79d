"""Notices of a bus to others: the same tests for pub/sub of its own server and for NATS."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from command_bus import Command, CommandBus, CommandContext, EntityId, Envelope, Event, HandlerRegistry, Reject
from command_bus.notifications import NatsNotifier, Notice, Notifier, RedisNotifier
from command_bus.transport.redis.keys import GROUP
from command_bus.workflows import chain
from tests.conformance.conftest import Sandbox
from tests.conformance.nats_server import NatsServer
from tests.conformance.put_service import until

registry = HandlerRegistry()
hanging: list[str] = []


class Pack(Command[int], entity="order"):
    order: EntityId
    fails: bool = False


class Mail(Command[None], entity="mail"):
    to: EntityId


class Packed(Event, entity="order", name="order.packed"):
    order: EntityId


class Ping(Command[None]):
    """Without an entity."""


class Hang(Command[None], entity="order"):
    order: EntityId


@registry.handles(Pack)
async def pack(command: Pack, context: CommandContext) -> int:
    if command.fails:
        raise Reject("no")
    context.send(Mail(to=str(command.order)))
    context.publish(Packed(order=command.order))
    return 1


@registry.handles(Mail)
async def mail(command: Mail) -> None:
    return None


@registry.handles(Hang)
async def hang(command: Hang) -> None:
    hanging.append(str(command.order))
    await asyncio.sleep(60)


@dataclass
class Road:
    """A way for notices, with a look at what listens there."""

    sandbox: Sandbox
    nats: NatsServer | None
    client: Any = None
    bucket: Any = None

    def notifier(self, **options: Any) -> Notifier:
        if self.nats is None:
            return RedisNotifier(**({"hint_ttl": 60.0} | options))
        return NatsNotifier(self.client, kv=self.bucket, prefix=self.sandbox.namespace, **options)

    def bus(self, **options: Any) -> CommandBus:
        return self.sandbox.bus(registry=registry, notifier=self.notifier(**options))

    async def listened(self) -> int:
        """Return how many subscriptions the server has."""
        if self.nats is not None:
            return self.nats.subscriptions(f"{self.sandbox.namespace}.")
        client = self.sandbox.client()
        prefix = f"command_bus:{self.sandbox.namespace}:"
        plain: Any = await client.pubsub_channels(f"{prefix}*")
        patterns: Any = await client.pubsub_numpat()
        await client.aclose()
        return len(plain) + int(patterns)

    async def forget_hint(self, entity_type: str) -> None:
        """Let a hint expire."""
        if self.nats is not None:
            await self.bucket.purge(f"{self.sandbox.namespace}.{entity_type}")
            return
        client = self.sandbox.client()
        await client.delete(f"{{{self.sandbox.namespace}:0}}:hint:{entity_type}")
        await client.aclose()

    async def publish(self, kind: str, entity_type: str, message: bytes) -> None:
        """Publish as anybody can who has the right."""
        if self.nats is not None:
            await self.client.publish(f"{self.sandbox.namespace}.{kind}.{entity_type}", message)
            return
        client = self.sandbox.client()
        await client.publish(f"command_bus:{self.sandbox.namespace}:{kind}:{entity_type}", message)
        await client.aclose()


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], NatsServer]]:
    """Start the server at its first use."""
    started: list[NatsServer] = []

    def get() -> NatsServer:
        if not started:
            server = NatsServer(tmp_path_factory.mktemp("nats"))
            server.start()
            started.append(server)
        return started[0]

    yield get
    for server in started:
        server.kill()


@pytest.fixture(params=["pubsub", "nats"])
async def road(request: pytest.FixtureRequest, sandbox: Sandbox, nats_server: Callable[[], NatsServer]) -> AsyncIterator[Road]:
    if request.param == "pubsub":
        yield Road(sandbox, None)
        return
    server = nats_server()
    async with connected(server) as client:
        bucket = await client.jetstream().create_key_value(bucket=f"hints-{secrets.token_hex(4)}", ttl=60)
        yield Road(sandbox, server, client, bucket)


def connected(server: NatsServer, **options: Any) -> Any:
    from contextlib import asynccontextmanager

    import nats

    @asynccontextmanager
    async def connecting() -> AsyncIterator[Any]:
        quiet = {"reconnect_time_wait": 0.05, "max_reconnect_attempts": -1, "error_cb": _ignore}
        client = await nats.connect(server.url, **{**quiet, **options})
        yield client
        await client.close()

    return connecting()


async def _ignore(error: Exception) -> None:
    """Keep errors of the client out of the log: a killed server is what a test wants."""


async def come(listener: AsyncIterator[Any]) -> Any:
    async with asyncio.timeout(10):
        return await anext(listener)


async def test_a_type_with_new_work_wakes_who_listens_for_it(road: Road) -> None:
    async with road.bus() as bus, road.bus() as other:
        async with (
            other.notifier.listen("work", types={"order"}) as orders,
            other.notifier.listen("work", types={None, "mail"}) as rest,
            other.notifier.listen("work") as everything,
        ):
            await bus.dispatch(Pack(order="1"), delay=60)
            await bus.dispatch(Ping())
            assert await come(rest) is None
            await bus.dispatch_batch([Pack(order=f"{number}") for number in range(20)])
            assert await come(orders) == "order"
            assert [await come(everything), await come(everything)] == [None, "order"]
            await bus.dispatch(Mail(to="a"))
            assert await come(rest) == "mail"
        assert bus.notifier.figures.failed == 0
        assert [await other.notifier.consume_hint("order") for _ in range(21)] == [True] * 20 + [False]
        assert [await other.notifier.consume_hint(None) for _ in range(2)] == [True, False]


async def test_fifty_racing_consumers_of_twenty_commands_are_woken_twenty_times(road: Road) -> None:
    async with road.bus() as bus, road.bus() as agents, road.bus() as more:
        async with agents.notifier.listen("work", types={"order"}) as woken:
            await bus.dispatch_batch([Pack(order=f"{number}") for number in range(20)])
            await come(woken)
        racers = [*(agents for _ in range(25)), *(more for _ in range(25))]
        wakes = await asyncio.gather(*(each.notifier.consume_hint("order") for each in racers))
        assert sum(wakes) == 20


async def test_without_a_hint_everybody_wakes(road: Road) -> None:
    async with road.bus() as bus:
        assert [await bus.notifier.consume_hint("order") for _ in range(3)] == [True] * 3, "there never was one"
        async with bus.notifier.listen("work") as woken:
            await bus.dispatch(Pack(order="1"))
            await come(woken)
        assert [await bus.notifier.consume_hint("order") for _ in range(2)] == [True, False]
        await road.forget_hint("order")
        assert await bus.notifier.consume_hint("order"), "it has expired"


async def test_what_a_handler_sends_is_told_with_its_settlement(road: Road) -> None:
    async with road.bus() as bus, bus.notifier.listen("work", types={"mail"}) as woken, bus.worker():
        await bus.call(Pack(order="1"), timeout=10)
        assert await come(woken) == "mail"
        await bus.wait_idle(10)


async def test_settlements_are_told_if_they_are_asked_for(road: Road) -> None:
    async with (
        road.bus(kinds=("settled",)) as bus,
        road.bus() as plain,
        plain.notifier.listen("settled", types={"order"}) as settled,
        plain.notifier.listen("work") as woken,
    ):
        async with bus.worker():
            await plain.dispatch_batch(
                [Envelope(Pack(order="1"), command_id="c-1"), Envelope(Pack(order="1", fails=True), command_id="c-2")]
            )
            expected = [("c-1", "completed"), ("c-2", "rejected")]
            got = [await come(settled) for _ in expected]
            assert got == [Notice("settled", "order", "1", command_id, "Pack", status=status) for command_id, status in expected]
            await bus.wait_idle(10)
        assert await come(woken) == "order"
        async with plain.worker():
            await plain.call(Pack(order="2"), timeout=10)
            await plain.wait_idle(10)
        assert plain.notifier.figures.sent == bus.notifier.figures.sent - 3 + 3


async def test_of_settled_commands_those_that_are_named_are_told(road: Road) -> None:
    async with (
        road.bus(kinds=("settled",), settled={"command_bus.Chain", "Mail"}) as bus,
        bus.notifier.listen("settled") as settled,
        bus.worker(),
    ):
        receipt = await bus.dispatch(chain(Pack(order="1"), Pack(order="2")))
        told = [await come(settled) for _ in range(3)]
        assert sorted(each.name for each in told) == ["Mail", "Mail", "command_bus.Chain"]
        assert [(each.command_id, each.status) for each in told if each.entity_type is None] == [
            (receipt.command_id, "completed")
        ]
        await bus.wait_idle(10)
        assert bus.notifier.figures.sent == 3, "nothing of Pack"


async def test_what_is_published_is_told_to_everyone_who_listens(road: Road) -> None:
    async with (
        road.bus(kinds=("published",)) as bus,
        road.bus() as other,
        other.notifier.listen("published", types={"order"}) as heard,
        bus.notifier.listen("published") as too,
    ):
        published = await bus.publish(Packed(order="1"))
        assert await come(heard) == await come(too) == Notice("published", "order", "1", published.event_id, "order.packed")
        async with bus.worker():
            await other.call(Pack(order="2"), timeout=10)
            told = await come(heard)
            assert (told.entity_id, told.name, told.missed) == ("2", "order.packed", False)


async def test_a_lost_lease_is_told(road: Road) -> None:
    hanging.clear()
    workers = road.sandbox.bus(registry=registry, notifier=road.notifier(), lease=1.0, grace=0.0)
    async with road.bus() as bus, bus.notifier.listen("lease_lost") as lost, workers, workers.worker() as worker:
        await bus.dispatch(Hang(order="1"), command_id="c-1")
        await until(lambda: hanging)
        async with road.sandbox.client() as client:
            ready = f"{{{bus.settings.namespace}:0}}:ready"
            (pending, *_) = await client.xpending_range(ready, GROUP, "-", "+", 10)
            await client.xack(ready, GROUP, pending["message_id"])  # as the worker that takes it over does
        assert await come(lost) == Notice("lease_lost", "order", "1", "c-1", "Hang", worker=worker.name)


async def test_a_subscription_is_shared_and_ends_with_its_last_listener(road: Road) -> None:
    async with road.bus() as bus:
        assert await road.listened() == 0
        async with bus.notifier.listen("work", types={"order"}) as first:
            async with bus.notifier.listen("work", types={"order"}) as second:
                assert await road.listened() == 1
                await bus.dispatch(Pack(order="1"))
                assert (await come(first), await come(second)) == ("order", "order")
            await bus.dispatch(Pack(order="1"))
            assert await come(first) == "order"
        await until(_nobody_at(road))
        async with bus.notifier.listen("work", types={"order"}) as again:
            await bus.dispatch(Pack(order="1"))
            assert await come(again) == "order"
    await until(_nobody_at(road))


def _nobody_at(road: Road) -> Callable[[], Any]:
    async def nobody() -> bool:
        return await road.listened() == 0

    return nobody


async def test_a_listener_ends_with_its_bus(road: Road) -> None:
    async with road.bus() as bus, bus.notifier.listen("work") as woken:
        ending = asyncio.create_task(bus.close())
        assert [each async for each in woken] == []
        await ending


async def test_172_what_is_no_notice_is_counted_and_dropped(road: Road) -> None:
    async with road.bus() as bus, bus.notifier.listen("work", types={"order"}) as woken:
        garbage = [
            b"\xff",
            b"[]",
            b"{}",
            b"null",
            b"[" * 20_000,
            b'{"kind":"work","entity_type":7}',
            b'{"kind":"work","entity_type":"mail"}',
        ]
        garbage += [
            b'{"kind":"settled","entity_type":"order"}',
            b'{"kind":"work","entity_type":"order","commands":-1}',
            b"[" * 9_000,
        ]
        for each in garbage:
            await road.publish("work", "order", each)
        await road.publish("work", "order", b'{"kind":"work","entity_type":"order","more":1}')
        assert await come(woken) == "order"
        assert bus.notifier.figures.unreadable == len(garbage)


async def test_a_slow_listener_misses_the_oldest(road: Road) -> None:
    async with road.bus(kinds=("settled",)) as bus, bus.notifier.listen("settled") as settled:
        announcer = bus.notifier.open.announcer
        for number in range(1_005):
            announcer.tell(Notice("settled", "order", f"{number}"))
        await until(lambda: settled.missed == 5)
        assert (await come(settled)).entity_id == "5"


# One of the two alone.


@pytest.mark.server
async def test_a_cut_listener_is_back_and_wakes_for_what_it_may_have_missed(sandbox: Sandbox) -> None:
    if sandbox.name == "memory":
        pytest.skip("no connection to cut")
    async with sandbox.bus(notifier=RedisNotifier()) as bus, bus.notifier.listen("work", types={"order", "mail"}) as woken:
        client = sandbox.client()
        await client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        await client.aclose()
        assert {await come(woken), await come(woken)} == {"order", "mail"}


@pytest.mark.server
async def test_a_cut_listener_is_told_that_it_may_have_missed_events(sandbox: Sandbox) -> None:
    if sandbox.name == "memory":
        pytest.skip("no connection to cut")
    async with sandbox.bus(notifier=RedisNotifier()) as bus, bus.notifier.listen("published", types={"order"}) as heard:
        client = sandbox.client()
        await client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        await client.aclose()
        assert await come(heard) == Notice("published", "order", missed=True)


@pytest.fixture
async def nats_alone(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.kill()


async def test_a_killed_nats_server_stops_no_command_and_is_told_when_it_is_back(
    sandbox: Sandbox, nats_alone: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "command_bus.notifications")
    async with (
        connected(nats_alone) as client,
        sandbox.bus(registry=registry, notifier=NatsNotifier(client, prefix="shop")) as bus,
    ):
        async with bus.notifier.listen("work", types={"order"}) as woken:
            await bus.dispatch(Pack(order="1"))
            assert await come(woken) == "order"
            nats_alone.kill()
            await until(lambda: not client.is_connected)
            for number in range(10):
                await bus.dispatch(Pack(order=f"{number}"))
                assert await bus.notifier.consume_hint("order")
            await until(lambda: bus.notifier.figures.failed > 1)
            nats_alone.start()
            assert await come(woken) == "order"
            await until(lambda: bus.notifier.figures.sent == 2)
        texts = [record.getMessage() for record in caplog.records]
        assert [text.partition(",")[0] for text in texts] == [
            "notices cannot be sent",
            "notices are sent again; 0 were left out so far",
        ]


async def test_without_a_bucket_or_with_one_that_is_gone_everybody_wakes(sandbox: Sandbox, nats_alone: NatsServer) -> None:
    async with connected(nats_alone) as client:
        bucket = await client.jetstream().create_key_value(bucket="gone", ttl=60)
        notifiers = [NatsNotifier(client, kv=kv, prefix=f"p{n}") for n, kv in enumerate((None, "never-made", bucket))]
        await client.jetstream().delete_key_value("gone")
        for notifier in notifiers:
            async with sandbox.bus(registry=registry, notifier=notifier) as bus, bus.notifier.listen("work") as woken:
                await bus.dispatch(Pack(order="1"))
                assert await come(woken) == "order"
                assert [await bus.notifier.consume_hint("order") for _ in range(3)] == [True] * 3
                assert bus.notifier.figures.failed == 0


async def test_171_a_bucket_without_a_ttl_is_warned_of(
    sandbox: Sandbox, nats_alone: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(nats_alone) as client:
        await client.jetstream().create_key_value(bucket="endless")
        async with sandbox.bus(registry=registry, notifier=NatsNotifier(client, kv="endless")) as bus:
            for _ in range(2):
                assert await bus.notifier.consume_hint("order")
    assert ["endless has no ttl" in record.getMessage() for record in caplog.records] == [True]


async def test_a_function_that_connects_is_called_late_and_its_client_closed(sandbox: Sandbox, nats_alone: NatsServer) -> None:
    import nats

    made: list[Any] = []

    async def connect() -> Any:
        made.append(await nats.connect(nats_alone.url))
        return made[-1]

    async with sandbox.bus(registry=registry, notifier=NatsNotifier(connect)) as bus:
        assert not made
        async with bus.notifier.listen("work", types={"order"}) as woken:
            await bus.dispatch(Pack(order="1"))
            assert await come(woken) == "order"
    assert [each.is_closed for each in made] == [True]
