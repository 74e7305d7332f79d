"""Encrypted payloads: the server sees ids and names, no values; what cannot be decrypted is dead-lettered, and the line goes on.

The cipher is a toy (a keystream of BLAKE2b with a tag), to have one without another package. Do not use it.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from typing import Any

import msgpack
import pytest

from command_bus import BadResult, Command, EntityId, InvalidCommand, RetryPolicy
from command_bus.serialization.envelope import ENCRYPTED, unpack_envelope
from command_bus.transport.redis.memory import MemoryClients
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import Put, PutService, put_service
from tests.conformance.test_bad_input import envelope

SECRET = "4111-1111-1111-1111"


class ToyCipher:
    """Encrypt-then-authenticate with a random nonce, as the real ones do."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def encrypt(self, data: bytes, aad: bytes) -> bytes:
        nonce = os.urandom(8)
        body = self._crossed(nonce, data)
        return nonce + self._tag(nonce, aad, body) + body

    def decrypt(self, data: bytes, aad: bytes) -> bytes:
        nonce, tag, body = data[:8], data[8:24], data[24:]
        if tag != self._tag(nonce, aad, body):
            raise ValueError(f"not authentic: {data!r}")
        return self._crossed(nonce, body)

    def _tag(self, nonce: bytes, aad: bytes, body: bytes) -> bytes:
        return blake2b(nonce + len(aad).to_bytes(4, "big") + aad + body, key=self._key, digest_size=16).digest()

    def _crossed(self, nonce: bytes, data: bytes) -> bytes:
        blocks = range(len(data) // 64 + 1)
        stream = b"".join(blake2b(nonce + block.to_bytes(4, "big"), key=self._key).digest() for block in blocks)
        return bytes(a ^ b for a, b in zip(data, stream, strict=False))


class Pay(Command[str], entity="box", retry=RetryPolicy(attempts=1)):
    box: EntityId
    card: str


CIPHER = ToyCipher(b"k" * 32)


@pytest.fixture
def sandbox() -> Sandbox:
    sandbox = Sandbox("memory", MemoryClients())

    @sandbox.registry.handles(Pay)
    async def pay(command: Pay) -> str:
        if command.card == "broken":
            raise OSError("no line")
        return command.card

    return sandbox


async def everything(sandbox: Sandbox) -> bytes:
    """Return all data of the server."""
    client = sandbox.client()
    found = [(key, await client.dump(key)) for key in await sandbox.keys()]
    await client.aclose()
    return repr(found).encode()


async def test_the_server_never_sees_a_value(sandbox: Sandbox) -> None:
    async with sandbox.bus(cipher=CIPHER) as bus:
        service = PutService(sandbox, bus)
        await bus.dispatch(Pay(box="a", card=SECRET), command_id="p-1")
        await bus.dispatch(Pay(box="a", card=SECRET), delay=0.05)
        client = sandbox.client()
        raw: Any = await client.hget(service.keys.lone, "box:a")  # type: ignore[misc]
        await client.aclose()
        wire = unpack_envelope(raw)
        assert (wire.name, wire.entity_id, wire.flags & ENCRYPTED) == ("Pay", "a", ENCRYPTED)
        async with bus.worker():
            assert await bus.call(Pay(box="a", card=SECRET), timeout=5, command_id="p-2") == SECRET
            assert await bus.result("p-1", Pay, timeout=5) == SECRET  # the stored reply
            await bus.wait_idle(5)
            await service.assert_unharmed("a")
        assert b"4111" not in await everything(sandbox)
        async with sandbox.bus() as other:
            with pytest.raises(BadResult, match="no cipher"):
                await other.result("p-2")


async def test_a_repeated_id_is_a_duplicate_though_its_bytes_differ(sandbox: Sandbox) -> None:
    async with sandbox.bus(cipher=CIPHER) as bus:
        PutService(sandbox, bus)
        assert (await bus.dispatch(Pay(box="a", card="1"), command_id="same")).status == "accepted"
        assert (await bus.dispatch(Pay(box="a", card="1"), command_id="same")).status == "duplicate"
        async with bus.worker():
            await bus.wait_idle(5)
            assert (await bus.dispatch(Pay(box="a", card="1"), command_id="same")).status == "duplicate"
            assert await bus.call(Pay(box="a", card="1"), timeout=5, command_id="same") == "1"


@pytest.mark.parametrize(("cipher", "told"), [(None, "no cipher"), (ToyCipher(b"other"), "cannot be decrypted")])
async def test_what_cannot_be_decrypted_is_dead_lettered(sandbox: Sandbox, cipher: ToyCipher | None, told: str) -> None:
    async with put_service(sandbox, cipher=cipher) as service, sandbox.bus(cipher=CIPHER) as other:
        with pytest.raises(InvalidCommand, match=told):
            await other.call(Pay(box="a", card=SECRET), timeout=5)
        letter = await service.letter()
        assert (letter.reason, letter.attempts, letter.payload) == ("invalid", 1, None)
        assert told in letter.error_message
        assert "authentic" not in letter.error_message, "the cipher's words may hold data"
        (seen,) = [found async for found in other.dead_letters.list()]
        assert seen.payload == {"box": "a", "card": SECRET}, "who has the cipher may look"
        await service.bus.dead_letters.discard(letter.id)
        await service.assert_unharmed("a")


async def test_a_ciphertext_means_nothing_in_another_place(sandbox: Sandbox) -> None:
    """Moved to another entity, command or id, it does not open."""
    async with put_service(sandbox, cipher=CIPHER) as service:
        protection = service.bus.session.protection
        assert protection is not None
        whole = unpack_envelope(protection.pack(unpack_envelope(envelope(msgpack.packb({"box": "a", "value": 7})))))
        for changes in ({"box": "b"}, {"name": "Pay"}, {"command_id": "bad-2"}):
            box = changes.get("box", "a")
            await service.inject(f"box:{box}", {"e": envelope(whole.payload, flags=ENCRYPTED, **changes)})
            letter = await service.letter()
            assert (letter.reason, "decrypted" in letter.error_message) == ("invalid", True)
            await service.bus.dead_letters.discard(letter.id)
        await service.inject("box:a", {"e": envelope(whole.payload, flags=ENCRYPTED)})
        await service.assert_runs("a")
        assert ("a", 7) in service.seen


async def test_plain_commands_are_still_read(sandbox: Sandbox) -> None:
    """The way in: workers get the cipher first."""
    async with put_service(sandbox, cipher=CIPHER) as service, sandbox.bus() as other:
        assert await other.call(Put(box="a", value=3), timeout=5) == 3
        await service.assert_unharmed("a")


async def test_signed_and_encrypted(sandbox: Sandbox) -> None:
    protected: dict[str, Any] = {"cipher": CIPHER, "signing_keys": ["k:a secret, long enough"], "require_signatures": True}
    async with put_service(sandbox, **protected) as service:
        assert await service.bus.call(Pay(box="a", card=SECRET), timeout=5) == SECRET
        await service.bus.dispatch(Pay(box="a", card="broken"))
        letter = await service.letter()
        assert (letter.reason, letter.payload) == ("failed", {"box": "a", "card": "broken"})
        await service.assert_unharmed("a")


class Broken:
    """A cipher that fails."""

    def encrypt(self, data: bytes, aad: bytes) -> bytes:
        raise RuntimeError(f"the key store is down: {data!r}")

    decrypt = encrypt


async def test_a_cipher_that_fails_sends_nothing(sandbox: Sandbox) -> None:
    async with put_service(sandbox) as service, sandbox.bus(cipher=Broken()) as other:
        with pytest.raises(InvalidCommand, match="RuntimeError") as error:
            await other.dispatch(Pay(box="a", card=SECRET))
        assert "4111" not in str(error.value)
        assert service.seen == []
        await service.assert_unharmed("a")
