"""The stored commands of schedules: signed, encrypted, verified before a firing is signed; and who may touch schedules at all."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from command_bus import Command, CommandBus, CommandContext, EntityId, InvalidSettings, every
from command_bus.scheduling.record import ScheduleRecord
from command_bus.serialization.envelope import pack_envelope, unpack_envelope
from command_bus.transport.ports.schedules import RecordChange
from command_bus.transport.redis.memory import MemoryClients
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until

KEYS = {"k": "a secret that is long enough"}


class Pay(Command[None], entity="account"):
    account: EntityId
    amount: int = 1


class Xor:
    """A cipher that shows itself: no cipher at all."""

    def encrypt(self, data: bytes, aad: bytes) -> bytes:
        return b"!" + bytes(byte ^ 90 for byte in data) + aad

    def decrypt(self, data: bytes, aad: bytes) -> bytes:
        if not data.endswith(aad):
            raise ValueError("of another command")
        return bytes(byte ^ 90 for byte in data[1 : -len(aad)])


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox("memory", MemoryClients())


@pytest.fixture
def paid(sandbox: Sandbox) -> list[int]:
    found: list[int] = []

    @sandbox.registry.handles(Pay)
    async def pay(command: Pay, context: CommandContext) -> None:
        found.append(command.amount)

    return found


async def record_of(bus: CommandBus, name: str) -> tuple[ScheduleRecord, bytes]:
    (raw,) = await bus.session.transport.schedules.read([name])
    assert raw is not None
    record = ScheduleRecord.unpack(name, raw)
    assert record is not None
    return record, raw


async def test_signed_and_encrypted_schedules_fire(sandbox: Sandbox, paid: list[int]) -> None:
    options: dict[str, Any] = {"signing_keys": KEYS, "require_signatures": True, "cipher": Xor()}
    async with sandbox.bus(**options) as bus, bus.worker():
        await bus.schedules.put("pay", Pay(account="a", amount=7), every(0.2), max_runs=2, immediately=True)
        before = (await record_of(bus, "pay"))[0]
        assert b"amount" not in before.template
        await until(lambda: paid == [7, 7])
        await bus.schedules.put("pay", Pay(account="a", amount=7), every(0.2), max_runs=2, immediately=True)
        assert (await record_of(bus, "pay"))[0].template == before.template, "the same, although its ciphertext is not"


@pytest.mark.parametrize("forgery", ["unsigned", "of another schedule", "garbage"])
async def test_68_what_is_not_signed_as_it_was_put_is_paused(sandbox: Sandbox, paid: list[int], forgery: str) -> None:
    async with sandbox.bus(signing_keys=KEYS, require_signatures=True) as bus:
        await bus.schedules.put("pay", Pay(account="a"), every(0.2))
        await bus.schedules.put("other", Pay(account="a", amount=1_000_000), every(3600))
        record, raw = await record_of(bus, "pay")
        if forgery == "unsigned":
            template = pack_envelope(replace(unpack_envelope(record.template), signature=None))
        else:
            template = (await record_of(bus, "other"))[0].template if forgery == "of another schedule" else b"\xc1"
        forged = replace(record, template=template).pack()
        assert await bus.session.transport.schedules.change([RecordChange("pay", raw, forged, record.due)]) == [True]
        async with bus.worker():
            await until(lambda: is_paused(bus))
            await asyncio.sleep(0.5)
    assert paid == []


async def is_paused(bus: CommandBus) -> bool:
    return (await bus.schedules.get("pay")).reason != ""


async def test_without_the_keys_a_schedule_is_changed_and_not_fired(sandbox: Sandbox, paid: list[int]) -> None:
    async with sandbox.bus(signing_keys=KEYS, require_signatures=True) as bus:
        await bus.schedules.put("pay", Pay(account="a"), every(0.2))
        async with sandbox.bus() as operator:
            async with operator.worker():
                await asyncio.sleep(0.8)
                assert (await bus.stats()).accepted == 0
            assert await operator.schedules.pause("pay", "no keys here")
            assert (await operator.schedules.get("pay")).state == "paused"
            await operator.schedules.resume("pay")
        async with bus.worker():
            await until(lambda: paid)


async def test_an_export_is_verified_and_signed_anew(sandbox: Sandbox, paid: list[int]) -> None:
    other = Sandbox("memory", sandbox.clients, sandbox.registry)
    keys: dict[str, Any] = {"signing_keys": KEYS, "require_signatures": True, "cipher": Xor()}
    async with sandbox.bus(**keys) as bus:
        await bus.schedules.put("pay", Pay(account="1", amount=7), every(0.1))
        lines = [line async for line in bus.schedules.export(stop=True)]
        assert b"amount" not in base64.b64decode(json.loads(lines[0])["template"]), "it stays encrypted"
    async with other.bus() as bus:
        with pytest.raises(InvalidSettings, match="no signing keys"):
            await bus.schedules.import_(lines)
    async with other.bus(**{**keys, "signing_keys": {"k": "another secret that is long"}}) as bus:
        with pytest.raises(InvalidSettings, match="bad signature"):
            await bus.schedules.import_(lines)
    found = json.loads(lines[0])
    forged = [json.dumps(found | {"namespace": other.namespace})]
    async with other.bus(**keys) as bus, bus.worker():
        with pytest.raises(InvalidSettings, match="bad signature"):
            await bus.schedules.import_(forged)
        assert (await bus.schedules.import_(lines)).put == ("pay",)
        await until(lambda: len(paid) > 1)
        assert set(paid) == {7}
        assert (await bus.schedules.get("pay")).reason == ""
