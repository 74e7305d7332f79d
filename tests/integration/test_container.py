"""A dependency-injector container around a bus on a real server: what is opened when and for whom, and what is closed again."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Any, Self

import pytest

pytest.importorskip("dependency_injector")

from dependency_injector import containers, providers
from dependency_injector.wiring import Closing, Provide, inject

from command_bus import Command, CommandBus, CommandContext, EntityId, HandlerRegistry, RegistrationError
from command_bus.container import Container, container_lifespan
from command_bus.embedded import EmbeddedServer
from command_bus.transport.redis.memory import MemoryClients

pytestmark = pytest.mark.server

ENTITIES, EACH, CONCURRENCY = 40, 5, 20
functions = HandlerRegistry()
methods = HandlerRegistry()


class Pool:
    """A resource of the process; knows the sessions that are open."""

    def __init__(self) -> None:
        self.open = True
        self.sessions: set[object] = set()
        self.made = 0
        self.most = 0

    def session(self) -> object:
        assert self.open, "a session of a closed pool"
        session = object()
        self.sessions.add(session)
        self.made += 1
        self.most = max(self.most, len(self.sessions))
        return session


pools: list[Pool] = []


async def open_pool() -> AsyncIterator[Pool]:
    await asyncio.sleep(0)
    pools.append(pool := Pool())
    yield pool
    await asyncio.sleep(0)
    pool.open = False


async def open_session(pool: Pool) -> AsyncIterator[object]:
    await asyncio.sleep(0)
    session = pool.session()
    yield session
    await asyncio.sleep(0)
    pool.sessions.remove(session)


class Add(Command[int], entity="box"):
    box: EntityId
    amount: int = 1


class Take(Command[int], entity="box"):
    box: EntityId


class Boxes:
    """A handlers' object that has a session for as long as one command takes."""

    live = 0

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._session: object | None = None

    async def __aenter__(self) -> Self:
        await asyncio.sleep(0)
        self._session = self._pool.session()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pool.sessions.remove(self._session)

    @methods.handles(Add)
    async def add(self, command: Add, context: CommandContext) -> int:
        await asyncio.sleep(0.002)
        assert self._session in self._pool.sessions
        return command.amount + context.attempt

    @methods.handles(Take)
    def take(self, command: Take) -> int:
        assert self._session in self._pool.sessions
        return -1


class App(Container):
    pool = providers.Resource(open_pool)
    session = providers.ContextLocalResource(open_session, pool)
    boxes = providers.Factory(Boxes, pool)


@functions.handles(Add)
@inject
async def add(
    command: Add,
    session: object = Closing[Provide[App.session]],
    pool: Pool = Provide[App.pool],
) -> int:
    await asyncio.sleep(0.002)
    assert session in pool.sessions
    return command.amount


@pytest.fixture
def app(server: EmbeddedServer) -> Iterator[App]:
    """Return a container on a namespace of its own."""
    pools.clear()
    container = App()
    container.config.from_dict({"url": server.url, "namespace": f"c-{secrets.token_hex(4)}", "concurrency": CONCURRENCY})
    yield container
    container.unwire()


async def answers(bus: CommandBus, kind: Any) -> list[Any]:
    """Return the replies to several commands for each of many entities."""
    calls = [bus.call(kind(box=f"b-{number}"), timeout=20) for number in range(ENTITIES) for _ in range(EACH)]
    return await asyncio.gather(*calls)


def assert_one_session_per_command(pool: Pool) -> None:
    assert pool.made == ENTITIES * EACH
    assert not pool.sessions
    assert 1 < pool.most <= CONCURRENCY  # they ran side by side, and each had its own


async def test_injected_functions_have_a_pool_per_process_and_a_session_per_command(app: App) -> None:
    app.registry.override(functions)
    bus = app.bus()
    async with bus:
        assert not pools  # nothing is opened before a worker starts
        async with app.worker():
            [pool] = pools
            assert await answers(bus, Add) == [1] * (ENTITIES * EACH)
        assert_one_session_per_command(pool)
        assert not pool.open


