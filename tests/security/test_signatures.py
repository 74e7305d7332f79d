"""Signed commands: only commands packed by a key holder run, only in the line of their entity, and the line goes on after others.

The forger of these tests may write to Redis: it adds bytes to mailboxes as the enqueue step does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from command_bus import BadSignature, BusSettings, CommandBus, EntityPolicy, Envelope, HandlerRegistry, lanes
from command_bus.sending.envelope_builder import EnvelopeBuilder
from command_bus.serialization.envelope import (
    GIVEN_ID,
    EnvelopeTemplate,
    WireEnvelope,
    pack_envelope,
    packed_text,
    unpack_envelope,
)
from command_bus.serialization.native import Packer
from command_bus.serialization.protection import Protection, Signatures
from command_bus.spark.target import Target, connection_to
from command_bus.spark.writing.partition import PartitionDispatcher
from command_bus.transport.mailboxes import mailbox_name, stands_in
from command_bus.transport.redis.memory import MemoryClients
from tests.conformance.conftest import Sandbox, Starter
from tests.conformance.put_service import Put, PutService, put_service, until

OLD = "an old secret, long enough"
NEW = "a new secret, long enough too"
KEYS = {"new": NEW, "old": OLD}


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox("memory", MemoryClients())


def packed(sandbox: Sandbox, *, box: str = "a", value: int = 7, keys: dict[str, str] | None = None, **changes: Any) -> bytes:
    """Return the envelope that a holder of these keys would send."""
    values = {"signing_keys": KEYS if keys is None else keys, "namespace": sandbox.namespace, **changes}
    protection = Protection.of(BusSettings(**values))
    envelope = WireEnvelope("forged-1", "Put", "box", box, msgpack.packb({"box": box, "value": value}), GIVEN_ID)
    return pack_envelope(envelope) if protection is None else protection.pack(envelope)


async def test_signed_commands_run_in_every_way_of_sending(sandbox: Sandbox) -> None:
    async with put_service(sandbox, signing_keys=KEYS, require_signatures=True) as service:
        await service.bus.dispatch(Put(box="a", value=1))
        await service.bus.dispatch(Put(box="a", value=2), delay=0.01, headers={"trace": "t"})
        await service.bus.dispatch_raw(
            None, None, "Put", {"box": "a", "value": 3}
        )  # no entity: dead-lettered as invalid, not as forged
        assert await service.bus.call(Put(box="a", value=4), timeout=5, command_id="mine") == 4
        assert (await service.letter()).reason == "invalid"
        await service.assert_unharmed("a")


FORGERIES: dict[str, tuple[Callable[[Sandbox], bytes], str]] = {
    "unsigned": (lambda sandbox: packed(sandbox, keys={}), "not signed"),
    "unknown key": (lambda sandbox: packed(sandbox, keys={"theirs": "a secret of their own"}), "does not have"),
    "known id, another secret": (lambda sandbox: packed(sandbox, keys={"new": "a guess, long enough"}), "not what was signed"),
    "another namespace": (lambda sandbox: packed(sandbox, namespace="staging"), "not what was signed"),
    "another payload": (lambda sandbox: packed(sandbox).replace(b"\xa5value\x07", b"\xa5value\x08"), "not what was signed"),
    "another name": (lambda sandbox: packed(sandbox).replace(b"\xa3Put", b"\xa3Pay"), "not what was signed"),
    "another id": (lambda sandbox: packed(sandbox).replace(b"forged-1", b"forged-2"), "not what was signed"),
    "another entity": (lambda sandbox: packed(sandbox, box="b"), "another entity"),
    "flags": (lambda sandbox: packed(sandbox).replace(b"\x07\x01\xc0", b"\x07\x03\xc0"), "not what was signed"),
    "cut off": (lambda sandbox: b"\x9c" + packed(sandbox)[1 : -(2 + 32 + 3)], "not signed"),
    "empty": (lambda sandbox: packed(sandbox)[: -(2 + 32 + 3)] + b"\xc4\x00", "does not have"),
    "in another form": (
        lambda sandbox: packed(sandbox)[: -(2 + 35)] + b"\xc5\x00\x23" + packed(sandbox)[-35:],
        "not where it belongs",
    ),
}


@pytest.mark.parametrize(("forge", "told"), FORGERIES.values(), ids=FORGERIES.keys())
async def test_48_what_is_not_signed_so_is_never_handled(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture, forge: Callable[[Sandbox], bytes], told: str
) -> None:
    raw = forge(sandbox)
    assert unpack_envelope(raw).command_id  # an envelope it is
    async with put_service(sandbox, signing_keys=KEYS, require_signatures=True) as service:
        await service.inject("box:a", {"e": raw})
        letter = await service.letter()
        assert (letter.reason, letter.error_type, letter.raw) == ("bad_signature", "BadSignature", raw)
        assert told in letter.error_message
        assert service.seen == []
        warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert any("bad signature" in text for text in warnings)
        await service.assert_unharmed("a")
        await service.bus.dead_letters.replay(letter.id)
        again = await service.letter()
        assert again.reason == "bad_signature"
        await service.bus.dead_letters.discard(again.id)
        await service.assert_unharmed("a")
        assert not any(value in (7, 8) for _, value in service.seen)


async def test_48_a_forgery_between_good_commands_keeps_the_line_in_order(sandbox: Sandbox) -> None:
    async with sandbox.bus(signing_keys=KEYS, require_signatures=True) as bus:
        service = PutService(sandbox, bus)
        await bus.dispatch(Put(box="a", value=10))
        for forge, _ in FORGERIES.values():
            await service.inject("box:a", {"e": forge(sandbox)})
        await bus.dispatch(Put(box="a", value=11))
        async with bus.worker():
            await bus.wait_idle(10)
            assert service.seen == [("a", 10), ("a", 11)]
            assert len(await service.letters()) == len(FORGERIES)


async def test_48_the_caller_of_a_refused_command_gets_the_error(sandbox: Sandbox) -> None:
    async with put_service(sandbox, signing_keys={"new": NEW}, require_signatures=True) as service:
        for keys in ({}, {"theirs": "a secret of their own"}):
            async with sandbox.bus(signing_keys=keys) as other:
                with pytest.raises(BadSignature, match="bad signature") as error:
                    await other.call(Put(box="a", value=1), timeout=5)
                assert error.value.command_id
        assert service.seen == []
        await service.assert_runs("a")


async def test_keys_rotate_without_a_gap(sandbox: Sandbox) -> None:
    """Verifiers first: every step leaves commands of the one before it waiting."""
    steps: list[dict[str, Any]] = [
        {},
        {"signing_keys": {"old": OLD}},
        {"signing_keys": {"old": OLD}, "require_signatures": True},
        {"signing_keys": {"new": NEW, "old": OLD}, "require_signatures": True},
        {"signing_keys": {"new": NEW}, "require_signatures": True},
    ]
    service: PutService | None = None
    for number, (sender, worker) in enumerate(zip(steps, [*steps[1:2], *steps[1:4], steps[4]], strict=True)):
        async with sandbox.bus(**sender) as bus:
            await bus.dispatch(Put(box="a", value=number))
        async with sandbox.bus(**worker) as bus:
            service = service or PutService(sandbox, bus)
            async with bus.worker():
                await bus.wait_idle(5)
    assert service is not None
    assert service.seen == [("a", number) for number in range(5)]


async def test_a_worker_without_keys_runs_signed_commands(sandbox: Sandbox) -> None:
    async with put_service(sandbox) as service, sandbox.bus(signing_keys=KEYS) as other:
        assert await other.call(Put(box="a", value=1), timeout=5) == 1
        await service.assert_unharmed("a")


async def test_a_signed_command_stands_in_the_lane_of_its_entity(sandbox: Sandbox) -> None:
    entities = {"box": EntityPolicy(mailbox=lanes(4))}
    async with put_service(sandbox, signing_keys=KEYS, require_signatures=True, entities=entities) as service:
        assert await service.bus.call(Put(box="a", value=1), timeout=5) == 1
        home = mailbox_name("box", "a", lanes(4))
        other = next(f"box/{lane}" for lane in range(4) if f"box/{lane}" != home)
        await service.inject(other, {"e": packed(sandbox)})
        assert "another entity" in (await service.letter()).error_message
    assert not stands_in("box/3", "box", "a", "c", None)  # a lane is none of a type that has no lanes
    assert not stands_in("crate/3", "box", "a", "c", None)
    assert stands_in("~:c-1", None, None, "c-1", None)
    assert not stands_in("~:c-2", None, None, "c-1", None)


def test_the_stamp_signs_as_the_packer_does() -> None:
    sign = Signatures("n", {"k": b"x" * 20}, required=True).sign
    for template in (
        WireEnvelope("-", "Put", "box", "-", b""),
        WireEnvelope("-", "Put", "box", "-", b"", flags=12, correlation_id="d-1"),
        WireEnvelope("-", "Put", None, None, b"", headers={"a": "b"}),
    ):
        entity_id = None if template.entity_type is None else "é-1"
        packed_id = Packer().pack(None) if entity_id is None else packed_text(entity_id)
        for size in (1, 300, 70_000):
            whole = replace(template, command_id="c-1", entity_id=entity_id, payload=bytes(size))
            assert EnvelopeTemplate(template, sign).pack(packed_text("c-1"), packed_id, bytes(size)) == pack_envelope(whole, sign)


def test_nothing_signs_and_nothing_verifies_without_keys() -> None:
    assert Protection.of(BusSettings()) is None
    builder = EnvelopeBuilder(BusSettings())
    assert (builder.pack, builder.sign) == (pack_envelope, None)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_no_byte_of_a_signed_envelope_can_be_changed(place: int, change: int) -> None:
    signatures = Signatures("n", {"k": b"x" * 20}, required=True)
    whole = WireEnvelope("c-1", "Put", "box", "a", b"\x81\xa1v\x07", 1, 5, "inbox", "c", "d", {"h": "i"})
    data = bytearray(pack_envelope(whole, signatures.sign))
    assert signatures.fault(bytes(data), unpack_envelope(bytes(data)).signature) is None
    data[place % len(data)] ^= change
    try:
        envelope = unpack_envelope(bytes(data))
    except ValueError:
        return
    assert signatures.fault(bytes(data), envelope.signature) is not None


async def test_a_partition_of_a_dispatch_signs(start: Starter) -> None:
    url = start().url
    registry = HandlerRegistry()
    seen: list[int] = []

    @registry.handles(Put)
    async def put(command: Put) -> int:
        seen.append(command.value)
        return command.value

    target = Target.resolve(url, "signed")
    assert target.access == ()
    signing = replace(target, access=(("signing_keys", tuple(f"{key}:{secret}" for key, secret in KEYS.items())),))
    async with (
        CommandBus(url, namespace="signed", registry=registry, require_signatures=True, signing_keys=KEYS) as bus,
        bus.worker(),
    ):

        def send(to: Target, name: str) -> None:
            with PartitionDispatcher(to, dispatch_id=name) as dispatcher:
                dispatcher.dispatch_batch(Envelope(Put(box="a", value=value), command_id=f"{name}-{value}") for value in range(3))
            connection_to(to).close()

        await asyncio.to_thread(send, signing, "with")
        await until(lambda: len(seen) == 3)
        await asyncio.to_thread(send, target, "without")
        await bus.wait_idle(10)
        letters = [letter async for letter in bus.dead_letters.list()]
        assert [letter.reason for letter in letters] == ["bad_signature"] * 3
        assert len(seen) == 3
