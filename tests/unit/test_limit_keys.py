"""The facts of a command that a worker reads before limits let it start."""

from __future__ import annotations

import asyncio
from typing import Any

import msgpack
import pytest
from pydantic import field_validator

from command_bus import Command, CommandBus, EntityId, HandlerRegistry, Limit, Rate
from command_bus.serialization.envelope import WireEnvelope, pack_envelope
from command_bus.settings import BusSettings
from command_bus.transport.redis.memory import MemoryClients
from command_bus.transport.steps import LimitQuestion
from command_bus.worker.limits import LimitKeys

_read: list[str] = []
registry = HandlerRegistry()


class Fetch(Command[None], entity="page", limits=(Limit("partner", key="partner"),)):
    page: EntityId
    partner: str

    @field_validator("partner")
    @classmethod
    def _seen(cls, partner: str) -> str:
        _read.append(partner)
        if partner == "exit":
            raise SystemExit(3)
        return partner


@registry.handles(Fetch)
async def fetch(command: Fetch) -> None:
    del command


@pytest.fixture
def keys() -> LimitKeys:
    _read.clear()
    return LimitKeys(registry.lookup, BusSettings(url="redis://none"), None)


def asked(fields: dict[str, Any], name: str = "Fetch", ttl_ms: int | None = None, **facts: Any) -> LimitQuestion:
    """Return what a worker is told of a command that was accepted at 1,000."""
    payload = msgpack.packb({"page": "1", **fields})
    return LimitQuestion("1000-0", pack_envelope(WireEnvelope("c-1", name, "page", "1", payload, ttl_ms=ttl_ms)), **facts)


def test_a_command_costs_what_its_class_says(keys: LimitKeys) -> None:
    assert keys.keyed(asked({"partner": "a"})) == "1 name:partner:a"
    assert keys.keyed(asked({"partner": "a"}, is_paid=True)) == "1 name:partner:a\t~paid"


@pytest.mark.parametrize("other", [{"name": "Unheard"}, {"fields": {"partner": 7}}, {"fields": {"partner": "exit"}}])
def test_what_calls_no_handler_costs_nothing(keys: LimitKeys, other: dict[str, Any]) -> None:
    assert keys.keyed(asked(**{"fields": {"partner": "a"}, **other})) == "\t~paid"


def test_what_is_over_costs_nothing_if_its_deadline_counts(keys: LimitKeys) -> None:
    assert keys.keyed(asked({"partner": "a"}, ttl_ms=50, due_ms=1050)) == "1 name:partner:a"
    assert keys.keyed(asked({"partner": "a"}, ttl_ms=50, due_ms=1051)) == "\t~paid"
    assert keys.keyed(asked({"partner": "a"}, ttl_ms=50, due_ms=0)) == "1 name:partner:a"


def test_what_workers_die_of_is_not_read(keys: LimitKeys) -> None:
    """It takes a token of limits that need no reading: it may well run, behind lost answers say."""
    assert keys.keyed(asked({"partner": "a"}, is_suspect=True)) == ""
    assert not _read


async def test_a_validator_that_ends_the_process_ends_its_command() -> None:
    """Also under a limit for which it is read before it starts."""
    options: Any = {"limits": (Limit("partner", rate=Rate(100)),)}
    async with CommandBus(clients=MemoryClients(), registry=registry, **options) as bus, bus.worker():
        await bus.dispatch_raw("page", "1", "Fetch", {"page": "1", "partner": "exit"})
        await asyncio.wait_for(bus.call(Fetch(page="2", partner="a"), timeout=10), 15)
        assert [each.reason async for each in bus.dead_letters.list()] == ["invalid"]
