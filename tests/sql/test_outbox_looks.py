"""Looks of a relay: rows that become visible behind others, and rows that it has taken already."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from unittest.mock import AsyncMock

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from command_bus import EntityPolicy, TransportUnavailable
from command_bus.embedded import EmbeddedServer
from command_bus.sql import OutboxRelay
from command_bus.telemetry.metrics import PrometheusMetrics
from tests.sql.conftest import Stage
from tests.sql.outbox_shop import Ship, Shop


async def test_rows_above_an_open_transaction_are_accepted_once(server_stage: Stage, server: EmbeddedServer) -> None:
    shop = Shop(server_stage, server, entities={"order": EntityPolicy(max_depth=5)})
    with server_stage.engine.connect() as open_one:
        open_one.execute(text("SELECT txid_current()"))
        async with shop.bus, shop.relay(poll=0.001) as relay:
            shop.add(*range(8))
            await asyncio.sleep(0.6)
            async with shop.bus.worker():
                async with asyncio.timeout(20):
                    while relay.sent < 8:
                        await asyncio.sleep(0.01)
                await shop.bus.wait_idle(20)
            assert relay.sent == 8
        open_one.rollback()
    assert [n for _, n in shop.seen] == list(range(8))


async def test_pages_of_a_look_are_of_one_moment(
    server_stage: Stage, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, stage = Shop(server_stage, server), server_stage
    async with shop.bus, shop.relay(keep=60.0, poll=60.0) as relay:
        with stage.engine.connect() as open_one:
            open_one.execute(text("SELECT txid_current()"))  # so that the floor stays
            first, second = Session(stage.engine), Session(stage.engine)
            shop.outbox.add(first, Ship(order="m", n=1))
            first.flush()
            first.execute(text("SET CONSTRAINTS ALL IMMEDIATE"))  # numbered, and not visible yet
            for number in range(0, 1_200, 400):
                shop.add(*range(number, number + 400), order="others")
            read, pages = relay._read, 0

            async def reading(*given: Any) -> Any:
                nonlocal pages
                pages += 1
                if pages == 3:  # between two pages of a look
                    first.commit()
                    shop.outbox.add(second, Ship(order="m", n=2))
                    second.commit()
                return await read(*given)

            monkeypatch.setattr(relay, "_read", reading)
            for _ in range(12):
                relay._is_rested.set()
                if relay._task is not None:
                    relay._task.cancel()
                    await asyncio.gather(relay._task, return_exceptions=True)
                relay._task = asyncio.ensure_future(relay.run())
                await asyncio.sleep(0.15)
        await shop.handled()
        assert [n for order, n in shop.seen if order == "m"] == [1, 2]


async def test_a_transaction_that_is_newer_than_all_that_have_ended_is_waited_for(
    server_stage: Stage, server: EmbeddedServer
) -> None:
    """Its id is not below `xmax` of a snapshot: PostgreSQL counts from the newest transaction that has ended."""
    shop, stage = Shop(server_stage, server), server_stage
    with Session(stage.engine) as older, Session(stage.engine) as newer:
        shop.outbox.add(older, Ship(order="o", n=1))
        older.flush()
        shop.outbox.add(newer, Ship(order="n", n=0))
        newer.flush()
        newer.execute(text("SET CONSTRAINTS ALL IMMEDIATE"))  # has the lower number
        older.commit()
        async with shop.bus, shop.relay() as relay:
            await relay.drained()
            assert relay.sent == 1
            newer.commit()
            await relay.drained()
            assert relay.sent == 2


async def test_a_relay_that_keeps_its_most_lets_others_run_and_goes_on(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("command_bus.sql.relay._MOST_TAKEN", 10)
    monkeypatch.setattr("command_bus.sql.relay._PAGE", 10)
    shop.add(*range(35))
    turns, longest, before = 0, 0.0, time.monotonic()
    async with shop.bus, shop.relay(keep=0.5) as relay:
        drained = asyncio.ensure_future(relay.drained())
        while not drained.done():
            await asyncio.sleep(0.001)
            turns, longest, before = turns + 1, max(longest, time.monotonic() - before), time.monotonic()
        assert longest < 0.4, "the loop was not held"
        assert turns > 50
        assert relay.sent == 35
        assert await shop.handled() == list(range(35))


async def test_metrics_of_a_relay(stage: Stage, server: EmbeddedServer) -> None:
    metrics = PrometheusMetrics()

    def shown() -> dict[str, float]:
        found = [sample for family in metrics.registry.collect() for sample in family.samples if "_outbox_" in sample.name]
        return {each.name.removeprefix("command_bus_outbox_"): each.value for each in found}

    shop = Shop(stage, server, observer=metrics)
    assert not shown()
    await asyncio.to_thread(shop.add, 1, 2, 3)
    async with shop.bus:
        async with shop.relay(keep=60.0) as relay:
            await relay.drained()
            lagging = shown()
            await relay.drained()
            assert relay.figures.working
            rest = {"sent_total": 3, "sent_again_total": 0, "set_aside_total": 0, "kept": 3, "apart": 0}
            assert shown() == {**rest, "lag_seconds": 0, "relays": 1}
            assert lagging.keys() == shown().keys()
        assert shown() == {**rest, "kept": 0, "lag_seconds": 0, "relays": 0}


async def test_a_relay_that_has_ended_lags_behind_nothing(
    stage: Stage, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last figure would raise an alert for as long as its process lives, and while the server is away the age grows."""
    metrics, shop = PrometheusMetrics(), Shop(stage, server)
    shop.bus.session.observer = metrics

    def lag() -> float:
        found = [
            each for family in metrics.registry.collect() for each in family.samples if each.name.endswith("outbox_lag_seconds")
        ]
        return found[0].value

    await asyncio.to_thread(shop.add, 1)
    stage.ask("UPDATE command_outbox SET added_ms = added_ms - 300000 RETURNING id")
    async with shop.bus:
        with monkeypatch.context() as away:
            away.setattr(OutboxRelay, "_place_all", AsyncMock(side_effect=TransportUnavailable("away")))
            async with shop.relay() as ended, asyncio.timeout(10):
                while ended.figures.lag < 300:
                    await asyncio.sleep(0.01)
                assert lag() >= 300
        assert lag() == 0
        async with shop.relay() as relay:
            await relay.drained()
            assert lag() == 0
