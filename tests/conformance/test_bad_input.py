"""Bad input and misuse: each gets a typed error or a dead letter that says why, and nobody else notices.

The numbers are those of the project's catalogue of bad inputs; 21 and 25 need other threads and processes and are in
`test_bad_handlers.py` with the rest of what handlers do wrong.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgpack
import pytest
from pydantic import Field, ValidationError
from redis.crc import key_slot

from command_bus import (
    BusClosed,
    BusSettings,
    Command,
    CommandBus,
    CommandFailed,
    EntityId,
    Envelope,
    HandlerRegistry,
    IdempotencyConflict,
    InvalidCommand,
    InvalidSettings,
    NoHandler,
    PayloadTooLarge,
    QueueFull,
    RegistrationError,
)
from command_bus.serialization.envelope import WireEnvelope, pack_envelope
from command_bus.transport.mailboxes import mailbox_label
from tests.conformance.conftest import Sandbox
from tests.conformance.harness import TransportHarness
from tests.conformance.put_service import Put, PutService, put_service, until


class Loose(Command[None], entity="box"):
    box: EntityId
    thing: Any = None


class Real(Command[float], entity="box"):
    box: EntityId
    number: float
    open_end: Annotated[float, Field(allow_inf_nan=True)] = 0.0


@contextmanager
def no_traffic(bus: CommandBus, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that this bus sends may reach the server."""

    async def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was sent")

    with monkeypatch.context() as patch:
        for way in ("run", "ask", "run_confirmed"):
            patch.setattr(type(bus.session.transport.connections), way, refuse)
        yield


def envelope(payload: bytes, *, name: str = "Put", box: str = "a", **more: Any) -> bytes:
    return pack_envelope(WireEnvelope(more.pop("command_id", "bad-1"), name, "box", box, payload, **more))


PAYLOAD = msgpack.packb({"box": "a", "value": 1})
WHOLE = envelope(PAYLOAD)


@pytest.mark.parametrize("bad", ["", None])
async def test_01_an_entity_id_is_not_empty_and_not_none(sandbox: Sandbox, bad: Any) -> None:
    async with put_service(sandbox) as service:
        with pytest.raises(ValueError):
            Put(box=bad, value=1)
        with pytest.raises(InvalidCommand, match="entity id"):
            await service.bus.dispatch(Put.model_construct(box=bad, value=1))
        with pytest.raises(InvalidCommand):
            await service.bus.dispatch_raw("box", bad, "Put", {"box": bad, "value": 1})
        with pytest.raises(InvalidCommand, match="entity id"):
            service.bus.entity("box", bad)
        await service.assert_unharmed()


@pytest.mark.parametrize("box", ["}", "}{", "{x}", "{}"])
async def test_02_braces_in_an_id_keep_all_keys_in_their_slot(sandbox: Sandbox, box: str) -> None:
    async with sandbox.bus(shards=3) as bus:
        service = PutService(sandbox, bus)
        await bus.dispatch(Put(box=box, value=0), command_id=f"id-{box}")
        await bus.dispatch(Put(box=box, value=0), delay=0.01)
        await bus.entity("box", box).pause()
        keys = await sandbox.keys()
        assert any("}:m:box:" in key for key in keys)
        for shard in bus.session.transport.keys.shards:
            slots = {key_slot(key.encode()) for key in keys if key.startswith(shard.prefix)}
            assert slots <= {key_slot(shard.ready.encode())}
        await bus.entity("box", box).resume()
        async with bus.worker():
            await service.assert_unharmed(box)


@pytest.mark.parametrize("box", ["a\nb", "a\0b", " a b ", "\u05d0\u202eb", "🦊", "a\r\x1b[31mred"])
async def test_03_awkward_ids_round_trip_and_are_shown_escaped(sandbox: Sandbox, box: str) -> None:
    async with put_service(sandbox) as service:
        account = service.bus.entity("box", box)
        await account.pause()
        await account.dispatch(Put(box=box, value=0))
        mailboxes = [key for key in await sandbox.keys() if "}:m:" in key]
        assert all(key.isprintable() and key.isascii() for key in mailboxes)
        label = mailbox_label(mailboxes[0].partition("}:m:")[2])
        assert label.isprintable()
        assert (label == f"box:{box}") == box.isprintable()
        await account.resume()
        await service.bus.wait_idle(5)
        assert service.seen == [(box, 0)]
        await service.assert_unharmed(box)


