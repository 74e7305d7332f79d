"""A bank behind two gateways, one with its classes and one without, and a client."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import pytest_asyncio

pytest.importorskip("starlette")

from command_bus import CommandBus, HandlerRegistry
from command_bus.embedded import EmbeddedServer
from command_bus.gateway import Gateway, gateway
from tests.gateway.bank import Bank, allowed, open_bank, token_of

_numbers = itertools.count(1)


@dataclass
class Client:
    """Somebody with a token, in front of a gateway."""

    app: Any
    name: str = "ops"
    base: str = "http://bus.example"
    headers: dict[str, str] = field(default_factory=dict)

    async def ask(self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **options: Any) -> httpx.Response:
        """Ask with the client's token, unless the headers have another."""
        transport = httpx.ASGITransport(self.app, client=("10.1.1.1", 5000))
        given = {"Authorization": f"Bearer {token_of(self.name)}", **self.headers, **(headers or {})}
        async with httpx.AsyncClient(transport=transport, base_url=self.base, headers=given, trust_env=False) as client:
            return await client.request(method, path, **options)

    async def send(self, name: str, /, **fields: Any) -> httpx.Response:
        return await self.ask("POST", f"/commands/{name}", json=fields)

    async def call(self, name: str, /, **fields: Any) -> httpx.Response:
        return await self.ask("POST", f"/commands/{name}", json=fields, headers={"Prefer": "wait=5"})

    def as_(self, name: str) -> Client:
        return Client(self.app, name, self.base)


def fresh(what: str = "a") -> str:
    """Return an id that no other test of this process has."""
    return f"{what}-{next(_numbers)}"


@pytest.fixture(scope="session")
def bank_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def opened(bank_server: EmbeddedServer, request: pytest.FixtureRequest) -> AsyncGenerator[tuple[CommandBus, Bank]]:
    """Yield a bank whose worker runs, the same for all tests of a module."""
    async with open_bank(bank_server.url, request.node.name.replace("/", ".").removesuffix(".py")) as opened:
        yield opened


@pytest.fixture
def bank(opened: tuple[CommandBus, Bank]) -> Bank:
    return opened[1]


@pytest.fixture
def bus(opened: tuple[CommandBus, Bank]) -> CommandBus:
    return opened[0]


@pytest.fixture
def app(bus: CommandBus) -> Gateway:
    return gateway(bus, allow=allowed())


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def strange_bus(opened: tuple[CommandBus, Bank]) -> AsyncGenerator[CommandBus]:
    """Yield a bus of the same namespace that has no classes."""
    bus, _ = opened
    async with CommandBus(bus.url, namespace=bus.settings.namespace, registry=HandlerRegistry()) as strange:
        yield strange


@pytest.fixture(params=["classes", "announced"])
def each_client(request: pytest.FixtureRequest, bus: CommandBus, strange_bus: CommandBus) -> Client:
    """Return a client of a gateway with the classes, and one of a gateway that knows what the workers announce."""
    return Client(gateway(bus if request.param == "classes" else strange_bus, allow=allowed()))


@pytest.fixture
def ops(app: Gateway) -> Client:
    return Client(app)
