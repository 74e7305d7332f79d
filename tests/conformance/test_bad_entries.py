"""Entries that no producer of ours would write: garbage, later versions, unknown commands."""

from __future__ import annotations

import time
from typing import Any

import msgpack
import pytest

from command_bus import (
    NoHandler,
)
from tests.conformance.bad_input import envelope
from tests.conformance.conftest import Sandbox
from tests.conformance.harness import TransportHarness
from tests.conformance.put_service import Put, PutService, put_service, until

PAYLOAD = msgpack.packb({"box": "a", "value": 1})


WHOLE = envelope(PAYLOAD)


GARBAGE = {
    "nothing": b"",
    "text": b"hello, who are you?",
    "json": b'{"command": "Put"}',
    "never-used byte": b"\xc1",
    "cut short": WHOLE[:-4],
    "one byte": WHOLE[:1],
    "trailing bytes": WHOLE + b"\0",
    "bad utf-8": WHOLE.replace(b"Put", b"P\xff\xfe"),
    "zeros": bytes(64),
    "huge array": b"\xdd\xff\xff\xff\xff",
    "no array": msgpack.packb({"id": 1}),
    "short array": msgpack.packb([1, "bad-1", "Put"]),
    "long array": msgpack.packb([1, "bad-1", "Put", "box", "a", PAYLOAD, *[None] * 20]),
    "odd types": msgpack.packb([1, 2, 3, 4, 5, 6]),
    "no payload bytes": msgpack.packb([1, "bad-1", "Put", "box", "a", {"box": "a", "value": 1}]),
    "version 0": msgpack.packb([0, "bad-1", "Put", "box", "a", PAYLOAD]),
    "entity without a type": msgpack.packb([1, "bad-1", "Put", None, "a", PAYLOAD]),
}


@pytest.mark.promise("A mailbox has undecodable bytes")
@pytest.mark.parametrize("raw", GARBAGE.values(), ids=GARBAGE.keys())
async def test_14_garbage_is_dead_lettered_as_it_is(sandbox: Sandbox, raw: bytes) -> None:
    async with put_service(sandbox) as service:
        await service.inject("box:a", {"e": raw})
        letter = await service.letter()
        assert (letter.reason, letter.attempts, letter.raw, letter.payload) == ("undecodable", 1, raw, None)
        stats = await service.bus.stats()
        assert (stats.dead_lettered, stats.dead_letters) == (1, 1)
        await service.assert_unharmed("a")
        await service.bus.dead_letters.replay(letter.id)
        again = await service.letter()
        assert (again.reason, again.raw) == ("undecodable", raw)
        await service.bus.dead_letters.discard(again.id)
        assert await service.letters() == []
        await service.assert_unharmed("a")