async def test_04_long_ids_are_hashed_and_huge_ones_refused(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    async with put_service(sandbox) as service:
        for box in ("x" * (1024 * 1024), "é" * 2049):
            with pytest.raises(ValueError, match="4096 bytes"):
                Put(box=box, value=1)
            with no_traffic(service.bus, monkeypatch), pytest.raises(InvalidCommand, match="digest"):
                await service.bus.dispatch_raw("box", box, "Put", {"box": box, "value": 1})
        long = "y" * 4096
        await service.bus.entity("box", long).pause()
        await service.bus.dispatch(Put(box=long, value=0))
        assert max(map(len, await sandbox.keys())) < 200
        await service.bus.entity("box", long).resume()
        await service.assert_unharmed(long)


async def test_05_a_lone_surrogate_is_refused_before_anything_is_sent(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    async with put_service(sandbox) as service:
        await service.bus.dispatch(Put(box="a", value=0))  # the first of a type agrees on its mailboxes
        with pytest.raises(ValueError, match="surrogate"):
            Put(box="\ud800", value=1)
        with no_traffic(service.bus, monkeypatch):
            with pytest.raises(InvalidCommand, match="surrogate"):
                await service.bus.dispatch(Put.model_construct(box="\ud800", value=1))
            with pytest.raises(InvalidCommand, match="surrogate"):
                await service.bus.dispatch(Put(box="a", value=1), command_id="\udfff")
            with pytest.raises(InvalidCommand, match="surrogate"):
                await service.bus.dispatch(Put(box="a", value=1), headers={"trace": "\udfff"})
            with pytest.raises(InvalidCommand, match="thing"):
                await service.bus.dispatch(Loose(box="a", thing=["\udfff"]))
        await service.assert_unharmed("a")


async def test_06_int_and_text_name_one_entity_bool_and_float_none(sandbox: Sandbox) -> None:
    async with put_service(sandbox) as service:
        await service.bus.call(Put(box=7, value=0), timeout=5)
        await service.bus.call(Put(box="7", value=0), timeout=5)
        assert service.seen == [("7", 0), ("7", 0)]
        for bad in (True, 1.0, b"1", ["1"]):
            with pytest.raises(ValidationError):
                Put(box=bad, value=1)
            with pytest.raises(InvalidCommand, match=type(bad).__name__):
                await service.bus.dispatch_raw("box", bad, "Put", {"value": 1})  # type: ignore[arg-type]
        await service.assert_unharmed("7")


@pytest.mark.parametrize(
    "thing", [object(), print, 2**64, {"deep": [1, {"er": object()}]}], ids=["object", "function", "int", "deep"]
)
async def test_07_what_cannot_be_serialized_is_named_and_not_sent(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, thing: Any
) -> None:
    place = r"thing\.deep\[1\]\.er" if isinstance(thing, dict) else "thing"
    async with put_service(sandbox) as service:
        with no_traffic(service.bus, monkeypatch):
            with pytest.raises(InvalidCommand, match=place):
                await service.bus.dispatch(Loose(box="a", thing=thing))
            with pytest.raises(InvalidCommand, match=place):
                await service.bus.dispatch_raw("box", "a", "Loose", {"box": "a", "thing": thing})
            with pytest.raises(InvalidCommand, match=place):
                await service.bus.call(Loose(box="a", thing=thing), timeout=5)
        await service.assert_unharmed("a")


async def test_08_a_payload_over_the_cap_is_refused_alone(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    large = Loose(box="a", thing=bytes(2 * 1024 * 1024))
    async with put_service(sandbox) as service:
        with no_traffic(service.bus, monkeypatch), pytest.raises(PayloadTooLarge) as refused:
            await service.bus.dispatch(large)
        assert refused.value.size > refused.value.limit == 1024 * 1024
        batch = await service.bus.dispatch_batch([Put(box="a", value=0), large, Put(box="a", value=9), Put(box="b", value=0)])
        assert [outcome.status for outcome in batch.outcomes] == ["accepted", "rejected", "rejected", "accepted"]
        first, second = batch.rejections
        assert isinstance(first.error, PayloadTooLarge)
        assert isinstance(second.error, QueueFull)
        assert second.error.limit == "predecessor"
        await service.bus.wait_idle(5)
        assert ("a", 9) not in service.seen
        await service.assert_unharmed("a", "b")


async def test_09_there_is_no_payload_without_a_cap(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis ends the connection at 512 MiB. No setting allows that much; what is over the setting does not reach the socket."""
    with pytest.raises(InvalidSettings, match="max_payload"):
        BusSettings(max_payload=513 * 1024 * 1024)
    async with put_service(sandbox, max_payload=32 * 1024 * 1024) as service:
        with no_traffic(service.bus, monkeypatch), pytest.raises(PayloadTooLarge):
            await service.bus.dispatch(Loose(box="a", thing=bytes(33 * 1024 * 1024)))
        await service.assert_unharmed("a")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
async def test_10_nan_and_infinity_only_where_they_are_allowed(sandbox: Sandbox, number: float) -> None:
    got: list[float] = []

    @sandbox.registry.handles(Real)
    async def real(command: Real) -> float:
        got.append(command.open_end)
        return command.number

    async with put_service(sandbox) as service:
        with pytest.raises(ValidationError):
            Real(box="a", number=number)
        await service.bus.dispatch_raw("box", "a", "Real", {"box": "a", "number": number})
        letter = await service.letter()
        assert (letter.reason, letter.attempts) == ("invalid", 1)
        assert "number" in letter.error_message
        assert await service.bus.call(Real(box="a", number=1.5, open_end=number), timeout=5) == 1.5
        assert repr(got) == repr([number])
        await service.assert_unharmed("a")


async def test_11_a_misspelt_field_is_an_error(sandbox: Sandbox) -> None:
    async with put_service(sandbox) as service:
        with pytest.raises(ValidationError):
            Put(box="a", value=1, colour="red")  # type: ignore[call-arg]
        await service.bus.dispatch_raw("box", "a", "Put", {"box": "a", "valeu": 1}, command_id="typo")
        letter = await service.letter()
        assert (letter.reason, letter.command_id, letter.payload) == ("invalid", "typo", {"box": "a", "valeu": 1})
        assert "valeu" in letter.error_message
        with pytest.raises(InvalidCommand, match="value"):
            await service.bus.result("typo")
        await service.assert_unharmed("a")


async def test_12_text_is_no_number(sandbox: Sandbox) -> None:
    async with put_service(sandbox) as service:
        with pytest.raises(ValidationError):
            Put(box="a", value="12")  # type: ignore[arg-type]
        await service.bus.dispatch_raw("box", "a", "Put", {"box": "a", "value": "12"})
        letter = await service.letter()
        assert letter.reason == "invalid"
        assert "'12'" not in letter.error_message
        await service.assert_unharmed("a")


async def test_13_deep_nesting_is_an_error_and_no_crash(sandbox: Sandbox) -> None:
    thing: Any = None
    for _ in range(1000):
        thing = [thing]
    async with put_service(sandbox) as service:
        with pytest.raises(InvalidCommand, match="nested deeper than 64"):
            await service.bus.dispatch(Loose(box="a", thing=thing))
        deep = b"\x82\xa3box\xa1a\xa5value" + b"\x91" * 100_000 + b"\xc0"
        await service.inject("box:a", {"e": envelope(deep)})
        letter = await service.letter()
        assert letter.reason == "invalid"
        assert "nested too deeply" in letter.error_message
        await service.assert_unharmed("a")


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


async def test_14_garbage_between_good_commands_keeps_the_line_in_order(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        service = PutService(sandbox, bus)
        await bus.dispatch(Put(box="a", value=10))
        for raw in GARBAGE.values():
            await service.inject("box:a", {"e": raw})
        await bus.dispatch(Put(box="a", value=11))
        async with bus.worker():
            await bus.wait_idle(10)
            assert service.seen == [("a", 10), ("a", 11)]
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
        await bus.dispatch(Put(box="a", value=0))
        box = service.keys.mailbox("box:a")
        client = sandbox.client()
        if way == "entry":
            ((entry, _),) = await client.xrange(box)
            await client.xdel(box, entry)
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


async def test_16_a_later_version_waits_for_its_worker_then_is_kept(sandbox: Sandbox) -> None:
    later = msgpack.packb([2, "new-1", "Put", {"another": "shape"}])
    async with put_service(sandbox, unknown_grace=0.4) as service:
        await service.inject("box:a", {"e": later})
        await service.bus.dispatch(Put(box="a", value=0))
        assert await service.bus.call(Put(box="b", value=0), timeout=5) == 0
        assert ("a", 0) not in service.seen, "the entity was held"
        letter = await service.letter()
        assert (letter.reason, letter.command_id, letter.name, letter.raw) == ("unsupported_version", "new-1", "Put", later)
        assert "version 2" in letter.error_message
        await service.bus.wait_idle(5)
        assert ("a", 0) in service.seen
        assert await service.bus.dead_letters.replay(letter.id) == "new-1"
        await until(service.letters)
        await service.assert_unharmed("a")


async def test_16_a_later_version_that_was_interrupted_is_left_to_a_newer_worker_for_a_while(sandbox: Sandbox) -> None:
    """Whether it may run again an older worker cannot read, so it neither runs it again nor calls it undecodable."""
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


async def test_18_one_name_has_one_handler() -> None:
    registry = HandlerRegistry()

    class Other(Command[int], entity="box", name="Put"):
        box: EntityId

    @registry.handles(Put)
    async def put(command: Put) -> int:
        return 1

    with pytest.raises(RegistrationError, match="Put"):

        @registry.handles(Put)
        async def again(command: Put) -> int:
            return 2

    with pytest.raises(RegistrationError, match="Put"):

        @registry.handles(Other)
        async def other(command: Other) -> int:
            return 3


def test_19_a_handler_that_cannot_work_is_refused_at_registration() -> None:
    registry = HandlerRegistry()

    async def none() -> int:
        return 1

    async def two(command: Put, more: int) -> int:
        return 1

    async def wrong_message(command: Real) -> int:
        return 1

    async def wrong_reply(command: Put) -> str:
        return ""

    for bad in (None, 7, "put", none, two, wrong_message, wrong_reply):
        with pytest.raises(RegistrationError):
            registry.handles(Put)(bad)  # type: ignore[type-var]
    assert registry.lookup("Put") is None


async def test_26_nothing_is_accepted_before_the_start_or_after_the_end(sandbox: Sandbox) -> None:
    bus = sandbox.bus()
    for _ in range(2):
        with pytest.raises(BusClosed):
            await bus.dispatch(Put(box="a", value=1))
        with pytest.raises(BusClosed):
            await bus.call(Put(box="a", value=1))
        with pytest.raises(BusClosed):
            await bus.dispatch_batch([Put(box="a", value=1)])
        async with bus:  # also for the second time: an application may start twice in a process
            pass
    async with bus:
        await bus.dispatch(Put(box="b", value=1))
        closing = asyncio.ensure_future(bus.close())
        while bus.session.state != "closed":
            await asyncio.sleep(0)
        with pytest.raises(BusClosed, match="is being closed"):
            await bus.open()
        await closing
    async with put_service(sandbox) as service:
        await service.assert_unharmed("a")


@pytest.mark.parametrize("timeout", [0, -1, math.inf, math.nan, True, "5", None])
async def test_28_the_timeout_of_a_call_is_a_positive_number(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, timeout: Any
) -> None:
    async with put_service(sandbox, call_timeout=4.0, lease=0.5) as service:
        if timeout is None:  # the setting holds; longer than a lease is nothing special
            assert await service.bus.call(Put(box="a", value=5)) == 5
            assert await service.bus.call(Put(box="a", value=5), timeout=1e9) == 5
        else:
            with no_traffic(service.bus, monkeypatch), pytest.raises(ValueError, match="positive number of seconds"):
                await service.bus.call(Put(box="a", value=5), timeout=timeout)
        await service.assert_unharmed("a")


async def test_29_the_same_id_and_payload_run_once(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        service = PutService(sandbox, bus)
        command = Put(box="a", value=0)
        statuses = [(await bus.dispatch(command, command_id="same")).status for _ in range(2)]
        batch = await bus.dispatch_batch(Envelope(command, command_id=name) for name in ("same", "two", "two"))
        assert statuses == ["accepted", "duplicate"]
        assert [outcome.status for outcome in batch.outcomes] == ["duplicate", "accepted", "duplicate"]
        async with bus.worker():
            await bus.wait_idle(5)
            assert service.seen == [("a", 0), ("a", 0)]
            assert (await bus.dispatch(command, command_id="same")).status == "duplicate"
            assert await bus.call(command, command_id="same", timeout=5) == 0
            assert service.seen == [("a", 0), ("a", 0)]
            await service.assert_unharmed("a")


async def test_30_the_same_id_with_another_payload_is_a_conflict(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        service = PutService(sandbox, bus)
        await bus.dispatch(Put(box="a", value=0), command_id="same")
        others = (Put(box="a", value=9), Put(box="b", value=0), Real(box="a", number=0.0))
        for other in others[:1]:
            with pytest.raises(IdempotencyConflict) as conflict:
                await bus.dispatch(other, command_id="same")
            assert conflict.value.command_id == "same"
        batch = await bus.dispatch_batch([Envelope(others[2], command_id="same"), Put(box="a", value=1)])
        assert [outcome.status for outcome in batch.outcomes] == ["rejected", "accepted"]
        assert isinstance(batch.outcomes[0].error, IdempotencyConflict)
        async with bus.worker():
            await bus.wait_idle(5)
            with pytest.raises(IdempotencyConflict):
                await bus.call(others[0], command_id="same", timeout=5)
            assert service.seen == [("a", 0), ("a", 1)]
            await service.assert_unharmed("a", "b")


BAD_ITEMS: dict[str, Any] = {
    "too large": Loose(box="line-3", thing=bytes(2 * 1024 * 1024)),
    "not serializable": Loose(box="line-3", thing=object()),
    "empty entity id": Put.model_construct(box="", value=1),
    "no entity id": Put.model_construct(value=1),
    "no command": "Put",
    "headers": Envelope(Put(box="line-3", value=1), headers={"x": "y" * 100_000}),
    "delay": Envelope(Put(box="line-3", value=1), delay=-1.0),
    "id": Envelope(Put(box="line-3", value=1), command_id=""),
}


@pytest.mark.parametrize("bad", BAD_ITEMS.values(), ids=BAD_ITEMS.keys())
async def test_31_one_bad_item_of_ten_thousand_is_reported_exactly(sandbox: Sandbox, bad: Any) -> None:
    count, at = (10_000, 4_003) if bad is BAD_ITEMS["too large"] and sandbox.name != "memory" else (600, 303)
    items: list[Any] = [Put(box=f"line-{number % 10}", value=number) for number in range(count)]
    items[at] = bad
    async with sandbox.bus() as bus:
        service = PutService(sandbox, bus)
        batch = await bus.dispatch_batch(items)
        assert len(batch) == count
        assert isinstance(batch.outcomes[at].error, InvalidCommand)
        known = "line-3" in str(bad)
        followers = set(range(at + 10, count, 10)) if known else set()
        assert {index for index, outcome in enumerate(batch.outcomes) if outcome.status == "rejected"} == followers | {at}
        assert all(getattr(batch.outcomes[index].error, "limit", "") == "predecessor" for index in followers)
        async with bus.worker():
            await bus.wait_idle(30)
            for line in range(10):
                numbers = [value for box, value in service.seen if box == f"line-{line}"]
                assert numbers == [number for number in range(line, count, 10) if number != at and number not in followers]
            await service.assert_unharmed("line-3")


async def test_31_a_batch_may_be_empty_or_endless_in_kind(sandbox: Sandbox) -> None:
    async with put_service(sandbox) as service:
        assert len(await service.bus.dispatch_batch([])) == 0
        assert len(await service.bus.dispatch_batch(iter(()))) == 0
        with pytest.raises(TypeError):
            await service.bus.dispatch_batch(7)  # type: ignore[arg-type]

        def failing() -> Iterator[Put]:
            yield Put(box="a", value=0)
            raise LookupError("the source broke")

        with pytest.raises(LookupError):
            await service.bus.dispatch_batch(failing())
        await service.assert_unharmed("a")


async def test_a_failure_names_no_secret(sandbox: Sandbox) -> None:
    """24, its part about validation: pydantic's errors quote their input, ours do not."""

    class Secret(Command[None], entity="box"):
        box: EntityId
        pin: Annotated[str, Field(max_length=4)]

    @sandbox.registry.handles(Secret)
    async def secret(command: Secret) -> None:
        Put(box="a", value=command.pin)  # type: ignore[arg-type]

    async with put_service(sandbox) as service:
        await service.bus.dispatch_raw("box", "a", "Secret", {"box": "a", "pin": "hunter2"})
        letter = await service.letter()
        assert letter.reason == "invalid"
        assert "hunter2" not in letter.error_message
        await service.bus.dead_letters.discard(letter.id)
        with pytest.raises(CommandFailed) as failure:
            await service.bus.call(Secret(box="a", pin="9876"), timeout=5)
        letter = await service.letter()
        for shown in (str(failure.value), failure.value.error_message, letter.error_message, letter.traceback):
            assert "9876" not in shown
        await service.assert_unharmed("a")