async def test_methods_of_a_provided_object_have_an_object_per_command(app: App) -> None:
    registry = HandlerRegistry()
    registry.include(app.boxes)
    app.registry.override(registry)
    async with app.bus() as bus:
        async with app.worker():
            assert await answers(bus, Add) == [2] * (ENTITIES * EACH)
            assert_one_session_per_command(pools[0])
            assert await answers(bus, Take) == [-1] * (ENTITIES * EACH)
            assert not pools[0].sessions
        assert not pools[0].open


async def test_workers_share_the_resources_and_the_last_one_closes_them(app: App) -> None:
    app.registry.override(functions)
    async with app.bus() as bus:
        first, second = app.worker(), app.worker(concurrency=3)
        await asyncio.gather(first.start(), second.start())
        await first.stop()
        [pool] = pools
        assert pool.open
        assert await bus.call(Add(box="b"), timeout=10) == 1
        await second.stop()
        assert not pool.open
        async with app.worker():  # and a later one opens them again
            assert await bus.call(Add(box="b"), timeout=10) == 1
        assert [pool.open for pool in pools] == [False, False]


async def test_a_handler_that_is_not_wired_is_found_at_the_start(app: App) -> None:
    app.registry.override(functions)
    app.modules.override([])
    bus, worker = app.bus(), app.worker()
    with pytest.raises(RegistrationError, match=r"add: parameter 'session' .* not wired"):
        await worker.start()
    assert [pool.open for pool in pools] == [False]
    assert not bus.is_open


async def refused(pool: Pool) -> AsyncIterator[None]:
    assert pool.open
    raise ConnectionRefusedError("the ledger is down")
    yield


class Broken(App):
    ledger = providers.Resource(refused, App.pool)


async def test_a_resource_that_fails_stops_the_start_and_what_was_open_is_closed(server: EmbeddedServer) -> None:
    pools.clear()
    broken = Broken()
    broken.config.from_dict({"url": server.url})
    with pytest.raises(ConnectionRefusedError):
        await broken.worker().start()
    assert [pool.open for pool in pools] == [False]
    assert not broken.bus().is_open


async def test_it_may_be_a_part_of_the_applications_container(server: EmbeddedServer) -> None:
    registry = HandlerRegistry()
    greeting = f"hello {secrets.token_hex(2)}"

    async def open_greeting() -> AsyncIterator[str]:
        await asyncio.sleep(0)
        yield greeting

    class Whole(containers.DeclarativeContainer):
        config = providers.Configuration()
        greeting = providers.Resource(open_greeting)
        messaging = providers.Container(Container, config=config.messaging, registry=providers.Object(registry))

    @registry.handles(Take)
    @inject
    async def take(command: Take, greeting: str = Provide[Whole.greeting]) -> int:
        return len(greeting)

    whole = Whole()
    whole.config.from_dict({"messaging": {"url": server.url, "namespace": f"c-{secrets.token_hex(4)}"}})
    async with whole.messaging().bus() as bus, whole.messaging().worker():
        assert await bus.call(Take(box="b"), timeout=10) == len(greeting)
    whole.unwire()


async def test_tests_can_put_a_server_in_memory_in_its_place() -> None:
    registry = HandlerRegistry()

    @registry.handles(Take)
    async def take(command: Take) -> int:
        return 7

    container = Container(registry=providers.Object(registry), connections=providers.Singleton(MemoryClients))
    container.config.from_dict({"url": "redis://nowhere"})
    async with container.bus() as bus, container.worker():
        assert await bus.call(Take(box="b"), timeout=10) == 7


async def test_a_lifespan_needs_no_container_of_a_certain_library(server: EmbeddedServer) -> None:
    happened: list[str] = []

    class Resources:
        def init_resources(self) -> None:
            happened.append("open")

        async def shutdown_resources(self) -> None:
            happened.append("closed")

    bus = CommandBus(
        server.url, namespace=f"c-{secrets.token_hex(4)}", registry=HandlerRegistry(), lifespan=container_lifespan(Resources())
    )
    async with bus, bus.worker():
        assert happened == ["open"]
    assert happened == ["open", "closed"]
