"""A forged command may name another command's id, dispatch or line. Refusing it changes none of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from command_bus import BadSignature, BusSettings, EntityPolicy, TransportUnavailable, lanes
from command_bus.serialization.envelope import GIVEN_ID, IN_DISPATCH, KEEP_OUTCOME, WireEnvelope, pack_envelope
from command_bus.serialization.protection import Protection
from command_bus.transport.mailboxes import mailbox_name
from command_bus.transport.ports.bulk import Opening, Version
from command_bus.transport.redis.memory import MemoryClients
from command_bus.transport.steps import DeadLetterStep, Started
from command_bus.worker.decisions import Decisions
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import Put, PutService, put_service, until
from tests.security.test_signatures import KEYS, packed

THEIRS = {"theirs": "a secret of their own"}
SIGNED: dict[str, Any] = {"signing_keys": KEYS, "require_signatures": True}


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox("memory", MemoryClients())


def envelope(command_id: str, flags: int = GIVEN_ID, **changes: Any) -> WireEnvelope:
    return replace(WireEnvelope(command_id, "Put", "box", "a", msgpack.packb({"box": "a", "value": 7}), flags), **changes)


def unsigned(sandbox: Sandbox, whole: WireEnvelope) -> bytes:
    return pack_envelope(whole)


def of_another_key(sandbox: Sandbox, whole: WireEnvelope) -> bytes:
    protection = Protection.of(BusSettings(signing_keys=THEIRS, namespace=sandbox.namespace))
    assert protection is not None
    return protection.pack(whole)


def undecodable(sandbox: Sandbox, whole: WireEnvelope) -> bytes:
    return pack_envelope(whole).replace(b"\xa3box", b"\xc3\xc3\xc3\xc3", 1)


def of_a_later_version(sandbox: Sandbox, whole: WireEnvelope) -> bytes:
    data = pack_envelope(whole)
    return data[:1] + b"\x02" + data[2:]


FORGERS = [unsigned, of_another_key, undecodable, of_a_later_version]


@pytest.mark.parametrize("forge", FORGERS)
async def test_a_forged_row_leaves_no_outcome(sandbox: Sandbox, forge: Any) -> None:
    async with put_service(sandbox, unknown_grace=0.01, **SIGNED) as service:
        version = Version("sales")
        await service.bus.session.transport.bulk.open(version, Opening(keep_ms=60_000))
        row = envelope("row-1", IN_DISPATCH | KEEP_OUTCOME, correlation_id="sales")
        await service.inject("box:a", {"e": forge(sandbox, row)})
        letter = await service.letter()
        assert letter.command_id == "row-1"
        assert await outcomes(service) == 0
        assert await service.bus.dead_letters.purge() == 1
        assert await outcomes(service) == 0
        assert service.seen == []
        await service.assert_runs("a")


async def outcomes(service: PutService) -> int:
    return int(await service.bus.session.redis.connections.ask(lambda client: client.xlen(service.keys.outcomes("sales"))))


@pytest.mark.parametrize("forge", FORGERS)
async def test_a_forged_command_leaves_the_mark_of_the_id_that_it_names(sandbox: Sandbox, forge: Any) -> None:
    async with put_service(sandbox, unknown_grace=0.01, **SIGNED) as service:
        marks = [service.keys.mark(name) for name in ("done", "waits")]

        async def read() -> list[Any]:
            return list(await service.bus.session.redis.connections.ask(lambda client: client.mget(marks)))

        await service.bus.dispatch(Put(box="b", value=1), command_id="done")
        assert await service.bus.result("done", timeout=5) == 1
        await service.bus.entity("box", "b").pause()
        await service.bus.dispatch(Put(box="b", value=2), command_id="waits")
        before = await read()
        for number, name in enumerate(("done", "waits", "nobody's"), 1):
            await service.inject("box:a", {"e": forge(sandbox, envelope(name))})
            await until(lambda number=number: found(service, number))
        assert await read() == before
        assert not await service.bus.session.redis.connections.ask(lambda client: client.exists(service.keys.mark("nobody's")))
        letters = await service.letters()
        if forge in (unsigned, of_another_key):
            for letter in letters:
                await service.bus.dead_letters.replay(letter.id)
            await until(lambda: found(service, 3))
        await service.bus.dead_letters.purge()
        assert await read() == before
        await service.bus.entity("box", "b").resume()
        assert await service.bus.result("waits", timeout=5) == 2
        assert await service.bus.result("done", timeout=5) == 1
        await service.assert_unharmed("a", "b")


async def found(service: PutService, many: int) -> bool:
    return len(await service.letters()) == many


@pytest.mark.parametrize("keys", [{}, THEIRS])
async def test_the_mark_of_a_refused_command_expires(sandbox: Sandbox, keys: Any) -> None:
    async with put_service(sandbox, **SIGNED) as service, sandbox.bus(signing_keys=keys) as other:
        await other.dispatch(Put(box="a", value=1), command_id="mine")
        await service.letter()
        with pytest.raises(BadSignature):
            await other.call(Put(box="a", value=1), command_id="asked", timeout=5)
        for name in ("mine", "asked"):
            key = service.keys.mark(name)
            assert (await service.bus.session.redis.connections.ask(lambda client, key=key: client.get(key)))[:1] == b"q"
        await service.assert_unharmed("a")


def test_a_forged_command_of_a_lost_worker_leaves_no_outcome() -> None:
    settings = BusSettings(namespace="n", **SIGNED)
    decisions = Decisions(lambda _: None, settings, worker="w", protection=Protection.of(settings))
    row = envelope("row-1", IN_DISPATCH | KEEP_OUTCOME | 2, correlation_id="sales")
    for data in (pack_envelope(row), pack_envelope(row)[:-1], b"\x9c\x02" + pack_envelope(row)[2:]):
        step = decisions.lost(Started("1", "1-1", 9, 1, 10**15, data))
        assert isinstance(step, DeadLetterStep)
        assert (step.left.mark, step.left.outcome, step.left.reply) == (b"", b"", b"")


# Other lines.


async def test_a_signed_command_runs_in_no_other_line_of_its_type(sandbox: Sandbox) -> None:
    """No policy in the worker's settings; the namespace recorded `per_entity` when the type was first used."""
    async with put_service(sandbox, **SIGNED) as service:
        await service.bus.dispatch(Put(box="a", value=1))
        for line in ("box/0", "box/3", "box:A", "box:a ", "~:forged-1"):
            await service.inject(line, {"e": packed(sandbox)})
            letter = await service.letter()
            assert (letter.reason, "another entity" in letter.error_message) == ("bad_signature", True), line
            await service.bus.dead_letters.discard(letter.id)
        await service.inject("box:a", {"e": packed(sandbox)})
        await until(lambda: service.seen == [("a", 1), ("a", 7)])
        await service.assert_unharmed("a")


