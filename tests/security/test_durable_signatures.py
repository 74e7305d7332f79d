"""Signed durable commands: what undoes is stored on the server, and is signed again only if a key holder had put it there."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from command_bus import Command, CommandBus, CommandRejected, DurableContext, EntityId, Reject, RetryPolicy
from command_bus.serialization.envelope import pack_envelope, unpack_envelope
from command_bus.transport.redis.memory import MemoryClients
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until

KEYS = {"k": "a secret that is long enough"}
ONCE = RetryPolicy(attempts=1, delay=0.2, max_delay=0.2, jitter=0)


class Sell(Command[None], entity="order", durable=True, retry=ONCE):
    order: EntityId
    free: bool = False


class Refund(Command[None], entity="account", retry=ONCE):
    account: EntityId
    cents: int


class Tell(Command[None], retry=ONCE):
    cents: int


class Shop:
    """A sale that fails, and what undoes it: that fails as long as the bank is closed."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.closed = True
        self.refunds: list[int] = []

        @sandbox.registry.handles(Sell)
        async def sell(command: Sell, context: DurableContext) -> None:
            context.compensate(Tell(cents=7) if command.free else Refund(account="a", cents=7))
            await context.step("ship", list)
            raise Reject("no stock")

        @sandbox.registry.handles(Refund)
        async def refund(command: Refund) -> None:
            self._refund(command.cents)

        @sandbox.registry.handles(Tell)
        async def tell(command: Tell) -> None:
            self._refund(command.cents)

    def _refund(self, cents: int) -> None:
        if self.closed:
            raise ValueError("the bank is closed")
        self.refunds.append(cents)


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox("memory", MemoryClients())


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


async def letter(bus: CommandBus) -> Any:
    return next((each.id for each in [each async for each in bus.dead_letters.list()] if each.parked), None)


@pytest.mark.parametrize("free", [False, True])
async def test_what_undoes_is_sent_again_with_a_signature(sandbox: Sandbox, shop: Shop, free: bool) -> None:
    async with sandbox.bus(signing_keys=KEYS, require_signatures=True) as bus, bus.worker():
        receipt = await bus.dispatch(Sell(order="o-1", free=free), command_id="sale")
        parked = await until(lambda: letter(bus))
        shop.closed = False
        await bus.dead_letters.replay(parked)
        with pytest.raises(CommandRejected, match="no stock"):
            await receipt.result(timeout=5)
    assert shop.refunds == [7]


@pytest.mark.parametrize("forgery", ["unsigned", "another amount", "another line", "a command", "of another sale"])
async def test_what_nobody_signed_is_not_signed(
    sandbox: Sandbox, shop: Shop, forgery: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody who may write to the server changes what undoes, before an operator lets it be tried again."""
    async with sandbox.bus(signing_keys=KEYS, require_signatures=True) as bus, bus.worker():
        receipt = await bus.dispatch(Sell(order="o-1"), command_id="sale")
        parked = await until(lambda: letter(bus))
        shop.closed = False
        client = sandbox.client()
        key = next(key for key in await sandbox.keys() if "}:x:sale" in key)
        (field,) = [name for name in await client.hkeys(key) if name.startswith(b"u:")]
        kept = await client.hget(key, field)
        parts = msgpack.unpackb(kept)
        if forgery == "another line":
            parts[3] = "account:z"
        elif forgery in ("a command", "of another sale"):  # captured where it was signed once
            protection, theirs = bus.session.protection, unpack_envelope(parts[5])
            assert protection is not None
            options = {"w": ["order:o-2", "sale-2", field.decode()]} if forgery == "of another sale" else None
            captured = replace(theirs, payload=msgpack.packb({"account": "a", "cents": 1_000_000}), options=options)
            parts[5] = protection.pack(captured)
        else:
            envelope = replace(unpack_envelope(parts[5]), payload=msgpack.packb({"account": "a", "cents": 1_000_000}))
            parts[5] = (
                pack_envelope(replace(envelope, signature=None)) if forgery == "unsigned" else parts[5].replace(b"\x07", b"\x08")
            )
        await client.hset(key, field, msgpack.packb(parts))
        await bus.dead_letters.replay(parked)
        await until(lambda: "cannot be compensated here" in caplog.text)
        await asyncio.sleep(0.3)
        assert shop.refunds == []
        await client.hset(key, field, kept)
        with pytest.raises(CommandRejected, match="no stock"):
            await receipt.result(timeout=5)
        await client.aclose()
    assert shop.refunds == [7]
