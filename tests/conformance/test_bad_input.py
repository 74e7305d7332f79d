"""Bad input and misuse: each gets a typed error or a dead letter with the reason, and affects no other command.

The numbers are those of docs/bad-input.md; 21 and 25 need other threads and processes and are in `test_bad_handlers.py`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

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
    HandlerRegistry,
    InvalidCommand,
    InvalidSettings,
    PayloadTooLarge,
    QueueFull,
    RegistrationError,
)
from command_bus.transport.mailboxes import mailbox_label
from tests.conformance.bad_input import Loose, Real, envelope
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import Put, PutService, put_service


@contextmanager
def no_traffic(bus: CommandBus, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let nothing that this bus sends reach the server."""

    async def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was sent")

    with monkeypatch.context() as patch:
        for way in ("run", "post", "ask", "run_confirmed"):
            patch.setattr(type(bus.session.redis.connections), way, refuse)
        yield


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
        await bus.dispatch(Put(box=box, value=0))
        await bus.dispatch(Put(box=box, value=0), delay=0.01)
        await bus.entity("box", box).pause()
        keys = await sandbox.keys()
        assert any("}:m:box:" in key for key in keys)
        for shard in bus.session.redis.keys.shards:
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