async def test_lanes_agreed_on_after_the_worker_started_are_found(sandbox: Sandbox) -> None:
    """The worker's settings say nothing of the type."""
    async with put_service(sandbox, **SIGNED) as service:
        await service.inject("box:a", {"e": packed(sandbox)})  # no setting was agreed on: the default applies, and is not stored
        await until(lambda: service.seen == [("a", 7)])
        async with sandbox.bus(signing_keys=KEYS, entities={"box": EntityPolicy(mailbox=lanes(4))}) as other:
            assert await other.call(Put(box="a", value=1), timeout=5) == 1
        home = mailbox_name("box", "a", lanes(4))
        for line in ("box:a", *(f"box/{lane}" for lane in range(5))):
            if line != home:
                await service.inject(line, {"e": packed(sandbox)})
                letter = await service.letter()
                assert "another entity" in letter.error_message, line
                await service.bus.dead_letters.discard(letter.id)
        assert service.seen == [("a", 7), ("a", 1)]


async def test_a_command_waits_while_the_agreed_settings_are_unknown(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    async with put_service(sandbox, **SIGNED) as service:
        namespace = service.bus.session.transport.agreements
        learn, asked = namespace.learn, asyncio.Event()

        async def away(_: str) -> None:
            asked.set()
            raise TransportUnavailable("planned")

        monkeypatch.setattr(namespace, "learn", away)
        await service.inject("box:a", {"e": packed(sandbox)})
        await asyncio.wait_for(asked.wait(), 5)
        assert service.seen == []
        monkeypatch.setattr(namespace, "learn", learn)
        await until(lambda: service.seen == [("a", 7)])
        assert await service.letters() == []
