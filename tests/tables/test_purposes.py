"""Carries out the table of `purposes.py`, and what follows from it: who has captured something signed has it run once, as what it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from command_bus import BusSettings, Command, CommandBus, EntityId, IdempotencyConflict, every
from command_bus.errors import BadResult, CommandBusError, InvalidCommand, InvalidSettings
from command_bus.serialization.envelope import ENCRYPTED, WireEnvelope, pack_envelope, unpack_envelope
from command_bus.serialization.protection import Protection
from command_bus.serialization.reply import Completed
from command_bus.transport.redis.memory import MemoryClients
from command_bus.webhooks.record import WebhookRecord
from command_bus.webhooks.store import WebhookStore
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until
from tests.security.test_cipher import ToyCipher
from tests.security.test_schedule_templates import record_of
from tests.tables.purposes import PLACES, Place

KEYS = {"k": "a secret that is long enough"}
CIPHER = ToyCipher(b"k" * 32)
SECRET = b"\x80"


def protection() -> Protection:
    found = Protection.of(BusSettings(namespace="shop", signing_keys=KEYS, require_signatures=True), CIPHER)
    assert found is not None
    return found


def envelope(place: tuple[str, ...], payload: bytes = SECRET, flags: int = 0) -> WireEnvelope:
    command_id, name, entity_type, entity_id = place
    return WireEnvelope(command_id, name, entity_type, entity_id, payload, flags)


def store() -> WebhookStore:
    return WebhookStore(CommandBus(namespace="shop", cipher=CIPHER))


def sealed(place: Place) -> bytes:
    purpose, where = place
    first, *rest = where
    if purpose in ("command", "template"):
        owner = protection() if purpose == "command" else protection().templates
        return unpack_envelope(owner.pack(envelope(where))).payload
    if purpose == "reply":
        return protection().reply(envelope(where, flags=ENCRYPTED), Completed(SECRET)).value
    if purpose == "stored":
        return protection().sealed(first, rest[0], rest[1], SECRET)
    return store()._sealed(WebhookRecord(where[0], "", (), (), (), 1.0, False, False, None, 1))


def opens(place: Place, data: bytes) -> bool:
    """Return whether data that stands in a place is read there."""
    purpose, where = place
    try:
        if purpose in ("command", "template"):
            owner = protection() if purpose == "command" else protection().templates
            owner.payload(envelope(where, data, ENCRYPTED))
        elif purpose == "reply":
            protection().result(where[0], Completed(data, (where[1], where[2], where[3])))
        elif purpose == "stored":
            protection().unsealed(where[0], where[1], where[2], data)
        else:
            store()._open(where[0], b"\0" + data.removeprefix(b"\0"))
    except (InvalidCommand, BadResult, InvalidSettings):
        return False
    return True


@pytest.mark.parametrize("of", PLACES)
def test_what_is_sealed_for_one_place_opens_there_alone(of: str) -> None:
    data = sealed(PLACES[of])
    assert [name for name, place in PLACES.items() if opens(place, data)] == [of]


def test_what_is_signed_as_one_is_not_the_other() -> None:
    plain = Protection.of(BusSettings(namespace="shop", signing_keys=KEYS))
    assert plain is not None
    for signer in (plain, plain.templates):
        data = signer.pack(envelope(("c-1", "Pay", "box", "a")))
        signature = unpack_envelope(data).signature
        good = [
            each.signatures.fault(data, signature) is None for each in (plain, plain.templates) if each.signatures is not None
        ]
        assert good == [signer is plain, signer is not plain]


def test_a_reply_is_of_the_command_that_was_asked_for() -> None:
    owner = protection()
    reply = owner.reply(envelope(("c-1", "Pay", "box", "a"), flags=ENCRYPTED), Completed(SECRET))
    assert owner.result("c-1", reply, ("Pay", "box", "a")).value == SECRET
    assert owner.result("c-1", reply, ("Pay",)).value == SECRET
    for other in (("Ping", "box", "a"), ("Pay", "box", "b"), ("Pay", None, None), ("Ping",)):
        with pytest.raises(BadResult, match="another command of this id"):
            owner.result("c-1", reply, other)
    with pytest.raises(BadResult, match="cannot be decrypted"):
        owner.result("c-1", replace(reply, encrypted=("Pay", "box", "b")), ("Pay", "box", "b"))


class Pay(Command[str], entity="box"):
    box: EntityId
    card: str = "4111"


class Ping(Command[str], entity="box"):
    box: EntityId


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox("memory", MemoryClients())


@pytest.fixture
def paid(sandbox: Sandbox) -> list[str]:
    found: list[str] = []

    @sandbox.registry.handles(Pay)
    async def pay(command: Pay) -> str:
        found.append(command.card)
        return command.card

    @sandbox.registry.handles(Ping)
    async def ping(command: Ping) -> str:
        return "pong"

    return found


@pytest.mark.parametrize("cipher", [None, CIPHER], ids=["signed", "encrypted"])
async def test_188_a_captured_command_is_no_template(sandbox: Sandbox, paid: list[str], cipher: Any) -> None:
    """An operator without a key writes it into a schedule: each firing would be signed under an id of its own."""
    from command_bus.transport.ports.schedules import RecordChange

    async with sandbox.bus(signing_keys=KEYS, require_signatures=True, cipher=cipher) as bus:
        await bus.schedules.put("again", Ping(box="a"), every(0.1))
        captured = bus.session.protection.pack(envelope(("again", "Pay", "box", "a"), b"\x81\xa3box\xa1a"))  # type: ignore[union-attr]
        record, raw = await record_of(bus, "again")
        forged = replace(record, template=captured).pack()
        assert await bus.session.transport.schedules.change([RecordChange("again", raw, forged, record.due)]) == [True]

        async def is_paused() -> bool:
            return "signature" in (await bus.schedules.get("again")).reason

        async with bus.worker():
            await until(is_paused)
    assert paid == []


async def test_a_template_is_no_command(sandbox: Sandbox, paid: list[str]) -> None:
    async with sandbox.bus(signing_keys=KEYS, require_signatures=True) as bus:
        await bus.schedules.put("pay", Pay(box="a"), every(3600))
        template = (await record_of(bus, "pay"))[0].template
        keys = bus.session.redis.keys.shards[0]
        async with sandbox.client() as client:
            await client.xadd(keys.mailbox("box:a"), {"e": template})
            activation = await client.xadd(keys.ready, {"e": "box:a"})
            await client.hset(keys.active, "box:a", f"r|{activation.decode()}|0||0|0|")  # type: ignore[union-attr]
        async with bus.worker():
            await until(lambda: _letters(bus))
        assert [each.reason async for each in bus.dead_letters.list()] == ["bad_signature"]
    assert paid == []


async def _letters(bus: CommandBus) -> bool:
    return [each async for each in bus.dead_letters.list()] != []


async def test_an_id_of_somebody_else_tells_nothing_and_takes_nothing(sandbox: Sandbox, paid: list[str]) -> None:
    async with sandbox.bus(cipher=CIPHER) as bus, bus.worker():
        assert await bus.call(Pay(box="a"), timeout=5, command_id="theirs") == "4111"
        for other in (Ping(box="a"), Pay(box="b"), Pay(box="a", card="4242")):
            with pytest.raises(IdempotencyConflict):
                await bus.call(other, timeout=5, command_id="theirs")
        assert await bus.call(Pay(box="a"), timeout=5, command_id="theirs") == "4111"
        assert await bus.result("theirs", Pay) == "4111"
        with pytest.raises(BadResult, match="another command"):
            await bus.result("theirs", Ping)
        await bus.dispatch(Ping(box="a"), command_id="expected")
        with pytest.raises(IdempotencyConflict):
            await bus.dispatch(Pay(box="a"), command_id="expected")


async def test_buses_of_one_cipher_have_one_key_of_digests(sandbox: Sandbox, paid: list[str]) -> None:
    async with sandbox.bus(cipher=CIPHER) as one, sandbox.bus(cipher=CIPHER) as other, sandbox.bus() as plain:
        keys = [each.session.protection and each.session.protection.digest_key for each in (one, other, plain)]
        assert keys[0] == keys[1] != b""
        assert keys[2] is None
        await one.dispatch(Pay(box="a"), command_id="p")
        assert (await other.dispatch(Pay(box="a"), command_id="p")).status == "duplicate"
        async with sandbox.bus(cipher=ToyCipher(b"other")) as stranger:  # it compares name and entity alone
            assert (await stranger.dispatch(Pay(box="a", card="1"), command_id="p")).status == "duplicate"
            with pytest.raises(IdempotencyConflict):
                await stranger.dispatch(Ping(box="a"), command_id="p")
        async with sandbox.client() as client:
            mark = await client.get(one.session.redis.keys.shards[0].mark("p"))
        from command_bus.serialization.equality import digest

        guess = digest(("Pay", "box", "a"), Pay(box="a"))
        assert mark is not None
        assert mark[1:5] == guess[:4], "name and entity stand there in clear text, too"
        assert mark[5:9] != guess[4:], "who reads the server confirms no guess of the fields"


def test_no_error_of_a_cipher_is_raw() -> None:
    class Broken:
        def encrypt(self, data: bytes, aad: bytes) -> bytes:
            raise OSError("no key store")

        decrypt = encrypt

    broken = Protection.of(BusSettings(namespace="shop"), Broken())
    assert broken is not None
    assert broken.new_digest_key() is None
    broken.use_digest_key(b"x")
    assert broken.digest_key == b""
    with pytest.raises(CommandBusError):
        broken.pack(envelope(("c-1", "Pay", "box", "a")))
    assert pack_envelope(envelope(("c-1", "Pay", "box", "a")))
