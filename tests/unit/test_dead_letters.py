"""The oldest dead letter over all shards; payloads, which are decoded when they are accessed."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest

from command_bus import Command, CommandBus, DeadLetter, EntityId, HandlerRegistry, RetryPolicy
from command_bus.serialization import protection
from command_bus.serialization.dead_letter import DeadLetterRecord
from command_bus.serialization.envelope import WireEnvelope, pack_envelope
from command_bus.serialization.limits import PayloadLimits
from command_bus.serialization.msgpack import pack, unpack
from command_bus.serialization.native import ExtType, Packer

registry = HandlerRegistry()


class Fail(Command[None], entity="line", retry=RetryPolicy(attempts=1)):
    line: EntityId


@registry.handles(Fail)
async def fail(command: Fail) -> None:
    raise OSError("as told")


async def test_the_oldest_letter_is_that_of_all_shards() -> None:
    pytest.importorskip("fakeredis")
    async with CommandBus.in_memory(registry=registry, shards=4) as bus, bus.worker():
        assert await bus.dead_letters.oldest() is None
        for line in range(8):
            await bus.dispatch(Fail(line=f"l-{line}"), delay=line * 0.05)
        await bus.wait_idle(20)
        letters = [letter async for letter in bus.dead_letters.list()]
        assert len({letter.id.partition("-")[0] for letter in letters}) > 1
        times = sorted(int(letter.id.split("-")[1]) for letter in letters)
        assert times[0] < times[-1]
        oldest = await bus.dead_letters.oldest()
        assert oldest is not None
        assert round(oldest.timestamp() * 1000) == times[0]
        for letter in letters:
            if int(letter.id.split("-")[1]) < times[-1]:
                await bus.dead_letters.discard(letter.id)
        left = await bus.dead_letters.oldest()
        assert left is not None
        assert round(left.timestamp() * 1000) == times[-1]


def hostile(number: int) -> bytes:
    """Return a dead letter's envelope whose payload is slow to decode."""
    alike = [ExtType(7, (5 + step * (2**61 - 1)).to_bytes(16, "big")) for step in range(200)]
    payload = Packer().pack({"line": "l", "ids": ExtType(8, Packer().pack(alike))})
    return pack_envelope(WireEnvelope(f"c-{number}", "Fail", "line", "l", payload))


async def test_listing_counting_and_purging_read_no_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fakeredis")
    read: list[bytes] = []

    def noted(data: bytes, *limits: PayloadLimits) -> object:
        read.append(data)
        return unpack(data, *limits)

    monkeypatch.setattr(protection, "unpack", noted)
    async with CommandBus.in_memory(registry=registry) as bus:
        keys = bus.session.redis.keys.shards[0]
        for number in range(3):
            record = DeadLetterRecord(reason="invalid", command_id=f"c-{number}", name="Fail", entity_type="line", entity_id="l")
            entry: dict[Any, Any] = {"r": record.pack(), "e": hostile(number), "m": b"line:l", "p": b"0"}
            await bus.session.redis.connections.ask(lambda client, values: client.xadd(keys.dead, values), entry)
        good = WireEnvelope("c-9", "Fail", "line", "l", pack({"line": "l"}))
        entry = {"r": DeadLetterRecord(reason="failed", name="Fail").pack(), "e": pack_envelope(good), "m": b"line:l", "p": b"0"}
        await bus.session.redis.connections.ask(lambda client: client.xadd(keys.dead, entry))
        letters = [letter async for letter in bus.dead_letters.list()]
        assert sum((await bus.dead_letters.count(name="Fail")).values()) == 4
        assert (await bus.dead_letters.get(letters[0].id)).command_id == "c-0"
        assert await bus.dead_letters.purge(reason="invalid") == 3
        await bus.dead_letters.discard(letters[3].id)
        assert read == []
    assert [letter.payload for letter in letters] == [None, None, None, {"line": "l"}]
    assert len(read) == 4
    assert letters[3].payload is letters[3].payload, "it is read once"
    assert len(read) == 4
    for letter in letters:
        copied = pickle.loads(pickle.dumps(letter))
        assert type(copied) is DeadLetter
        assert repr(copied) == repr(letter)
        assert replace(letter, id="other").payload == letter.payload
        assert copy.deepcopy(letter).raw == letter.raw
        with pytest.raises(AttributeError):
            letter.nothing  # type: ignore[attr-defined]  # noqa: B018
