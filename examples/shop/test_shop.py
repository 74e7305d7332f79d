"""Tests of the shop, without a server: `pytest examples/shop`."""

from __future__ import annotations

from typing import Any

import pytest

from command_bus import CommandBus, CommandContext
from command_bus.testing import TestBus
from examples.shop import orders, stock  # registers the handlers, as --include does
from examples.shop.bus import bus
from examples.shop.commands import PlaceOrder, ReserveStock


@pytest.fixture
def command_bus_app(monkeypatch: pytest.MonkeyPatch) -> CommandBus:
    monkeypatch.setattr(stock, "pieces", {"lamp": 3})
    return bus


@pytest.fixture
def client(command_bus: TestBus) -> Any:  # noqa: ARG001 - the test bus is first
    testclient = pytest.importorskip("fastapi.testclient")
    from examples.shop.web import app

    with testclient.TestClient(app) as client:
        yield client


def test_an_order_takes_what_there_is(client: Any, command_bus: TestBus) -> None:
    first = client.post("/orders/1?article=lamp&pieces=2")
    second = client.post("/orders/2?article=lamp&pieces=2")
    assert first.json() == {"state": "placed"}
    assert second.json() == {"state": "sold out"}
    command_bus.assert_dispatched(ReserveStock, article="lamp", count=2)


async def test_a_crash_reserves_nothing_twice(command_bus: TestBus) -> None:
    command_bus.crash_after("handled", PlaceOrder)
    order = PlaceOrder(order_id="1", article="lamp", pieces=2)
    assert await command_bus.call(order, timeout=100) == "placed"
    assert stock.pieces == {"lamp": 1}


async def test_the_handler_alone(command_bus: TestBus) -> None:
    order = PlaceOrder(order_id="1", article="sofa", pieces=1)
    context = CommandContext(command_id="c-1", bus=command_bus)
    assert await orders.place_order(order, context) == "sold out"