@pytest.mark.promise("A mailbox has undecodable bytes")
async def test_14_garbage_between_good_commands_keeps_the_line_in_order(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        service = PutService(sandbox, bus)
        await bus.dispatch_batch([Put(box="a", value=9), Put(box="a", value=10)])
        for raw in GARBAGE.values():
            await service.inject("box:a", {"e": raw})
        await bus.dispatch(Put(box="a", value=11))
        async with bus.worker():
            await bus.wait_idle(10)
            assert service.seen == [("a", 9), ("a", 10), ("a", 11)]
            assert len(await service.letters()) == len(GARBAGE)
            await service.assert_unharmed("a")


async def test_14_garbage_in_the_ready_stream_stops_no_worker(sandbox: Sandbox) -> None:
    """Activations of mailboxes that do not exist, names that are no text, entries of another kind."""
    async with put_service(sandbox, lease=0.5) as service:
        client = sandbox.client()
        for fields in ({b"e": b"\xff\xfe"}, {b"e": b"box:nobody"}, {b"x": b"y"}, {b"e": b""}, {b"e": b"box:a|r"}):
            await client.xadd(service.keys.ready, fields)  # type: ignore[arg-type]
        await service.assert_runs("a")

        async def gone() -> bool:
            return int(await client.xlen(service.keys.ready)) == 0

        await until(gone)
        await client.aclose()
        await service.assert_unharmed("a")


@pytest.mark.parametrize("fields", [{"x": b"y"}, {"x": b"y", "z": b""}, {"E": WHOLE}])
async def test_15_an_entry_without_our_field_never_reaches_a_handler(sandbox: Sandbox, fields: dict[str, bytes]) -> None:
    async with put_service(sandbox) as service:
        await service.inject("box:a", fields)
        letter = await service.letter()
        assert letter.reason == "undecodable"
        assert letter.raw == b"".join(part for name, value in fields.items() for part in (name.encode(), value))
        assert service.seen == []
        await service.assert_unharmed("a")


@pytest.mark.parametrize("way", ["entry", "mailbox"])
async def test_15_a_deleted_entry_is_skipped(sandbox: Sandbox, way: str) -> None:
    async with sandbox.bus() as bus:
        service = PutService(sandbox, bus)
        await bus.dispatch_batch([Put(box="a", value=0), Put(box="a", value=0)])
        box = service.keys.mailbox("box:a")
        client = sandbox.client()
        if way == "entry":
            entries: Any = await client.xrange(box)
            await client.xdel(box, *(entry for entry, _ in entries))
        else:
            await client.delete(box)
        await client.aclose()
        async with bus.worker():
            await bus.wait_idle(5)
            assert service.seen == []
            assert await service.letters() == []
            assert await sandbox.entity_keys() == []
            assert await bus.call(Put(box="a", value=1), timeout=5) == 1


async def test_16_an_unknown_extension_type_in_a_payload_is_invalid(sandbox: Sandbox) -> None:
    payload = msgpack.packb({"box": "a", "value": msgpack.ExtType(99, b"?")})
    async with put_service(sandbox) as service:
        await service.inject("box:a", {"e": envelope(payload)})
        letter = await service.letter()
        assert letter.reason == "invalid"
        assert "extension type 99" in letter.error_message
        await service.assert_unharmed("a")


LATER = {
    "version 2": msgpack.packb([2, "new-1", "Put", {"another": "shape"}]),
    "critical flags 0x20000": msgpack.packb([1, "new-1", "Put", "box", "a", PAYLOAD, (1 << 17) | 1]),
}


@pytest.mark.parametrize("said", LATER)
async def test_16_a_later_version_waits_for_its_worker_then_is_kept(sandbox: Sandbox, said: str) -> None:
    later = LATER[said]
    async with put_service(sandbox, unknown_grace=0.4) as service:
        await service.inject("box:a", {"e": later})
        await service.bus.dispatch(Put(box="a", value=0))
        assert await service.bus.call(Put(box="b", value=0), timeout=5) == 0
        assert ("a", 0) not in service.seen, "the entity was held"
        letter = await service.letter()
        assert (letter.reason, letter.command_id, letter.name, letter.raw) == ("unsupported_version", "new-1", "Put", later)
        assert said in letter.error_message
        await service.bus.wait_idle(5)
        assert ("a", 0) in service.seen
        assert await service.bus.dead_letters.replay(letter.id) == "new-1"
        await until(service.letters)
        await service.assert_unharmed("a")


async def test_16_an_interrupted_later_version_waits_for_a_newer_worker(sandbox: Sandbox) -> None:
    """An older worker cannot read whether it may run again, so it neither runs it again nor calls it undecodable."""
    later = msgpack.packb([2, "new-1", "Put", {"another": "shape"}])
    async with sandbox.bus(lease=0.5, unknown_grace=0.1) as bus:
        service = PutService(sandbox, bus)
        await service.inject("box:a", {"e": later})
        newer = TransportHarness(sandbox.clients, sandbox.namespace)
        worker = newer.worker("newer")
        await worker.start()
        began = time.monotonic()
        async with bus.worker():
            letter = await service.letter()
            assert time.monotonic() - began > 1.5, "three leases and the grace"
            assert (letter.reason, letter.command_id, letter.raw) == ("interrupted", "new-1", later)
            assert "version 2" in letter.error_message
            await service.assert_unharmed("a")
        await worker.steps.close(1)
        await newer.connections.close()


async def test_17_an_unknown_command_is_dead_lettered_after_its_grace(sandbox: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    async with put_service(sandbox, unknown_grace=0.3) as service:
        await service.bus.dispatch_raw("box", "a", "Unheard", {"box": "a"}, command_id="u")
        with pytest.raises(NoHandler):
            await service.bus.result("u", timeout=5)
        letter = await service.letter()
        assert (letter.reason, letter.name, letter.command_id, letter.attempts) == ("no_handler", "Unheard", "u", 1)
        stats = await service.bus.stats()
        assert stats.retried == 0, "nothing was tried"
        assert 1 <= stats.handed_back <= 30, "offered at intervals, not in a tight loop"
        await service.assert_unharmed("a")
        assert "s after it was first offered" in caplog.text
