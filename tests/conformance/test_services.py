"""Other services by configuration: each a bus, opened when it is first asked for."""

from __future__ import annotations

import asyncio

import pytest

from command_bus import BusClosed, BusSettings, Command, CommandContext, EntityId, HandlerRegistry, UnknownService
from command_bus.errors import InvalidSettings
from tests.conformance.conftest import Sandbox


class Reserve(Command[int], entity="stock"):
    stock: EntityId
    pieces: int


class Place(Command[int], entity="order"):
    order: EntityId


def shop() -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handles(Place)
    async def place(command: Place, context: CommandContext) -> int:
        warehouse = await context.bus.services.get("warehouse")  # type: ignore[union-attr]
        return await warehouse.call(Reserve(stock=command.order, pieces=2), timeout=10)

    return registry


async def test_a_handler_calls_another_service(sandbox: Sandbox) -> None:
    registry = HandlerRegistry()

    @registry.handles(Reserve)
    async def reserve(command: Reserve, context: CommandContext) -> int:
        assert context.headers["hops"] == "1"
        return command.pieces

    other = Sandbox(sandbox.name, sandbox.clients, url=sandbox.url)
    url = f"redis://unused/0?namespace={other.namespace}"
    try:
        async with other.bus(registry=registry) as warehouse, warehouse.worker():
            async with sandbox.bus(registry=shop(), services={"warehouse": url}) as bus, bus.worker():
                assert await bus.call(Place(order="o-1"), timeout=10) == 2
                one, two = await asyncio.gather(*(bus.services.get("warehouse") for _ in range(2)))
                assert one is two
                assert one.settings.namespace == other.namespace
                with pytest.raises(
                    UnknownService, match="'warehous' is configured in services; there are: warehouse; did you mean"
                ):
                    await bus.services.get("warehous")
            with pytest.raises(BusClosed):
                await one.stats()
            with pytest.raises(BusClosed):
                await bus.services.get("warehouse")
            async with bus:  # once more
                again = await bus.services.get("warehouse")
                assert again is not one
                assert await again.call(Reserve(stock="s", pieces=1), headers={"hops": "1"}, timeout=10) == 1
    finally:
        await other.clean()


def test_settings_of_a_service_are_those_of_the_bus_but_for_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "COMMAND_BUS_SERVICES",
        '{"mail": "redis://:secret@mail:6379/0", "stock": "rediss://s/?shards=4&namespace=w&db=2", "near": "", "by": "?shards=3"}',
    )
    monkeypatch.setenv("COMMAND_BUS_SIGNING_KEYS", '["k1:0123456789abcdef0123456789abcdef"]')
    settings = BusSettings(url="rediss://here/0", namespace="shop", shards=2, tls_ca="/ca.pem")
    mail, stock = settings.service("mail"), settings.service("stock")
    assert (mail.server_url, mail.namespace, mail.shards, mail.tls_ca) == ("redis://:secret@mail:6379/0", "mail", 1, None)
    assert (stock.server_url, stock.namespace, stock.shards, str(stock.tls_ca)) == ("rediss://s/?db=2", "w", 4, "/ca.pem")
    near, by = settings.service("near"), settings.service("by")
    assert (near.home, str(near.tls_ca), by.home, by.shards) == (
        ("rediss://here/0", "near"),
        "/ca.pem",
        ("rediss://here/0", "by"),
        3,
    )
    assert stock.signing_keys == settings.signing_keys
    assert "secret" not in repr(settings)


def test_211_a_service_that_is_none_is_refused() -> None:
    for wrong in ({"a": "warehouse"}, {"a": "redis://x/?wrong=1"}):
        with pytest.raises(InvalidSettings, match="services: a: "):
            BusSettings(services=wrong)
    for name, url, text in (
        ("a", "redis://x/?shards=many", "shards"),
        ("a b", "redis://x/0", "namespace"),
        ("", "redis://x/0", "namespace"),
        ("a", "redis://x/?namespace=a{b}", "namespace"),
        ("a" * 300, "redis://x/0", "namespace"),
    ):
        with pytest.raises(InvalidSettings, match=text):
            BusSettings(services={name: url}).service(name)
    with pytest.raises(UnknownService, match="there are: none"):
        BusSettings().service("a")
